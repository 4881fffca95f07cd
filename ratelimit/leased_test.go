package ratelimit_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// leased makes a policy of limits with units that do not come back soon.
func leased(limits ...ratelimit.Limit) ratelimit.Policy {
	p := policy(limits...)
	p.Mode, p.MaxOvershoot, p.Posture = ratelimit.Leased, 100, ratelimit.FailClosed
	return p
}

// A leaser is a limiter that leases, over a store that may fall ill, in a bubble of time.
type leaser struct {
	*ratelimit.Limiter
	t     *testing.T
	store *patient
	exact *ratelimit.Limiter // over the same store
}

func newLeaser(t *testing.T, p ratelimit.Policy) *leaser {
	l := &leaser{t: t, store: newPatient()}
	var err error
	if l.Limiter, err = ratelimit.New(l.store, []ratelimit.Policy{p}, ratelimit.Options{Leases: true, Fallback: ratelimit.NewLocal(openMemory(t))}); err != nil {
		t.Fatal(err)
	}
	p.Mode, p.MaxOvershoot = ratelimit.Exact, 0
	if l.exact, err = ratelimit.New(l.store, []ratelimit.Policy{p}, ratelimit.Options{}); err != nil {
		t.Fatal(err)
	}
	return l
}

var appUser = map[string]string{"app": "a", "user": "u"}

func (l *leaser) check(cost int64) ratelimit.Decision {
	l.t.Helper()
	d, err := l.Check(l.t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: appUser, Cost: cost})
	if err != nil {
		l.t.Fatal(err)
	}
	synctest.Wait()
	return d
}

// heat asks until it holds a batch, and reports how many units it spent.
func (l *leaser) heat() (spent int64) {
	l.t.Helper()
	for d := (ratelimit.Decision{}); d.Source != ratelimit.SourceTokenLease || l.LeasedUnits()["p"] == 0; spent++ {
		if d = l.check(1); !d.Allowed || spent > 20 {
			l.t.Fatalf("after %d: %+v", spent, d)
		}
	}
	return spent
}

// left is what the store has left under the first limit.
func (l *leaser) left() int64 {
	l.t.Helper()
	d, err := l.exact.Peek(l.t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: appUser, Cost: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	return d.Limits[0].Remaining
}

// A batch is charged to every limit at once, and what a lease decides says so.
func TestLeasedDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Hour, 200, "app", "user"), limit("app", 1, time.Hour, 100, "app"))
		p.Slot = []string{"app"}
		l := newLeaser(t, p)
		spent := l.heat()
		d := l.check(1)
		spent++
		held := l.LeasedUnits()["p"]
		if !d.Allowed || d.MaxOvershoot != 100 || d.Limits[0].Remaining != 200-spent || d.Limits[1].Remaining != 100-spent || d.Limits[1].Reset < 90*time.Minute {
			t.Errorf("after %d, with %d held: %+v", spent, held, d)
		}
		if l.left() != 200-spent-held {
			t.Errorf("%d are left, %d spent, %d held", l.left(), spent, held)
		}
		for l.check(1).Allowed {
			spent++
		}
		d = l.check(1)
		if spent != 100 || d.Source != ratelimit.SourceTokenLease || d.Limiting != "app" || d.RetryAfter < 55*time.Minute || d.RetryAfter > time.Hour {
			t.Errorf("refused after %d: %+v", spent, d)
		}
		if d := l.check(2); d.Allowed {
			t.Errorf("and more: %+v", d)
		}
	})
}

