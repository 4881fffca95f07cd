package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// A laggard is a store that takes its time.
type laggard struct {
	*LocalStore
	takes time.Duration
}

func (l laggard) Take(context.Context, Take) (Outcome, error) {
	time.Sleep(l.takes)
	return Outcome{Allowed: true}, nil
}

func (l laggard) Probe(context.Context) error { return nil }

// A process that is late itself gives the store more time, within bounds, and does not
// give it up.
func TestGuardKnowsThatItIsLate(t *testing.T) {
	for _, c := range []struct {
		why     string
		takes   time.Duration
		late    time.Duration // by how much this process is
		answers bool
		opens   bool
	}{
		{"on time", 7 * time.Millisecond, 0, false, true},
		{"hardly late", 7 * time.Millisecond, 900 * time.Microsecond, false, true},
		{"late", 7 * time.Millisecond, time.Millisecond, true, false},
		{"late, and so is the store", 11 * time.Millisecond, time.Millisecond, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := NewGuard(laggard{NewLocal(kv.NewMemory(kv.MemoryOptions{})), c.takes}, GuardOptions{})
			begun, reads, answered, opened := time.Now(), 0, 0, false
			g.now = func() time.Time {
				if reads++; reads == 1 {
					return time.Now()
				}
				return time.Now().Add(c.late)
			}
			for range 50 {
				reads = 0
				_, err := g.Take(t.Context(), Take{})
				fault, _ := errors.AsType[*FaultError](err)
				opened = opened || fault != nil && fault.Reason == ReasonBreakerOpen
				if err == nil {
					answered++
				}
			}
			if opened != c.opens || (answered == 50) != c.answers {
				t.Errorf("%s: opened %t, answered %d of 50", c.why, opened, answered)
			}
			if waited := time.Since(begun); waited > 50*2*5*time.Millisecond {
				t.Errorf("%s: 50 calls waited %v", c.why, waited)
			}
			_ = g.Close()
			time.Sleep(time.Second)
			synctest.Wait()
		})
	}
}
