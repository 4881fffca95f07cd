// Package deadline decides when the time of a request is over, without a timer while
// nobody waits for that.
package deadline

import (
	"context"
	"sync"
	"time"
)

// A Context ends with another one, at an instant, or when End is called. Most requests
// ask nobody who waits for its end, so that the timer is made for the first that does.
// It must not be copied.
type Context struct {
	context.Context           // which it ends with; its deadline is not before At
	At              time.Time // with its monotonic reading

	mu    sync.Mutex
	timed context.Context    //nolint:containedctx // guarded by mu; nil until somebody waits
	stop  context.CancelFunc // guarded by mu
}

// New is a context that ends with the outer one, or at the instant.
func New(outer context.Context, at time.Time) *Context { return &Context{Context: outer, At: at} }

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.At, true }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer().Done()
}

// timer is to be called with mu held.
func (c *Context) timer() context.Context {
	if c.timed == nil {
		c.timed, c.stop = context.WithDeadline(c.Context, c.At)
	}
	return c.timed
}

// Err implements context.Context. What it has ended with once it says ever after, whatever
// ends next: so the timer keeps it.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil && c.Context.Err() == nil && time.Now().Before(c.At) {
		return nil
	}
	return c.timer().Err()
}

// Value implements context.Context. Contexts that are made of this one ask it for the
// timer.
func (c *Context) Value(key any) any {
	c.mu.Lock()
	timed := c.timed
	c.mu.Unlock()
	if timed != nil {
		if value := timed.Value(key); value != nil {
			return value
		}
	}
	return c.Context.Value(key)
}

// Outer is the context that it ends with. Who waits for less long than At is away can
// wait for the end of that, which takes no timer.
func (c *Context) Outer() context.Context { return c.Context }

// End ends it, and its timer.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == nil {
		c.timed, c.stop = ended, func() {}
	}
	c.stop()
}

// ended is the timer of what has ended before anybody waited.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
