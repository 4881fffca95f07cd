package leasetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// sets checks that what concerns several resources happens to all or to none.
func sets(t *testing.T, s Stores) {
	now := start
	m := lease.New(s.Leases, lease.Options{Now: func() time.Time { return now }})
	acquire := func(owner, requestID string, resources ...string) ([]lease.Grant, error) {
		return m.AcquireSet(t.Context(), "t", resources, lease.AcquireRequest{Owner: owner, RequestID: requestID, TTL: time.Second})
	}
	who := func(resources ...string) string {
		text := ""
		for _, r := range resources {
			l, err := m.Get(t.Context(), "t", r)
			switch {
			case err != nil:
				text += "- "
			case l.Held:
				text += fmt.Sprintf("%s%d ", l.Owner, l.Token)
			default:
				text += fmt.Sprintf("free%d ", l.Token)
			}
		}
		return text
	}
	want := func(why, want string, resources ...string) {
		t.Helper()
		if got := who(resources...); got != want {
			t.Errorf("%s: got %q, want %q", why, got, want)
		}
	}
	refused := func(why string, err, refusal error) {
		t.Helper()
		_, gotHeld := errors.AsType[*lease.HeldError](err)
		_, wantHeld := errors.AsType[*lease.HeldError](refusal)
		if gotHeld != wantHeld || !wantHeld && !errors.Is(err, refusal) {
			t.Errorf("%s: got %v, want %v", why, err, refusal)
		}
	}

	if _, err := s.Fences.Admit(t.Context(), "t", "b", fencing.Position{Token: 41}); err != nil {
		t.Fatal(err)
	}
	grants, err := acquire("x", "q", "b", "a")
	if err != nil || len(grants) != 2 || grants[0].Resource != "b" || grants[0].Token != 42 || grants[1].Token != 1 || grants[0].ID == grants[1].ID || !grants[1].Held {
		t.Fatalf("got %+v, %v", grants, err)
	}
	want("all are granted", "x1 x42 ", "a", "b")
	again, err := acquire("x", "q", "b", "a")
	if err != nil || !slices.Equal(grants, again) {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	now = now.Add(100 * time.Millisecond)
	_, err = acquire("y", "", "c", "a", "d")
	refused("one of them is held", err, &lease.HeldError{})
	want("so none is granted", "x1 x42 - - ", "a", "b", "c", "d")

	held := func(g lease.Grant) lease.HeldLease { return lease.HeldLease{Resource: g.Resource, Holder: holder(g)} }
	both := []lease.HeldLease{held(grants[0]), held(grants[1])}
	renewed, err := m.RenewSet(t.Context(), "t", both, 10*time.Second)
	if err != nil || renewed[1].ValidFor != 10*time.Second || renewed[0].Token != 42 {
		t.Errorf("renewed: %+v, %v", renewed, err)
	}
	wrong := slices.Clone(both)
	wrong[1].ID = "lse_other"
	_, err = m.RenewSet(t.Context(), "t", wrong, 20*time.Second)
	refused("one of them is another's", err, lease.ErrLost)
	refused("neither does a release", m.ReleaseSet(t.Context(), "t", wrong), lease.ErrLost)
	want("nothing happened", "x1 x42 ", "a", "b")
	if l, err := m.Get(t.Context(), "t", "b"); err != nil || !l.ExpiresAt.Equal(renewed[0].ExpiresAt) {
		t.Errorf("nothing happened: %+v, %v", l, err)
	}
	for range 2 { // again is no error
		if err := m.ReleaseSet(t.Context(), "t", both); err != nil {
			t.Error(err)
		}
	}
	want("both are free", "free1 free42 ", "a", "b")
	_, err = acquire("x", "q", "b", "a")
	refused("the request has had its grants", err, lease.ErrRequestExpired)
	if _, err := acquire("y", "", "a", "c", "b"); err != nil {
		t.Error(err)
	}
	want("all are granted", "y2 y43 y1 ", "a", "b", "c")
	grants, err = acquire("m", "p", "m1", "m2")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := acquire("m", "p", "m2", "m1"); err != nil || again[0] != grants[1] || again[1] != grants[0] {
		t.Errorf("repeated in another order: %+v, %v", again, err)
	}
	for _, others := range [][]string{{"m1"}, {"m1", "m3"}, {"m3", "m1", "m2"}, {"m3", "m2"}} {
		_, err = acquire("m", "p", others...)
		refused(fmt.Sprint("the request id with ", others), err, lease.ErrMismatch)
	}
	if _, err := m.Acquire(t.Context(), "t", "m4", lease.AcquireRequest{Owner: "m", RequestID: "s", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	_, err = acquire("m", "s", "m3", "m4")
	refused("the request id of a grant by itself", err, lease.ErrMismatch)
	want("nothing happened", "m1 m1 - m1 ", "m1", "m2", "m3", "m4")
	if _, err := m.ForceRelease(t.Context(), "t", "m2", grants[1].Token, ""); err != nil {
		t.Fatal(err)
	}
	_, err = acquire("m", "p", "m1", "m2")
	refused("a part of the set has ended", err, lease.ErrRequestExpired)
	other, err := acquire("n", "", "m2")
	if err != nil {
		t.Fatal(err)
	}
	_, err = acquire("m", "p", "m1", "m2")
	refused("and is another's: waiting is in vain", err, lease.ErrRequestExpired)
	if err := m.ReleaseSet(t.Context(), "t", []lease.HeldLease{held(other[0])}); err != nil {
		t.Fatal(err)
	}
	_, err = acquire("m", "p", "m1", "m2")
	refused("and is free", err, lease.ErrRequestExpired)
	want("nothing happened", "m1 free3 ", "m1", "m2")
	if err := m.ReleaseSet(t.Context(), "t", []lease.HeldLease{held(grants[0])}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire(t.Context(), "t", "m1", lease.AcquireRequest{Owner: "m", RequestID: "p3", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	_, err = acquire("m", "p3", "m1", "m2")
	refused("granted by itself since", err, lease.ErrMismatch)
	hundred := make([]string, lease.MaxSet)
	for i := range hundred {
		hundred[i] = fmt.Sprint("r", i)
	}
	if grants, err := acquire("z", "", hundred...); err != nil || len(grants) != lease.MaxSet {
		t.Errorf("a hundred: %d, %v", len(grants), err)
	}
}

func holder(g lease.Grant) lease.Holder { return lease.Holder{ID: g.ID, Token: g.Token} }

// raceSets has callers ask for overlapping sets in opposite orders: whoever wins has
// both resources, and nobody waits for another.
func raceSets(t *testing.T, s Stores) {
	const rounds, racers = 10, 8
	m := lease.New(s.Leases, lease.Options{})
	for round := range rounds {
		var mu sync.Mutex // guards won
		var won [][]lease.Grant
		var done sync.WaitGroup
		for i := range racers {
			done.Go(func() {
				resources := []string{"a", "b", "c"}
				if i%2 == 1 {
					slices.Reverse(resources)
				}
				grants, err := m.AcquireSet(t.Context(), "t", resources, lease.AcquireRequest{Owner: fmt.Sprint(i), TTL: time.Minute})
				if _, held := errors.AsType[*lease.HeldError](err); err != nil && !held {
					t.Error(err)
				}
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					won = append(won, grants)
				}
			})
		}
		done.Wait()
		if len(won) != 1 {
			t.Fatalf("round %d: %d sets were granted", round, len(won))
		}
		var all []lease.HeldLease
		for _, g := range won[0] {
			if g.Token != fencing.Token(round+1) {
				t.Errorf("round %d: token %d", round, g.Token)
			}
			all = append(all, lease.HeldLease{Resource: g.Resource, Holder: holder(g)})
		}
		if err := m.ReleaseSet(t.Context(), "t", all); err != nil {
			t.Error(err)
		}
	}
}
