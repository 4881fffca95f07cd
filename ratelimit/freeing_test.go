package ratelimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A deferring store does what it is asked, and answers late, or that it does not know.
type deferring struct {
	*patient
	unknown bool
	givesUp int // so many calls to Give fail
}

func (d *deferring) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	out, err := d.patient.Take(ctx, t)
	if d.unknown {
		return ratelimit.Outcome{}, keytype.ErrOutcomeUnknown
	}
	return out, err
}

func (d *deferring) Give(ctx context.Context, g ratelimit.Give) (ratelimit.Outcome, error) {
	if d.givesUp > 0 {
		d.givesUp--
		return ratelimit.Outcome{}, keytype.ErrOutcomeUnknown
	}
	return d.LocalStore.Give(ctx, g)
}

// A slot goes back that the store handed out when nobody waited for it any more; one
// that somebody got does not.
func TestGuardFreesSlotsThatNobodyGot(t *testing.T) {
	for _, c := range []struct {
		why     string
		takes   time.Duration
		hangsUp time.Duration // 0 = never
		unknown bool
		givesUp int
		peek    bool
		free    int64 // of 3, in the end
	}{
		{"the caller got it", 0, 0, false, 0, false, 2},
		{"after the budget", 50 * time.Millisecond, 0, false, 0, false, 3},
		{"the caller hung up", 3 * time.Millisecond, time.Millisecond, false, 0, false, 3},
		{"the outcome is unknown", 0, 0, true, 0, false, 3},
		{"after the budget, and unknown", 50 * time.Millisecond, 0, true, 0, false, 3},
		{"the way back fails at first", 50 * time.Millisecond, 0, false, 5, false, 3},
		{"a peek", 50 * time.Millisecond, 0, false, 0, true, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &deferring{patient: newPatient(), unknown: c.unknown, givesUp: c.givesUp}
			g := ratelimit.NewGuard(d, ratelimit.GuardOptions{})
			buckets := []ratelimit.Bucket{
				{Key: "slots", Rule: ratelimit.Rule{Algorithm: ratelimit.Concurrency, Count: 3, Per: time.Hour.Microseconds(), Burst: 3}},
				{Key: "units", Rule: ratelimit.Rule{Algorithm: ratelimit.FixedWindow, Count: 3, Per: time.Hour.Microseconds(), Burst: 3}},
			}
			d.falls(nil, c.takes)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.hangsUp > 0 {
				time.AfterFunc(c.hangsUp, cancel)
			}
			_, _ = g.Take(ctx, ratelimit.Take{Buckets: buckets, Cost: 1, SlotID: "a", Peek: c.peek, Now: time.Now().UnixMicro()})
			time.Sleep(2 * time.Second)
			out, err := d.LocalStore.Take(t.Context(), ratelimit.Take{Buckets: buckets, Cost: 1, Peek: true, Now: time.Now().UnixMicro()})
			units := int64(2) // they stay charged
			if c.peek {
				units = 3
			}
			if err != nil || out.Verdicts[0].Remaining != c.free || out.Verdicts[1].Remaining != units {
				t.Errorf("%s: %d slots and %d units are free, want %d and %d; %v", c.why, out.Verdicts[0].Remaining, out.Verdicts[1].Remaining, c.free, units, err)
			}
			_ = g.Close()
		})
	}
}

// A slot that a repetition was told of belongs to the request that it repeats.
func TestGuardLeavesTheSlotOfAnotherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deferring{patient: newPatient()}
		g := ratelimit.NewGuard(d, ratelimit.GuardOptions{})
		take := ratelimit.Take{Cost: 1, SlotID: "a", Record: "r", Now: time.Now().UnixMicro(), Buckets: []ratelimit.Bucket{
			{Key: "slots", Rule: ratelimit.Rule{Algorithm: ratelimit.Concurrency, Count: 3, Per: time.Hour.Microseconds(), Burst: 3}},
		}}
		if out, err := g.Take(t.Context(), take); err != nil || out.SlotID != "a" {
			t.Fatalf("got %+v, %v", out, err)
		}
		d.falls(nil, 50*time.Millisecond)
		take.SlotID = "b"
		_, _ = g.Take(t.Context(), take)
		time.Sleep(time.Second)
		d.falls(nil, 0)
		if out, err := g.Take(t.Context(), take); err != nil || out.SlotID != "a" || out.Verdicts[0].Remaining != 2 {
			t.Errorf("got %+v, %v", out, err)
		}
		_ = g.Close()
	})
}

// Callers that leave before the answer hide no failure of the store.
func TestGuardCountsWhatNobodyWaitsFor(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, g *ratelimit.Guard, take func() error) {
		p.falls(nil, 20*time.Millisecond)
		for range 25 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = g.Take(ctx, ratelimit.Take{})
			cancel()
		}
		time.Sleep(30 * time.Millisecond)
		if got := reason(take()); got != ratelimit.ReasonBreakerOpen {
			t.Errorf("25 of 25 took four budgets: got %s", got)
		}
		p.falls(nil, 0)
		time.Sleep(time.Second)
	})
}
