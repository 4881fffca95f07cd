package dynamolease_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

// A bench is a manager whose requests go over a wire, and one beside it, of
// another caller, whose requests do not.
type bench struct {
	*testing.T
	wire   *dynamotest.Wire
	leases *lease.Manager
	others *lease.Manager
	fences *fencing.Manager // over the wire too
	outer  *fencing.Manager // of the other caller
	now    time.Time
}

func newBench(t *testing.T) *bench {
	e := engine.DynamoDB(t)
	b := &bench{T: t, wire: &dynamotest.Wire{}, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	prefix := e.Prefix(t)
	direct := open(t, e.Client(), prefix)
	wired := open(t, e.Client(b.wire.Option), prefix)
	options := lease.Options{Now: func() time.Time { return b.now }}
	b.leases, b.others, b.fences = lease.New(wired.Leases, options), lease.New(direct.Leases, options), fencing.New(wired.Fences)
	b.outer = fencing.New(direct.Fences)
	for _, s := range []leasetest.Stores{direct, wired} { // they know the floor
		if _, err := s.Leases.RaiseFloor(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	b.wire.Take()
	return b
}

func (b *bench) acquire(m *lease.Manager, owner, requestID string) (lease.Grant, error) {
	return m.Acquire(b.Context(), "t", "r", lease.AcquireRequest{Owner: owner, RequestID: requestID, TTL: time.Second})
}

func (b *bench) mustAcquire(m *lease.Manager, owner, requestID string) lease.Grant {
	b.Helper()
	g, err := b.acquire(m, owner, requestID)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func (b *bench) mustRelease(m *lease.Manager, g lease.Grant) {
	b.Helper()
	if err := m.Release(b.Context(), "t", "r", holder(g)); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) state() lease.Lease {
	b.Helper()
	l, err := b.others.Get(b.Context(), "t", "r")
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// sent demands which requests went over the wire since it was last called.
func (b *bench) sent(why string, want ...string) {
	b.Helper()
	requests := b.wire.Take()
	same := len(requests) == len(want)
	for i := range requests {
		same = same && requests[i].Operation == want[i]
	}
	if !same {
		var got []string
		for _, r := range requests {
			got = append(got, r.Operation)
		}
		b.Errorf("%s: sent %v, want %v", why, got, want)
	}
}

func holder(g lease.Grant) lease.Holder { return lease.Holder{ID: g.ID, Token: g.Token} }

func TestOneRequestPerOperation(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "q")
	b.sent("acquire", "UpdateItem")
	b.mustAcquire(b.leases, "a", "q")
	b.sent("acquire repeated", "UpdateItem")
	if _, err := b.acquire(b.leases, "b", ""); err == nil {
		t.Error("a held resource was granted")
	}
	b.sent("contended acquire", "UpdateItem")
	if _, err := b.leases.Renew(t.Context(), "t", "r", holder(g), 2*time.Second); err != nil {
		t.Error(err)
	}
	if renewal := b.wire.Take(); len(renewal) != 1 || strings.Contains(fmt.Sprint(renewal[0].Body), "owner_key") {
		t.Errorf("renew: sent %v, which may not touch the index", renewal)
	}
	if _, err := b.leases.Renew(t.Context(), "t", "r", holder(g), time.Second); err != nil {
		t.Error(err)
	}
	b.sent("renew for less", "UpdateItem")
	b.mustRelease(b.leases, g)
	b.sent("release", "UpdateItem")
	b.mustRelease(b.leases, g)
	b.sent("release again", "UpdateItem")
	if _, err := b.leases.Renew(t.Context(), "t", "r", holder(g), time.Second); !errors.Is(err, lease.ErrLost) {
		t.Error(err)
	}
	b.sent("renew of a released grant", "UpdateItem")
	if _, err := b.leases.Get(t.Context(), "t", "r"); err != nil {
		t.Error(err)
	}
	b.sent("get", "GetItem")
	if page, err := b.leases.List(t.Context(), "t", "a", "", 0); err != nil || page.Leases != nil {
		t.Errorf("listed %+v, %v", page, err)
	}
	b.sent("list of none", "Query")
	for range 2 {
		if _, err := b.fences.Admit(t.Context(), "t", "r", fencing.Position{Token: g.Token}); err != nil {
			t.Error(err)
		}
		b.sent("admit", "UpdateItem")
	}
	if _, err := b.fences.Admit(t.Context(), "t", "r", fencing.Position{Token: g.Token + 1}); !errors.Is(err, fencing.ErrNotGranted) {
		t.Error(err)
	}
	b.sent("admit refused", "UpdateItem")
}

func TestRequestsPerSet(t *testing.T) {
	b := newBench(t)
	acquire := func(owner string, resources ...string) ([]lease.HeldLease, error) {
		grants, err := b.leases.AcquireSet(t.Context(), "t", resources, lease.AcquireRequest{Owner: owner, RequestID: "q", TTL: time.Second})
		var held []lease.HeldLease
		for _, g := range grants {
			held = append(held, lease.HeldLease{Resource: g.Resource, Holder: holder(g)})
		}
		return held, err
	}
	mine, err := acquire("a", "x", "y")
	if err != nil {
		t.Fatal(err)
	}
	b.sent("acquire", "BatchGetItem", "TransactWriteItems")
	if _, err := acquire("a", "x", "y"); err != nil {
		t.Error(err)
	}
	b.sent("repeated", "BatchGetItem")
	if _, err := acquire("b", "y", "z"); err == nil {
		t.Error("a held resource was granted")
	}
	b.sent("contended", "BatchGetItem")
	b.wire.LoseReplies(1, nil)
	if _, err := b.leases.RenewSet(t.Context(), "t", mine, time.Minute); err != nil {
		t.Error(err)
	}
	b.sent("renew, a lost reply", "BatchGetItem", "TransactWriteItems", "TransactWriteItems")
	b.wire.Cancel("None", "TransactionConflict")
	if err := b.leases.ReleaseSet(t.Context(), "t", mine); err != nil {
		t.Error(err)
	}
	b.sent("release, a conflict", "BatchGetItem", "TransactWriteItems", "TransactWriteItems")
	b.wire.BeforeWrite(1, func() { b.mustAcquireAt(b.others, "y") })
	if _, err := acquire("c", "x", "y"); err == nil {
		t.Error("what another was granted meanwhile was granted")
	}
	b.sent("another comes between", "BatchGetItem", "TransactWriteItems")
}

// A set is stored only where its items are as they were read.
func TestOthersBetweenTheTwoRequestsOfASet(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "")
	mine := []lease.HeldLease{{Resource: "r", Holder: holder(g)}}
	b.wire.BeforeWrite(1, func() {
		if _, err := b.others.Renew(t.Context(), "t", "r", holder(g), time.Hour); err != nil {
			t.Error(err)
		}
	})
	if renewed, err := b.leases.RenewSet(t.Context(), "t", mine, time.Minute); err != nil || renewed[0].ExpiresAt.Sub(g.AcquiredAt) != time.Hour {
		t.Errorf("a longer renewal between was set back: %+v, %v", renewed, err)
	}
	b.wire.BeforeWrite(1, func() { b.mustRelease(b.others, g) })
	if _, err := b.leases.RenewSet(t.Context(), "t", mine, 2*time.Hour); !errors.Is(err, lease.ErrLost) {
		t.Errorf("a release between was undone: %v", err)
	}
	if b.state().Held {
		t.Error("it is held again")
	}
}

func (b *bench) mustAcquireAt(m *lease.Manager, resource string) {
	b.Helper()
	if _, err := m.Acquire(b.Context(), "t", resource, lease.AcquireRequest{Owner: "other", TTL: time.Minute}); err != nil {
		b.Error(err)
	}
}

func TestMoreRequestsWhereOneCannotSay(t *testing.T) {
	b := newBench(t)
	if _, err := b.fences.Admit(t.Context(), "t", "r", fencing.Position{Token: 41}); err != nil {
		t.Fatal(err)
	}
	b.wire.Take()
	g := b.mustAcquire(b.leases, "a", "")
	b.sent("first grant after a mark", "UpdateItem", "UpdateItem")
	if g.Token != 42 {
		t.Errorf("token %d after mark 41", g.Token)
	}
	b.mustRelease(b.leases, g)
	g, err := b.leases.Acquire(t.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second, MaxHold: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	b.wire.Take()
	if g, err = b.leases.Renew(t.Context(), "t", "r", holder(g), time.Minute); err != nil || g.ValidFor != 2*time.Second {
		t.Errorf("renewal beyond the most it may be held: for %v, %v", g.ValidFor, err)
	}
	b.sent("renewal beyond the most it may be held", "UpdateItem", "UpdateItem")
	if err := b.leases.Release(t.Context(), "t", "none", holder(g)); !errors.Is(err, lease.ErrLost) {
		t.Error(err)
	}
	b.sent("no item, or an engine that returns none", "UpdateItem", "GetItem")
}

// Without a request id it is the lease id, new with every call, that tells an
// acquire its own earlier try.
func TestL5LostReplyOfAcquire(t *testing.T) {
	for name, requestID := range map[string]string{"with a request id": "q", "without": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.wire.LoseReplies(1, nil)
			g := b.mustAcquire(b.leases, "a", requestID)
			b.sent("a lost reply", "UpdateItem", "UpdateItem")
			if g.Token != 1 || !g.Held || g.ValidFor != time.Second {
				t.Errorf("got %+v, want the first grant", g)
			}
			b.mustRelease(b.leases, g)
			if next := b.mustAcquire(b.others, "b", ""); next.Token != 2 {
				t.Errorf("the next grant has token %d: the retry took another one", next.Token)
			}
		})
	}
}

func TestL5AllRepliesOfAcquireLost(t *testing.T) {
	b := newBench(t)
	b.wire.LoseReplies(3, nil)
	if _, err := b.acquire(b.leases, "a", "q"); !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
		t.Fatalf("got %v, want that the outcome is unknown", err)
	}
	b.sent("all replies lost", "UpdateItem", "UpdateItem", "UpdateItem")
	b.now = b.now.Add(300 * time.Millisecond)
	if g := b.mustAcquire(b.leases, "a", "q"); g.Token != 1 || g.ValidFor != 700*time.Millisecond {
		t.Errorf("the caller's retry got %+v, want the first grant", g)
	}
}

func TestL10L11LostReplyOfRenew(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "q")
	b.wire.Take()
	b.now = b.now.Add(500 * time.Millisecond)
	b.wire.LoseReplies(1, nil)
	renewed, err := b.leases.Renew(t.Context(), "t", "r", holder(g), time.Second)
	if err != nil || renewed.ValidFor != time.Second || renewed.Token != g.Token || renewed.ID != g.ID {
		t.Errorf("got %+v, %v", renewed, err)
	}
	b.sent("a lost reply", "UpdateItem", "UpdateItem")
	if l := b.state(); !l.Held || !l.ExpiresAt.Equal(b.now.Add(time.Second)) {
		t.Errorf("stored %+v", l)
	}
}