// What is decided exactly, whatever is held.
func TestWhatIsNotLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for why, c := range map[string]struct {
			change func(*ratelimit.Policy)
			req    ratelimit.Request
		}{
			"one with an id":            {func(*ratelimit.Policy) {}, ratelimit.Request{Cost: 1, RequestID: "r"}},
			"more than a node takes":    {func(*ratelimit.Policy) {}, ratelimit.Request{Cost: 11}},
			"a stage that refuses none": {func(p *ratelimit.Policy) { p.Stage = ratelimit.Shadow }, ratelimit.Request{Cost: 1}},
			"a limit of few units":      {func(p *ratelimit.Policy) { p.Limits[0].Burst = 19 }, ratelimit.Request{Cost: 1}},
			"an override of few": {func(p *ratelimit.Policy) {
				p.Limits[0].Overrides = []ratelimit.Override{{Match: map[string]string{"user": "x"}, Numbers: ratelimit.Numbers{Burst: 19}}}
			}, ratelimit.Request{Cost: 1}},
			"a limit that is soon full": {func(p *ratelimit.Policy) { p.Limits[0].Rate = ratelimit.Rate{Count: 204, Per: 99 * time.Millisecond} }, ratelimit.Request{Cost: 1}},
		} {
			p := leased(limit("user", 1, time.Hour, 204, "user"))
			c.change(&p)
			l := newLeaser(t, p)
			c.req.Policy, c.req.Descriptors = "p", appUser
			for range 10 {
				d, err := l.Check(t.Context(), "t", c.req)
				if err != nil || d.Source == ratelimit.SourceTokenLease || d.MaxOvershoot != 0 {
					t.Errorf("%s: %+v, %v", why, d, err)
				}
			}
		}
	})
}

// A refund and a reset on this node end what it holds, and what it was refused.
func TestRefundAndResetEndALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser(t, leased(limit("user", 1, time.Hour, 40, "user")))
		spent := l.heat()
		if _, err := l.Refund(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: appUser, Cost: 2}); err != nil {
			t.Fatal(err)
		}
		if l.LeasedUnits()["p"] != 0 || l.left() != 40-spent+2 {
			t.Errorf("after the refund %v are held and %d left, %d were spent", l.LeasedUnits(), l.left(), spent)
		}
		for l.check(1).Allowed {
		}
		if err := l.Reset(t.Context(), "t", "p", appUser); err != nil {
			t.Fatal(err)
		}
		if l.left() != 40 {
			t.Errorf("after the reset %d are left", l.left())
		}
		if d := l.check(1); !d.Allowed {
			t.Errorf("and then %+v", d)
		}
	})
}

// What was leased under other policies is not spent any more, and goes back to where it was taken.
func TestReplaceEndsALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Hour, 200, "user"))
		l := newLeaser(t, p)
		spent := l.heat()
		p.Limits[0].Burst, p.Mode, p.MaxOvershoot = 100, ratelimit.Exact, 0
		if err := l.Replace([]ratelimit.Policy{p}); err != nil {
			t.Fatal(err)
		}
		if d := l.check(1); d.Source == ratelimit.SourceTokenLease {
			t.Errorf("%+v", d)
		}
		if err := l.ReturnLeases(t.Context()); err != nil || l.left() != 200-spent-1 {
			t.Errorf("%d are left after %d, %v", l.left(), spent+1, err)
		}
	})
}

// What goes back after a limit was raised undoes nothing that was used under the new one.
func TestALeaseGoesBackUnderTheRuleOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Hour, 40, "user"))
		l := newLeaser(t, p)
		spent := l.heat()
		p.Limits[0].Burst, p.Mode, p.MaxOvershoot = 1000, ratelimit.Exact, 0
		for _, node := range []*ratelimit.Limiter{l.Limiter, l.exact} {
			if err := node.Replace([]ratelimit.Policy{p}); err != nil {
				t.Fatal(err)
			}
		}
		if d := l.check(900); !d.Allowed {
			t.Fatalf("%+v", d)
		}
		if err := l.ReturnLeases(t.Context()); err != nil || l.left() != 100-spent {
			t.Errorf("%d are left after %d, %v", l.left(), 900+spent, err)
		}
	})
}

// However small the batches that callers ask for, what counts them stays small.
func TestFewEntriesOfHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Second, 1_000_000, "user"))
		p.MaxOvershoot = 10_000
		l := newLeaser(t, p)
		for granted := 0; ; granted++ {
			got, err := l.Lease(t.Context(), "t", ratelimit.LeaseRequest{Policy: "p", Descriptors: appUser, Want: 1})
			if err != nil || granted > ratelimit.MaxEntries {
				t.Fatalf("after %d: %+v, %v", granted, got, err)
			}
			if got.Granted == 0 {
				break
			}
		}
		_, err := l.Lease(t.Context(), "t", ratelimit.LeaseRequest{Policy: "p", Descriptors: appUser, Want: 1, Held: 1})
		if wrong, ok := errors.AsType[*keytype.ValueError](err); !ok || wrong.Field != "held" {
			t.Errorf("held by nobody: %v", err)
		}
	})
}

