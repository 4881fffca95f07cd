package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A patient is a memory store that falls ill: it takes that long and then fails.
type patient struct {
	*ratelimit.LocalStore
	takes        time.Duration
	err          error
	asked, tried atomic.Int64
	mu           sync.Mutex // guards takes and err
}

// falls ill, or gets well.
func (p *patient) falls(err error, takes time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.takes = err, takes
}

func newPatient() *patient {
	return &patient{LocalStore: ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{}))}
}

func (p *patient) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	p.asked.Add(1)
	if err := p.suffer(); err != nil {
		return ratelimit.Outcome{}, err
	}
	return p.LocalStore.Take(ctx, t)
}

func (p *patient) Probe(context.Context) error {
	p.tried.Add(1)
	return p.suffer()
}

func (p *patient) suffer() error {
	p.mu.Lock()
	takes, err := p.takes, p.err
	p.mu.Unlock()
	time.Sleep(takes)
	return err
}

var errDown = &ratelimit.FaultError{Reason: "readonly", Err: keytype.ErrUnavailable}

// guarded runs fn with a guard over a patient, in a bubble of synthetic time.
func guarded(t *testing.T, fn func(t *testing.T, p *patient, g *ratelimit.Guard, take func() error)) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient()
		g := ratelimit.NewGuard(p, ratelimit.GuardOptions{})
		rule := ratelimit.Rule{Algorithm: ratelimit.TokenBucket, Count: 1, Per: 1000, Burst: 1000}
		fn(t, p, g, func() error {
			_, err := g.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: "k", Rule: rule}}, Cost: 1, Now: time.Now().UnixMicro()})
			return err
		})
		_ = g.Close()
		synctest.Wait()
	})
}

func reason(err error) string {
	e, ok := errors.AsType[*ratelimit.FaultError](err)
	if !ok {
		return fmt.Sprint(err)
	}
	return e.Reason
}

func TestGuardOpensAfterThreeInARow(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		for i, s := range []struct {
			err  error
			want string
		}{
			{errDown, "readonly"},
			{errDown, "readonly"},
			{nil, "<nil>"},
			{errDown, "readonly"},
			{errDown, "readonly"},
			{errDown, "readonly"},
			{nil, ratelimit.ReasonBreakerOpen},
		} {
			p.falls(s.err, 0)
			if got := reason(take()); got != s.want {
				t.Errorf("call %d: got %s, want %s", i, got, s.want)
			}
		}
		if n := p.asked.Load(); n != 6 {
			t.Errorf("the store was asked %d times, want 6", n)
		}
	})
}

func TestGuardOpensWhenHalfFail(t *testing.T) {
	for _, c := range []struct {
		why   string
		pause time.Duration // between two calls
		open  bool
	}{
		{"within a second", 40 * time.Millisecond, true},
		{"fewer than 20 a second", 60 * time.Millisecond, false},
	} {
		guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
			open := false
			for i := range 40 {
				p.falls(nil, 0)
				if i%2 == 0 {
					p.falls(errDown, 0)
				}
				open = open || reason(take()) == ratelimit.ReasonBreakerOpen
				if open && i < 20 {
					t.Errorf("%s: open after %d calls", c.why, i)
				}
				time.Sleep(c.pause)
			}
			if open != c.open {
				t.Errorf("%s: open %t", c.why, open)
			}
		})
	}
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		for i := range 100 {
			p.falls(nil, 0)
			if i%5 < 2 {
				p.falls(errDown, 0)
			}
			if reason(take()) == ratelimit.ReasonBreakerOpen {
				t.Fatalf("open at two of five, after %d", i)
			}
		}
	})
}

// A few late answers are no failure, however they come; a store that is slow is one, and
// so is one whose client gives up, also where it is asked seldom.
func TestGuardBearsLateAnswers(t *testing.T) {
	const late = 8 * time.Millisecond
	for _, c := range []struct {
		why    string
		takes  func(call int) time.Duration
		err    error
		pause  time.Duration
		opened bool
	}{
		{"ten in a row of a hundred", func(call int) time.Duration { return late * time.Duration(call/10%10/9) }, nil, 2 * time.Millisecond, false},
		{"all, but seldom", func(int) time.Duration { return late }, nil, 60 * time.Millisecond, false},
		{"all", func(int) time.Duration { return late }, nil, 2 * time.Millisecond, true},
		{"all, and they fail in the end", func(int) time.Duration { return late }, errDown, 60 * time.Millisecond, true},
	} {
		guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
			opened := false
			for call := range 200 {
				p.falls(c.err, c.takes(call))
				opened = opened || reason(take()) == ratelimit.ReasonBreakerOpen
				time.Sleep(c.pause)
			}
			if opened != c.opened {
				t.Errorf("%s: opened %t", c.why, opened)
			}
			p.falls(nil, 0)
			time.Sleep(time.Second) // whatever nobody waits for ends
		})
	}
}