func TestLostReplyOfRelease(t *testing.T) {
	b := newBench(t)
	g := b.mustAcquire(b.leases, "a", "q")
	b.wire.Take()
	b.wire.LoseReplies(1, nil)
	b.mustRelease(b.leases, g)
	b.sent("a lost reply", "UpdateItem", "UpdateItem")
	if l := b.state(); l.Held || l.Token != g.Token {
		t.Errorf("stored %+v", l)
	}
}

// The first try came through and its answer was lost; before the second one
// others have moved on. "Lost" and "held" would say that nothing happened.
func TestL53RefusalAfterALostReply(t *testing.T) {
	cases := map[string]func(*bench) error{
		"release, then another grant": func(b *bench) error {
			g := b.mustAcquire(b.leases, "a", "")
			b.wire.LoseReplies(1, func() { b.mustAcquire(b.others, "b", "") })
			return b.leases.Release(b.Context(), "t", "r", holder(g))
		},
		"renew, then release": func(b *bench) error {
			g := b.mustAcquire(b.leases, "a", "")
			b.wire.LoseReplies(1, func() { b.mustRelease(b.others, g) })
			_, err := b.leases.Renew(b.Context(), "t", "r", holder(g), time.Minute)
			return err
		},
		"acquire, then expiry and another grant": func(b *bench) error {
			b.wire.LoseReplies(1, func() {
				b.now = b.now.Add(time.Minute)
				b.mustAcquire(b.others, "b", "")
			})
			_, err := b.acquire(b.leases, "a", "q")
			return err
		},
		"admit, then a larger token": func(b *bench) error {
			b.wire.LoseReplies(1, func() { b.raise(2) })
			_, err := b.fences.Admit(b.Context(), "t", "r", fencing.Position{Token: 1})
			return err
		},
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if err := do(b); !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
				t.Errorf("got %v, want that the outcome is unknown", err)
			}
		})
	}
}