// Who has returned what it held makes room for others.
func TestReturnMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Hour, 200, "user"))
		p.MaxOvershoot = 10
		l := newLeaser(t, p)
		l.heat()
		want := func(why string, all bool) {
			t.Helper()
			got, err := l.Lease(t.Context(), "t", ratelimit.LeaseRequest{Policy: "p", Descriptors: appUser, Want: 10, Holder: "h"})
			if err != nil || (got.Granted == 10) != all || got.MaxOvershoot != 10 {
				t.Errorf("%s: %+v, %v", why, got, err)
			}
		}
		want("while another holds some", false)
		if err := l.ReturnLeases(t.Context()); err != nil {
			t.Fatal(err)
		}
		want("then", true)
	})
}

// While the store fails what is held is spent, and then the policy's posture decides.
func TestR26LeasesAndPostures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := leased(limit("user", 1, time.Hour, 200, "user"))
		l := newLeaser(t, p)
		l.heat()
		l.store.falls(keytype.ErrUnavailable, 0)
		for range l.LeasedUnits()["p"] {
			if d := l.check(1); !d.Allowed || d.Degraded || d.Source != ratelimit.SourceTokenLease {
				t.Fatalf("%+v", d)
			}
		}
		_, err := l.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: appUser, Cost: 1})
		if _, ok := errors.AsType[*ratelimit.ClosedError](err); !ok {
			t.Errorf("closed: %v", err)
		}
		p.Posture = ratelimit.FailOpen
		if err := l.Replace([]ratelimit.Policy{p}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if d := l.check(1); !d.Allowed || d.Source != ratelimit.SourceFailOpen || !d.Degraded {
				t.Errorf("open: %+v", d)
			}
		}
		l.store.falls(nil, 0)
		l.heat()
	})
}

// A request that comes as one part is decided as a check is.
func TestLeasedParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser(t, leased(limit("user", 1, time.Hour, 200, "user")))
		l.heat()
		one := ratelimit.Part{Descriptors: map[string]string{"user": "u"}, Cost: 1}
		d, states, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{one})
		if err != nil || d.Source != ratelimit.SourceTokenLease || len(states) != 1 || !states[0].Allowed || states[0].Limits[0].Name != "user" {
			t.Errorf("%+v, %+v, %v", d, states, err)
		}
		other := one
		other.Rate = &ratelimit.Rate{Count: 5, Per: time.Second}
		for _, parts := range [][]ratelimit.Part{{one, one}, {other}} {
			if d, _, err := l.CheckParts(t.Context(), "t", "p", parts); err != nil || d.Source == ratelimit.SourceTokenLease {
				t.Errorf("%+v, %v", d, err)
			}
		}
	})
}

// The guard frees the slot of a request that nobody waited for, but a lease's name stands
// for what its holder has left, too.
func TestGuardKeepsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient()
		g := ratelimit.NewGuard(p, ratelimit.GuardOptions{})
		defer g.Close()
		buckets := []ratelimit.Bucket{{Key: "held", Leased: true, Rule: ratelimit.Rule{Algorithm: ratelimit.Concurrency, Count: 100, Per: time.Hour.Microseconds(), Burst: 100}}}
		p.falls(nil, 50*time.Millisecond)
		if _, err := g.Take(t.Context(), ratelimit.Take{Buckets: buckets, Cost: 30, SlotID: "a", Now: time.Now().UnixMicro()}); err == nil {
			t.Fatal("it was in time")
		}
		time.Sleep(2 * time.Second)
		out, err := p.LocalStore.Take(t.Context(), ratelimit.Take{Buckets: buckets, Cost: 1, Peek: true, Now: time.Now().UnixMicro()})
		if err != nil || out.Verdicts[0].Remaining != 70 {
			t.Errorf("%+v, %v", out, err)
		}
	})
}
