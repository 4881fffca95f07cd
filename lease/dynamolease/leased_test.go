package dynamolease_test

import (
	"errors"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// write writes a record in mode Leased over the wire.
func (b *bench) write(g lease.Grant, sequence int64, value string) (fencing.Record, error) {
	return b.fences.Write(b.Context(), "t", "r", "k", fencing.WriteRequest{
		Position: fencing.Position{Token: g.Token, Sequence: sequence}, LeaseID: g.ID, Value: []byte(value),
	})
}

func (b *bench) wantWrite(why string, g lease.Grant, sequence int64, value string, version int64) {
	b.Helper()
	if r, err := b.write(g, sequence, value); err != nil || r.Version != version || string(r.Value) != value {
		b.Errorf("%s: version %d %s, %v, want version %d", why, r.Version, r.Value, err, version)
	}
}

func (b *bench) wantStale(why string, err error, token fencing.Token) {
	b.Helper()
	if stale, ok := errors.AsType[*fencing.StaleError](err); !ok || stale.HighWater.Token != token {
		b.Errorf("%s: got %v, want stale at %d", why, err, token)
	}
}

func TestRequestsPerLeasedWrite(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "")
	b.wire.Take()
	b.wantWrite("the first", g, 0, "1", 1)
	b.sent("the first", "GetItem", "TransactWriteItems")
	b.wantWrite("with a sequence", g, 7, "2", 2)
	b.sent("with a sequence", "GetItem", "TransactWriteItems")
	b.wantWrite("repeated", g, 7, "2", 2)
	b.sent("repeated", "GetItem")
	b.now = b.now.Add(time.Minute)
	b.wantWrite("expired, not taken over", g, 8, "3", 3)
	b.sent("expired, not taken over", "GetItem", "TransactWriteItems")
}

// Nothing of a single write's error is in the chain of a canceled transaction: the
// reasons alone say that it was refused, and by which of its items.
func TestL31RefusalInATransaction(t *testing.T) {
	b := newBench(t)
	a := b.mustAcquire(b.leases, "a", "")
	b.wantWrite("a writes", a, 0, "1", 1)
	b.now = b.now.Add(time.Minute)
	next := b.mustAcquire(b.others, "b", "")
	b.wire.Take()
	_, err := b.write(a, 0, "2")
	b.wantStale("a wakes up, b has written nothing", err, next.Token)
	b.sent("refused by the lease's item", "GetItem", "TransactWriteItems")
	b.wire.BeforeWrite(1, func() {
		if _, err := b.outer.Write(t.Context(), "t", "r", "k", fencing.WriteRequest{
			Position: fencing.Position{Token: next.Token}, LeaseID: next.ID, Value: []byte("70"),
		}); err != nil {
			t.Error(err)
		}
	})
	b.wantWrite("another write of the same holder comes between", next, 0, "3", 3)
	b.sent("refused by the record's item", "GetItem", "TransactWriteItems", "TransactWriteItems")
}

func TestL32ConflictsAndThrottlesAreNoRefusals(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "")
	b.wire.Take()
	b.wire.Cancel("TransactionConflict", "None")
	b.wantWrite("a conflict passes", g, 0, "1", 1)
	requests := b.wire.Take()
	if len(requests) != 3 || requests[1].Body["ClientRequestToken"] != requests[2].Body["ClientRequestToken"] || requests[1].Body["ClientRequestToken"] == nil {
		t.Errorf("sent %d requests, the second try not under the first one's token", len(requests))
	}
	for why, codes := range map[string][]string{
		"conflicts for ever": {"TransactionConflict", "None"},
		"throttled for ever": {"None", "ThrottlingError"},
		"no capacity left":   {"ProvisionedThroughputExceeded", "TransactionConflict"},
	} {
		for range 3 {
			b.wire.Cancel(codes...)
		}
		if _, err := b.write(g, 0, "2"); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", why, err)
		}
		b.sent(why, "GetItem", "TransactWriteItems", "TransactWriteItems", "TransactWriteItems")
	}
	b.wire.Cancel("ConditionalCheckFailed", "TransactionConflict")
	b.wantWrite("with a failed condition among them the item is looked at", g, 0, "3", 2)
	b.sent("mixed reasons", "GetItem", "TransactWriteItems", "GetItem", "TransactWriteItems")
	b.wire.Cancel("ValidationError", "None")
	if _, err := b.write(g, 0, "4"); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("a defect is no refusal: %v", err)
	}
	b.sent("a defect is not tried again", "GetItem", "TransactWriteItems")
}

func TestL5LostReplyOfLeasedWrite(t *testing.T) {
	b := newBench(t)
	a := b.mustAcquire(b.leases, "a", "")
	b.wire.Take()
	b.wire.LoseReplies(1, nil)
	b.wantWrite("the token has it done once", a, 0, "1", 1)
	b.sent("a lost reply", "GetItem", "TransactWriteItems", "TransactWriteItems")
	b.wire.LoseReplies(3, nil)
	if _, err := b.write(a, 0, "2"); !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("all replies lost: %v", err)
	}
	b.wantWrite("it was done once", a, 0, "3", 3)
	b.wire.LoseReplies(1, func() {
		b.now = b.now.Add(time.Minute)
		next := b.mustAcquire(b.others, "b", "")
		if _, err := b.outer.Write(t.Context(), "t", "r", "k", fencing.WriteRequest{
			Position: fencing.Position{Token: next.Token}, LeaseID: next.ID, Value: []byte("70"),
		}); err != nil {
			t.Error(err)
		}
	})
	b.wantWrite("it was accepted before the takeover", a, 0, "4", 4)
	_, err := b.write(a, 0, "5")
	b.wantStale("and a is out", err, 2)
}

// A reset that was lost on the way is not repeated: what came between would be undone.
func TestL53ResetsAreNotRepeated(t *testing.T) {
	b := newBench(t)
	b.raise(9)
	b.wire.LoseReplies(1, func() { b.raise(10) })
	if _, err := b.fences.ResetMark(t.Context(), "t", "r", 5); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("a lost reply: %v", err)
	}
	b.sent("a lost reply", "UpdateItem", "GetItem")
	if mark, err := b.fences.Mark(t.Context(), "t", "r"); err != nil || mark.Token != 10 {
		t.Errorf("the mark is at %d, %v", mark.Token, err)
	}
	g := b.mustAcquire(b.leases, "a", "")
	b.wantWrite("written", g, 7, "1", 1)
	b.wire.Take()
	b.wire.LoseReplies(1, nil)
	if r, err := b.fences.ResetRecord(t.Context(), "t", "r", "k", 3); err != nil || r.Position != (fencing.Position{Token: 3}) {
		t.Errorf("a record tells its own reset: %+v, %v", r, err)
	}
	b.sent("a record tells its own reset", "UpdateItem", "GetItem")
}