// What is wrong with one key is no failure of the store.
func TestGuardStaysShutForFaultsOfOneKey(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		p.falls(&ratelimit.FaultError{Reason: "corrupt", OfKey: true, Err: keytype.ErrUnavailable}, 0)
		for i := range 40 {
			if got := reason(take()); got != "corrupt" {
				t.Fatalf("call %d: got %s", i, got)
			}
		}
		p.falls(errDown, 0)
		for range 3 {
			if got := reason(take()); got != "readonly" {
				t.Errorf("got %s", got)
			}
		}
		if got := reason(take()); got != ratelimit.ReasonBreakerOpen {
			t.Errorf("the store's own failures: got %s", got)
		}
	})
}

func TestGuardProbesEveryTenthOfASecond(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		p.falls(errDown, 0)
		for range 3 {
			_ = take()
		}
		time.Sleep(350 * time.Millisecond)
		if n := p.tried.Load(); n != 3 {
			t.Errorf("%d probes in 350 ms, want 3", n)
		}
		if err := take(); reason(err) != ratelimit.ReasonBreakerOpen || !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("while the probes fail: %v", err)
		}
		p.falls(nil, 6*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		if got := reason(take()); got != ratelimit.ReasonBreakerOpen {
			t.Errorf("a probe that takes longer than the budget closes it: %s", got)
		}
		p.falls(nil, time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		if err := take(); err != nil {
			t.Errorf("after a good probe: %v", err)
		}
		if n := p.tried.Load(); n != 5 {
			t.Errorf("%d probes, want 5", n)
		}
		p.falls(errDown, 0)
		for range 2 {
			if got := reason(take()); got != "readonly" {
				t.Errorf("what failed before counts no more: %s", got)
			}
		}
	})
}

func TestR28GuardDoesNotWaitForAHang(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		p.falls(nil, 10*time.Second)
		begun := time.Now()
		err := take()
		if took := time.Since(begun); took != 5*time.Millisecond {
			t.Errorf("the caller waited %v", took)
		}
		if reason(err) != ratelimit.ReasonTimeout || !errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		time.Sleep(11 * time.Second)
	})
}

func TestGuardHeedsItsCaller(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, g *ratelimit.Guard, take func() error) {
		p.falls(nil, 4*time.Millisecond)
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := g.Take(ctx, ratelimit.Take{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
			if _, err := g.Take(ctx, ratelimit.Take{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if err := take(); err != nil {
			t.Errorf("a caller that leaves is no failure of the store: %v", err)
		}
		if n := p.asked.Load(); n != 6 {
			t.Errorf("asked %d times, want 6", n)
		}
	})
}

func TestGuardTellsOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient()
		p.falls(errDown, 0)
		var told []string
		g := ratelimit.NewGuard(p, ratelimit.GuardOptions{Changed: func(err error) { told = append(told, reason(err)) }})
		for range 10 {
			_ = g.Forget(t.Context(), nil)
			_, _ = g.Take(t.Context(), ratelimit.Take{})
		}
		time.Sleep(time.Second)
		p.falls(nil, 0)
		time.Sleep(time.Second)
		_ = g.Close()
		if fmt.Sprint(told) != "[readonly <nil>]" {
			t.Errorf("told %v", told)
		}
	})
	synctest.Test(t, func(t *testing.T) { // also where it opens because half fail
		p := newPatient()
		var told []string
		g := ratelimit.NewGuard(p, ratelimit.GuardOptions{Changed: func(err error) { told = append(told, reason(err)) }})
		for i := range 30 {
			p.falls(nil, 0)
			if i%2 == 0 {
				p.falls(errDown, 0)
			}
			_, _ = g.Take(t.Context(), ratelimit.Take{})
		}
		p.falls(nil, 0)
		time.Sleep(time.Second)
		_ = g.Close()
		if fmt.Sprint(told) != "[readonly <nil>]" {
			t.Errorf("told %v", told)
		}
	})
}