// raise has the other caller admit a token.
func (b *bench) raise(token fencing.Token) {
	b.Helper()
	if _, err := b.outer.Admit(b.Context(), "t", "r", fencing.Position{Token: token}); err != nil {
		b.Fatal(err)
	}
}

// What a failed condition has shown may be out of date when the next request comes.
func TestOthersBetweenTwoRequests(t *testing.T) {
	first := func(t *testing.T, others func(*bench)) (*bench, lease.Grant, error) {
		b := newBench(t)
		b.raise(41)
		b.wire.BeforeWrite(2, func() { others(b) })
		g, err := b.acquire(b.leases, "a", "")
		return b, g, err
	}
	t.Run("the mark rises", func(t *testing.T) {
		b, g, err := first(t, func(b *bench) { b.raise(50) })
		if err != nil || g.Token != 51 {
			t.Errorf("token %d after mark 50, %v", g.Token, err)
		}
		b.sent("the mark rose", "UpdateItem", "UpdateItem", "UpdateItem")
	})
	t.Run("another grant comes and goes", func(t *testing.T) {
		b, g, err := first(t, func(b *bench) { b.mustRelease(b.others, b.mustAcquire(b.others, "b", "")) })
		if err != nil || g.Token != 43 {
			t.Errorf("token %d after token 42, %v", g.Token, err)
		}
		b.sent("another grant", "UpdateItem", "UpdateItem", "UpdateItem")
	})
	t.Run("another grant stays", func(t *testing.T) {
		b, _, err := first(t, func(b *bench) { b.mustAcquire(b.others, "b", "") })
		if _, held := errors.AsType[*lease.HeldError](err); !held {
			t.Error(err)
		}
		b.sent("another grant", "UpdateItem", "UpdateItem")
	})
	t.Run("released before a renewal to the most", func(t *testing.T) {
		b := newBench(t)
		g, err := b.leases.Acquire(t.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second, MaxHold: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b.wire.BeforeWrite(2, func() { b.mustRelease(b.others, g) })
		if _, err := b.leases.Renew(t.Context(), "t", "r", holder(g), time.Minute); !errors.Is(err, lease.ErrLost) {
			t.Error(err)
		}
	})
}

// Where an item is in the format of a later version nothing is done to it, which every
// operation is sure of.
func TestItemsOfALaterFormat(t *testing.T) {
	b := newBench(t)
	e := engine.DynamoDB(t)
	prefix := e.Prefix(t)
	stores := open(t, e.Client(), prefix)
	leases, fences := lease.New(stores.Leases, lease.Options{}), fencing.New(stores.Fences)
	for _, item := range []struct{ table, pk string }{
		{keytype.Lease.TableName(prefix), keytype.Lease.Key("t", "r")},
		{keytype.ProtectedRecord.TableName(prefix), keytype.ProtectedRecord.Key("t", "r", "k")},
	} {
		if _, err := e.Client().PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &item.table, Item: dynamo.Item{"pk": dynamo.S(item.pk), "v": dynamo.N(2)}}); err != nil {
			t.Fatal(err)
		}
	}
	h := lease.Holder{ID: "lse_x", Token: 1}
	at := fencing.Position{Token: 1}
	for name, do := range map[string]func() error{
		"acquire": func() error { _, err := b.acquire(leases, "a", ""); return err },
		"acquire a set": func() error {
			_, err := leases.AcquireSet(t.Context(), "t", []string{"r"}, lease.AcquireRequest{Owner: "a", TTL: time.Second})
			return err
		},
		"renew":   func() error { _, err := leases.Renew(t.Context(), "t", "r", h, time.Second); return err },
		"release": func() error { return leases.Release(t.Context(), "t", "r", h) },
		"force":   func() error { _, err := leases.ForceRelease(t.Context(), "t", "r", 1, ""); return err },
		"get":     func() error { _, err := leases.Get(t.Context(), "t", "r"); return err },
		"admit":   func() error { _, err := fences.Admit(t.Context(), "t", "r", at); return err },
		"reset":   func() error { _, err := fences.ResetMark(t.Context(), "t", "r", 1); return err },
		"write": func() error {
			_, err := fences.Write(t.Context(), "t", "r", "k", fencing.WriteRequest{Position: at, Mode: fencing.HighWater, Value: []byte("1")})
			return err
		},
		"write under a lease": func() error {
			_, err := fences.Write(t.Context(), "t", "r", "k", fencing.WriteRequest{Position: at, LeaseID: "lse_x", Value: []byte("1")})
			return err
		},
		"reset a record": func() error { _, err := fences.ResetRecord(t.Context(), "t", "r", "k", 1); return err },
	} {
		if err := do(); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestL32ThrottledWritesHaveNoEffect(t *testing.T) {
	b := newBench(t)
	b.wire.Refuse(1)
	g := b.mustAcquire(b.leases, "a", "")
	b.sent("throttled once", "UpdateItem", "UpdateItem")
	b.wire.Refuse(3)
	if err := b.leases.Release(t.Context(), "t", "r", holder(g)); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("throttled for ever: %v", err)
	}
	if l := b.state(); !l.Held {
		t.Errorf("stored %+v", l)
	}
}

