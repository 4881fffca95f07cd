package dynamoidempotency_test

import (
	"errors"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
)

// A bench is a manager whose requests go over a wire, and one beside it, of
// another caller, whose requests do not.
type bench struct {
	*testing.T
	wire    *dynamotest.Wire
	records *idempotency.Manager
	others  *idempotency.Manager
	now     time.Time
}

func newBench(t *testing.T) *bench {
	e := engine.DynamoDB(t)
	b := &bench{T: t, wire: &dynamotest.Wire{}, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	prefix := e.Prefix(t)
	options := idempotency.Options{Now: func() time.Time { return b.now }}
	b.others = idempotency.New(open(t, e.Client(), prefix), options)
	b.records = idempotency.New(open(t, e.Client(b.wire.Option), prefix), options)
	b.wire.Take()
	return b
}

func (b *bench) claim(m *idempotency.Manager, requestID string) (idempotency.Claimed, error) {
	return m.Claim(b.Context(), "t", "k", idempotency.ClaimRequest{Fingerprint: "f", RequestID: requestID, LockTTL: time.Second, TTL: time.Minute})
}

func (b *bench) mustClaim(m *idempotency.Manager, requestID string) idempotency.Claimed {
	b.Helper()
	c, err := b.claim(m, requestID)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// sent demands which requests went over the wire since it was last called, and that
// they name no attribute plainly.
func (b *bench) sent(why string, want ...string) {
	b.Helper()
	requests := b.wire.Take()
	same := len(requests) == len(want)
	var got []string
	for i, r := range requests {
		same = same && r.Operation == want[i]
		got = append(got, r.Operation)
		if bare := r.BareNames(); bare != nil {
			b.Errorf("%s: plain names (L35): %v", why, bare)
		}
	}
	if !same {
		b.Errorf("%s: sent %v, want %v", why, got, want)
	}
}

func TestOneRequestPerOperation(t *testing.T) {
	b := newBench(t)
	c := b.mustClaim(b.records, "q")
	b.sent("claim", "UpdateItem")
	b.mustClaim(b.records, "q")
	b.sent("claim repeated", "UpdateItem")
	if _, err := b.claim(b.records, ""); err == nil {
		t.Error("a key in flight was claimed")
	}
	b.sent("in flight", "UpdateItem")
	if _, err := b.records.Extend(t.Context(), "t", "k", c.ID, 2*time.Second); err != nil {
		t.Error(err)
	}
	b.sent("extend", "UpdateItem")
	if _, err := b.records.Extend(t.Context(), "t", "k", c.ID, time.Second); err != nil {
		t.Error(err)
	}
	b.sent("extend for less", "UpdateItem")
	if _, err := b.records.Extend(t.Context(), "t", "k", c.ID, time.Hour); err != nil {
		t.Error(err)
	}
	b.sent("extend beyond the record", "UpdateItem", "UpdateItem")
	for range 2 {
		if err := b.records.Complete(t.Context(), "t", "k", c.ID, "1"); err != nil {
			t.Error(err)
		}
		b.sent("complete, also again", "UpdateItem")
	}
	if done := b.mustClaim(b.records, ""); !done.Completed || done.Response != "1" {
		t.Errorf("got %+v", done)
	}
	b.sent("claim of what is completed", "UpdateItem")
	if err := b.records.Abandon(t.Context(), "t", "k", c.ID); !errors.Is(err, idempotency.ErrLost) {
		t.Error(err)
	}
	b.sent("abandon refused", "UpdateItem")
	if err := b.records.Abandon(t.Context(), "t", "none", c.ID); !errors.Is(err, idempotency.ErrLost) {
		t.Error(err)
	}
	b.sent("no item, or an engine that returns none", "UpdateItem", "GetItem")
}

func TestL5LostReplyOfClaim(t *testing.T) {
	for name, requestID := range map[string]string{"with a request id": "q", "without": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.wire.LoseReplies(1, nil)
			c := b.mustClaim(b.records, requestID)
			b.sent("a lost reply", "UpdateItem", "UpdateItem")
			if c.Attempt != 1 || c.ValidFor != time.Second {
				t.Errorf("got %+v, want the first claim", c)
			}
			if err := b.records.Complete(t.Context(), "t", "k", c.ID, "1"); err != nil {
				t.Errorf("the claim that was returned is not the one stored: %v", err)
			}
		})
	}
}

func TestL5AllRepliesOfClaimLost(t *testing.T) {
	b := newBench(t)
	b.wire.LoseReplies(3, nil)
	if _, err := b.claim(b.records, "q"); !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
		t.Fatalf("got %v, want that the outcome is unknown", err)
	}
	b.now = b.now.Add(300 * time.Millisecond)
	if c := b.mustClaim(b.records, "q"); c.Attempt != 1 || c.ValidFor != 700*time.Millisecond {
		t.Errorf("the caller's retry got %+v, want the first claim", c)
	}
}

