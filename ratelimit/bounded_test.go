package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/deadline"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A watched context counts who waits for its end.
type watched struct {
	*deadline.Context
	waits int
}

func (w *watched) Done() <-chan struct{} {
	w.waits++
	return w.Context.Done()
}

// The guard waits for the end of a context's outer one where it gives up before the
// deadline: else it would have a timer made for each call.
func TestGuardNeedsNoTimerOfItsCaller(t *testing.T) {
	for _, c := range []struct {
		why     string
		time    time.Duration
		hangsUp bool
		waits   int
		want    error
		after   time.Duration
	}{
		{"it has time, and the guard gives up", time.Second, false, 0, keytype.ErrOutcomeUnknown, 5 * time.Millisecond},
		{"it has time, and the caller hangs up", time.Second, true, 0, context.Canceled, time.Millisecond},
		{"its time is over first", 2 * time.Millisecond, false, 1, context.DeadlineExceeded, 2 * time.Millisecond},
	} {
		guarded(t, func(t *testing.T, p *patient, g *ratelimit.Guard, _ func() error) {
			p.falls(nil, 10*time.Second)
			outer, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			if c.hangsUp {
				time.AfterFunc(time.Millisecond, hangUp)
			}
			begun := time.Now()
			ctx := &watched{Context: deadline.New(outer, begun.Add(c.time))}
			defer ctx.End()
			_, err := g.Take(ctx, ratelimit.Take{})
			if took := time.Since(begun); !errors.Is(err, c.want) || took != c.after || ctx.waits != c.waits {
				t.Errorf("%s: %v after %v, %d waited; want %v after %v, %d", c.why, err, took, ctx.waits, c.want, c.after, c.waits)
			}
			time.Sleep(11 * time.Second)
		})
	}
}
