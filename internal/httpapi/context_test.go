package httpapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/deadline"
)

// A request's context is one, whether somebody waits for its end or not.
func TestRequestContextEnds(t *testing.T) {
	for _, c := range []struct {
		why  string
		end  func(r *requestContext, hangUp context.CancelFunc)
		want error
	}{
		{"it has time", func(*requestContext, context.CancelFunc) { time.Sleep(7 * time.Second) }, nil},
		{"its time is over", func(*requestContext, context.CancelFunc) { time.Sleep(8 * time.Second) }, context.DeadlineExceeded},
		{"the caller hung up", func(_ *requestContext, hangUp context.CancelFunc) { hangUp() }, context.Canceled},
		{"it was answered", func(r *requestContext, _ context.CancelFunc) { r.End() }, context.Canceled},
	} {
		for _, waits := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				connection, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				r := &requestContext{Context: deadline.Context{Context: connection, At: time.Now().Add(8 * time.Second)}}
				defer r.End()
				var within context.Context
				if waits {
					made, cancel := context.WithCancel(context.WithValue(r, "key", "value")) //nolint:staticcheck // nobody else's
					defer cancel()
					within = made
				}
				c.end(r, hangUp)
				synctest.Wait()
				if err := r.Err(); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("%s, somebody waits %t: got %v", c.why, waits, err)
				}
				if waits && !errors.Is(within.Err(), c.want) {
					t.Errorf("%s: what is made of it: %v", c.why, within.Err())
				}
				if waits && requestOf(within) != r {
					t.Errorf("%s: what is made of it is of no request", c.why)
				}
				select {
				case <-r.Done():
					if c.want == nil {
						t.Errorf("%s, somebody waits %t: it has ended", c.why, waits)
					}
				default:
					if c.want != nil {
						t.Errorf("%s, somebody waits %t: it has not ended", c.why, waits)
					}
				}
			})
		}
	}
}