// Plain attribute names meet reserved words sooner or later.
func TestL35EveryNameIsAliased(t *testing.T) {
	e := engine.DynamoDB(t)
	wire := &dynamotest.Wire{}
	leasetest.Cases(t, func(t *testing.T) leasetest.Stores { return open(t, e.Client(wire.Option), e.Prefix(t)) })
	seen := map[string]int{}
	for _, r := range wire.Take() {
		seen[r.Operation]++
		if bare := r.BareNames(); bare != nil {
			t.Fatalf("%s: %v", r.Operation, bare)
		}
	}
	if seen["UpdateItem"] == 0 || seen["GetItem"] == 0 || seen["TransactWriteItems"] == 0 {
		t.Errorf("looked at %v", seen)
	}
}

// The same holds on an engine that does not return the old item.
func TestEngineWithoutOldItems(t *testing.T) {
	e := engine.DynamoDB(t)
	wire := &dynamotest.Wire{HideOldItems: true}
	leasetest.Cases(t, func(t *testing.T) leasetest.Stores { return open(t, e.Client(wire.Option), e.Prefix(t)) })
	reads := 0
	for _, r := range wire.Take() {
		if r.Operation == "GetItem" {
			reads++
		}
	}
	if reads < 40 {
		t.Errorf("only %d reads: the old items were not hidden", reads)
	}
}