// Each posture while the store fails: who passes, who says so, and that nothing waits.
func TestR26Postures(t *testing.T) {
	p, bypassed := newPatient(), map[string]int{}
	of := func(name string, posture ratelimit.Posture, local ratelimit.LocalRate) ratelimit.Policy {
		one := policy(limit("l", 1, time.Hour, 3), limit("m", 1, time.Hour, 1))
		one.Name, one.Posture, one.Local = name, posture, local
		return one
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	limits, err := ratelimit.New(p, []ratelimit.Policy{
		of("open", ratelimit.FailOpen, ratelimit.LocalRate{}),
		of("closed", ratelimit.FailClosed, ratelimit.LocalRate{}),
		of("own", ratelimit.Local, ratelimit.LocalRate{}),
		of("local", ratelimit.Local, ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 2}),
	}, ratelimit.Options{
		Now:      func() time.Time { return now },
		Fallback: ratelimit.NewLocal(openMemory(t)),
		Bypassed: func(reason string) { bypassed[reason]++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(policy string) (ratelimit.Decision, error) {
		req := ask(1)
		req.Policy, req.RequestID = policy, ""
		return limits.Check(t.Context(), "t", req)
	}
	if d, err := check("closed"); err != nil || !d.Allowed || d.Degraded || d.Source != ratelimit.Memory {
		t.Fatalf("a healthy store: %+v, %v", d, err)
	}
	p.falls(errDown, 0)
	for range 5 {
		if d, err := check("open"); err != nil || !d.Allowed || !d.Degraded || d.DegradedReason != "readonly" || d.Source != ratelimit.SourceFailOpen {
			t.Errorf("fail_open: %+v, %v", d, err)
		}
		_, err := check("closed")
		if e, ok := errors.AsType[*ratelimit.ClosedError](err); !ok || e.Reason != "readonly" || !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("fail_closed: %v", err)
		}
	}
	for _, c := range []struct {
		policy string
		passes int64
	}{{"own", 3}, {"local", 2}} {
		for i := range c.passes + 1 {
			d, err := check(c.policy)
			if err != nil || d.Allowed != (i < c.passes) || !d.Degraded || d.Source != ratelimit.SourceLocal || d.Limits[0].Limit != c.passes || len(d.Limits) != 1 {
				t.Errorf("%s, check %d: %+v, %v", c.policy, i, d, err)
			}
		}
	}
	now = now.Add(time.Second)
	if d, err := check("local"); err != nil || !d.Allowed {
		t.Errorf("the local rate refills: %+v, %v", d, err)
	}
	req := ask(1)
	req.Policy = "open"
	if _, err := limits.Refund(t.Context(), "t", req); err != nil {
		t.Errorf("a refund reaches the store: %v", err)
	}
	if d, err := limits.Peek(t.Context(), "t", req); err != nil || !d.Degraded { // which is not counted
		t.Errorf("a peek: %+v, %v", d, err)
	}
	if bypassed["readonly"] != 18 || len(bypassed) != 1 {
		t.Errorf("counted %v", bypassed)
	}
	p.falls(nil, 0)
	if d, err := check("open"); err != nil || d.Degraded {
		t.Errorf("a store that is back: %+v, %v", d, err)
	}
	p.falls(errors.New("a defect"), 0)
	if _, err := check("open"); err == nil {
		t.Error("a defect is answered by the posture")
	}
}

func TestReplace(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 10)))
	before := b.Version()
	b.check(8)
	if err := b.Replace([]ratelimit.Policy{policy(limit("l", 1, time.Hour, 0))}); err == nil {
		t.Fatal("a wrong policy is loaded")
	}
	b.want("the old one stays", b.check(1), true, 1)
	if err := b.Replace([]ratelimit.Policy{policy(limit("l", 1, time.Hour, 20))}); err != nil {
		t.Fatal(err)
	}
	if b.Version() == before {
		t.Error("the version stays")
	}
	b.want("burst 10 to 20 with 9 used leaves 11", b.check(1), true, 10)
}
