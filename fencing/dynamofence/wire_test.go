package dynamofence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/fencingtest"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
)

// A bench is a manager whose requests go over a wire, and one beside it, of
// another caller, whose requests do not.
type bench struct {
	*testing.T
	wire   *dynamotest.Wire
	fences *fencing.Manager
	others *fencing.Manager
}

func newBench(t *testing.T) *bench {
	e := engine.DynamoDB(t)
	b := &bench{T: t, wire: &dynamotest.Wire{}}
	prefix := e.Prefix(t)
	b.others = fencing.New(open(t, e.Client(), prefix))
	b.fences = fencing.New(open(t, e.Client(b.wire.Option), prefix))
	b.wire.Take()
	return b
}

// write shows the answer, or the error.
func (b *bench) write(m *fencing.Manager, token fencing.Token, sequence int64, value string) string {
	r, err := m.Write(b.Context(), "t", "r", "k", fencing.WriteRequest{
		Position: fencing.Position{Token: token, Sequence: sequence}, Mode: fencing.HighWater, Value: []byte(value),
	})
	return describe(r, err)
}

func (b *bench) read() string { return describe(b.others.Read(b.Context(), "t", "r", "k")) }

func describe(r fencing.Record, err error) string {
	stale, isStale := errors.AsType[*fencing.StaleError](err)
	switch {
	case errors.Is(err, keytype.ErrOutcomeUnknown):
		return "unknown"
	case errors.Is(err, keytype.ErrUnavailable):
		return "unavailable"
	case isStale:
		return fmt.Sprintf("stale, %d/%d", stale.HighWater.Token, stale.HighWater.Sequence)
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("v%d at %d/%d %s", r.Version, r.Token, r.Sequence, r.Value)
}

// A step says what the caller does, what it is told, which requests that takes and why.
type step struct {
	why    string
	do     func(*bench) string
	want   string
	writes int
	reads  int
}

func write(token fencing.Token, sequence int64, value string) func(*bench) string {
	return func(b *bench) string { return b.write(b.fences, token, sequence, value) }
}

// losing drops the replies of the next n writes and lets others write after the first of them.
func losing(n int, between, do func(*bench) string) func(*bench) string {
	return func(b *bench) string {
		b.wire.LoseReplies(n, func() {
			if between == nil {
				return
			}
			if got := between(b); got[0] != 'v' {
				b.Errorf("others: %s", got)
			}
		})
		return do(b)
	}
}

// held lets others write ahead of the nth write.
func held(n int, before, do func(*bench) string) func(*bench) string {
	return func(b *bench) string {
		b.wire.BeforeWrite(n, func() {
			if got := before(b); got[0] != 'v' {
				b.Errorf("others: %s", got)
			}
		})
		return do(b)
	}
}

func others(token fencing.Token, sequence int64, value string) func(*bench) string {
	return func(b *bench) string { return b.write(b.others, token, sequence, value) }
}

func read(b *bench) string { return b.read() }

func (b *bench) run(steps []step) {
	b.Helper()
	for _, s := range steps {
		if got := s.do(b); got != s.want {
			b.Errorf("%s: got %s, want %s", s.why, got, s.want)
		}
		sent := map[string]int{}
		for _, r := range b.wire.Take() {
			sent[r.Operation]++
		}
		if sent["UpdateItem"] != s.writes || sent["GetItem"] != s.reads {
			b.Errorf("%s: sent %v, want %d writes and %d reads", s.why, sent, s.writes, s.reads)
		}
	}
}

func TestRequestsPerWrite(t *testing.T) {
	newBench(t).run([]step{
		{"the first, with a sequence", write(5, 1, "1"), "v1 at 5/1 1", 1, 0},
		{"the same token", write(5, 0, "2"), "v2 at 5/2 2", 1, 0},
		{"with a sequence", write(5, 3, "3"), "v3 at 5/3 3", 1, 0},
		{"repeated", write(5, 3, "3"), "v3 at 5/3 3", 1, 0},
		{"stale", write(4, 0, "4"), "stale, 5/3", 1, 0},
		{"a larger token: not what is tried first", write(6, 0, "4"), "v4 at 6/1 4", 2, 0},
	})
	newBench(t).run([]step{
		{"the first, without a sequence: looks whether there is none", write(5, 0, "1"), "v1 at 5/1 1", 2, 1},
	})
}

func TestL5LostReplyOfWrite(t *testing.T) {
	newBench(t).run([]step{
		{"the first, with a sequence", losing(1, nil, write(5, 1, "1")), "v1 at 5/1 1", 2, 0},
		{"with a sequence", losing(1, nil, write(5, 2, "2")), "v2 at 5/2 2", 2, 0},
		{"without one it is not sent again: a read finds it", losing(1, nil, write(5, 0, "3")), "v3 at 5/3 3", 1, 1},
		{"a larger token with a sequence", losing(1, nil, write(6, 1, "4")), "v4 at 6/1 4", 2, 0},
		{"stored once each", read, "v4 at 6/1 4", 0, 0},
		{"all replies lost", losing(3, nil, write(6, 2, "5")), "unknown", 3, 0},
		{"the caller's retry", write(6, 2, "5"), "v5 at 6/2 5", 1, 0},
		{"throttled", func(b *bench) string { b.wire.Refuse(1); return b.write(b.fences, 6, 0, "6") }, "v6 at 6/3 6", 2, 0},
		{"throttled for ever", func(b *bench) string { b.wire.Refuse(3); return b.write(b.fences, 6, 0, "7") }, "unavailable", 3, 0},
		{"nothing came of that", read, "v6 at 6/3 6", 0, 0},
	})
	newBench(t).run([]step{
		{"the first, without a sequence: what found none is lost", losing(1, nil, write(5, 0, "1")), "unknown", 1, 1},
		{"so it was not written", read, "fencing: nothing was written here", 0, 0},
	})
}

// A try came through, its answer was lost, and others wrote before the next one.
// Sent blindly, the write would be done twice or called refused.
func TestL53OvertakenWrite(t *testing.T) {
	newBench(t).run([]step{
		{"the first", write(5, 0, "1"), "v1 at 5/1 1", 2, 1},
		{"overtaken by the same token", losing(1, others(5, 0, "70"), write(5, 0, "2")), "unknown", 1, 1},
		{"is not done twice", read, "v3 at 5/3 70", 0, 0},
		{"overtaken by a larger sequence", losing(1, others(5, 9, "80"), write(5, 4, "3")), "unknown", 2, 0},
		{"overtaken by a larger token", losing(1, others(6, 1, "90"), write(5, 10, "4")), "unknown", 2, 0},
		{"each was done once", read, "v7 at 6/1 90", 0, 0},
		{"overtaken by its own repetition", losing(1, others(6, 2, "5"), write(6, 2, "5")), "v8 at 6/2 5", 2, 0},
	})
}

// What a failed condition has shown may be out of date when the next request comes.
func TestOthersBetweenTwoRequests(t *testing.T) {
	newBench(t).run([]step{
		{"the first is not the first any more", held(2, others(5, 0, "70"), write(5, 0, "1")), "v2 at 5/2 1", 3, 1},
		{"the larger token is there already", held(2, others(6, 0, "80"), write(6, 0, "2")), "v4 at 6/2 2", 3, 0},
		{"then others do not hold it up any more", held(2, others(7, 0, "80"), held(3, others(7, 0, "81"), write(7, 0, "3"))), "v7 at 7/3 3", 3, 0},
		{"a larger one still", held(2, others(9, 0, "90"), write(8, 0, "4")), "stale, 9/1", 2, 0},
	})
}

// Plain attribute names meet reserved words sooner or later.
func TestL35EveryNameIsAliased(t *testing.T) {
	e := engine.DynamoDB(t)
	wire := &dynamotest.Wire{}
	fencingtest.Cases(t, func(t *testing.T) fencing.Store { return open(t, e.Client(wire.Option), e.Prefix(t)) })
	writes := 0
	for _, r := range wire.Take() {
		if bare := r.BareNames(); bare != nil {
			t.Fatalf("%s: %v", r.Operation, bare)
		}
		if r.Operation == "UpdateItem" {
			writes++
		}
	}
	if writes == 0 {
		t.Error("looked at no write")
	}
}

// The same holds on an engine that does not return the old item.
func TestEngineWithoutOldItems(t *testing.T) {
	e := engine.DynamoDB(t)
	wire := &dynamotest.Wire{HideOldItems: true}
	fencingtest.Cases(t, func(t *testing.T) fencing.Store { return open(t, e.Client(wire.Option), e.Prefix(t)) })
}
