package deadline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/deadline"
)

type key struct{}

// A context ends as one with a timer would, whether somebody waits for its end or not.
func TestItEnds(t *testing.T) {
	for _, c := range []struct {
		why  string
		end  func(d *deadline.Context, outer context.CancelFunc)
		want error
	}{
		{"it has time", func(*deadline.Context, context.CancelFunc) { time.Sleep(7 * time.Second) }, nil},
		{"its time is over", func(*deadline.Context, context.CancelFunc) { time.Sleep(8 * time.Second) }, context.DeadlineExceeded},
		{"the outer one has ended", func(_ *deadline.Context, outer context.CancelFunc) { outer() }, context.Canceled},
		{"it was ended", func(d *deadline.Context, _ context.CancelFunc) { d.End() }, context.Canceled},
	} {
		for _, waits := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				outer, end := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
				defer end()
				d := deadline.New(outer, time.Now().Add(8*time.Second))
				defer d.End()
				within, cancel := context.Context(d), func() {}
				if waits {
					within, cancel = context.WithCancel(d)
				}
				defer cancel()
				c.end(d, end)
				synctest.Wait()
				for _, ctx := range []context.Context{d, within} {
					if err := ctx.Err(); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
						t.Errorf("%s, somebody waits %t: got %v", c.why, waits, err)
					}
					if ctx.Value(key{}) != "value" {
						t.Errorf("%s, somebody waits %t: the value is %v", c.why, waits, ctx.Value(key{}))
					}
					select {
					case <-ctx.Done():
						if c.want == nil {
							t.Errorf("%s, somebody waits %t: it has ended", c.why, waits)
						}
					default:
						if c.want != nil {
							t.Errorf("%s, somebody waits %t: it has not ended", c.why, waits)
						}
					}
				}
			})
		}
	}
}

// What it ended with first it says ever after, as every context does.
func TestItEndsOnce(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			outer, end := context.WithCancel(t.Context())
			defer end()
			d := deadline.New(outer, time.Now().Add(8*time.Second))
			defer d.End()
			if waits {
				d.Done()
			}
			time.Sleep(8 * time.Second)
			synctest.Wait()
			first := d.Err()
			end()
			if again := d.Err(); !errors.Is(first, context.DeadlineExceeded) || !errors.Is(again, first) {
				t.Errorf("somebody waits %t: it ends with %v, and then with %v", waits, first, again)
			}
		})
	}
}

func TestWhoDoesNotWaitMakesNothing(t *testing.T) {
	outer, end := context.WithCancel(t.Context())
	defer end()
	outer.Done() // makes its own
	if n := testing.AllocsPerRun(100, func() {
		d := deadline.New(outer, time.Now().Add(time.Minute))
		if d.Err() != nil || d.Outer().Done() == nil || d.Value(key{}) != nil {
			t.Error("it is not as its outer one")
		}
		d.End()
	}); n > 1 {
		t.Errorf("%v objects", n)
	}
}