// A claim whose reply was lost, and which somebody took over before it was sent again:
// to say in flight would be to say that it had no effect.
func TestL5LostReplyOfClaimThenSuperseded(t *testing.T) {
	b := newBench(t)
	b.wire.LoseReplies(1, func() {
		b.now = b.now.Add(1001 * time.Millisecond)
		b.mustClaim(b.others, "")
	})
	if _, err := b.claim(b.records, ""); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("got %v, want that the outcome is unknown", err)
	}
}

func TestL10LostReplies(t *testing.T) {
	b := newBench(t)
	c := b.mustClaim(b.records, "")
	for _, step := range []struct {
		why string
		do  func() error
	}{
		{"extend", func() error {
			_, err := b.records.Extend(t.Context(), "t", "k", c.ID, 2*time.Second)
			return err
		}},
		{"extend beyond the record", func() error {
			got, err := b.records.Extend(t.Context(), "t", "k", c.ID, time.Hour)
			if got.ValidFor != time.Hour {
				t.Errorf("extended: %+v", got)
			}
			return err
		}},
		{"complete", func() error { return b.records.Complete(t.Context(), "t", "k", c.ID, "1") }},
	} {
		b.wire.LoseReplies(1, nil)
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.why, err)
		}
	}
	if done := b.mustClaim(b.others, ""); done.Response != "1" {
		t.Errorf("got %+v", done)
	}
	abandoned, err := b.records.Claim(t.Context(), "t", "k2", idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b.wire.LoseReplies(1, nil)
	if err := b.records.Abandon(t.Context(), "t", "k2", abandoned.ID); err != nil {
		t.Errorf("abandon: %v", err)
	}
}

// A completion that is on its way while its executor is superseded changes nothing.
func TestSupersededWhileCompleting(t *testing.T) {
	b := newBench(t)
	c := b.mustClaim(b.records, "")
	b.wire.BeforeWrite(1, func() {
		b.now = b.now.Add(1001 * time.Millisecond)
		second := b.mustClaim(b.others, "")
		if err := b.others.Complete(t.Context(), "t", "k", second.ID, "2"); err != nil {
			t.Error(err)
		}
	})
	if err := b.records.Complete(t.Context(), "t", "k", c.ID, "1"); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("got %v", err)
	}
	if done := b.mustClaim(b.others, ""); done.Response != "2" {
		t.Errorf("got %+v", done)
	}
}

// The extension names what it replaces: it does not undo another one that comes between.
func TestExtensionsMeet(t *testing.T) {
	b := newBench(t)
	c := b.mustClaim(b.records, "")
	b.wire.BeforeWrite(2, func() {
		if _, err := b.others.Extend(t.Context(), "t", "k", c.ID, 3*time.Hour); err != nil {
			t.Error(err)
		}
	})
	if got, err := b.records.Extend(t.Context(), "t", "k", c.ID, time.Hour); err != nil || got.ValidFor != time.Hour {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err := b.others.Claim(t.Context(), "t", "k", idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Hour})
	if inFlight, ok := errors.AsType[*idempotency.InFlightError](err); !ok || inFlight.RetryAfter < 3*time.Hour {
		t.Errorf("the longer extension was undone: %v", err)
	}
}

func TestL32ThrottledIsUnavailable(t *testing.T) {
	b := newBench(t)
	b.wire.Refuse(3)
	if _, err := b.claim(b.records, ""); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("got %v, want no effect", err)
	}
	if c := b.mustClaim(b.others, ""); c.Attempt != 1 {
		t.Errorf("got %+v", c)
	}
}

func TestEngineWithoutOldItems(t *testing.T) {
	b := newBench(t)
	b.wire.HideOldItems = true
	b.mustClaim(b.records, "")
	if _, err := b.claim(b.records, ""); err == nil {
		t.Error("a key in flight was claimed")
	}
	b.sent("in flight", "UpdateItem", "UpdateItem", "GetItem")
}

// What a later version wrote is left alone.
func TestUnknownFormat(t *testing.T) {
	b := newBench(t)
	e := engine.DynamoDB(t)
	client, prefix := e.Client(), e.Prefix(t)
	m := idempotency.New(open(t, client, prefix), idempotency.Options{})
	table := keytype.Idempotency.TableName(prefix)
	if _, err := dynamo.Update(t.Context(), client, dynamo.Change{
		Table: table, Key: dynamo.Item{"pk": dynamo.S(keytype.Idempotency.Key("t", "", "k"))}, Format: 2,
		Set: "#x = :x", Condition: "attribute_not_exists(#x)", Values: dynamo.Item{":x": dynamo.N(1)},
	}); err != nil {
		t.Fatal(err)
	}
	if c, err := b.claim(m, ""); err == nil {
		t.Errorf("got %+v", c)
	}
}
