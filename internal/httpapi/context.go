package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
)

// A requestContext is that of a request: it ends with the connection, or after the time
// that the request has, and carries what the middleware finds out. Most requests ask
// nobody who waits for its end, so that the timer is made for the first that does.
type requestContext struct {
	context.Context // the connection's: without a deadline
	deadline        time.Time

	caller auth.Key
	effect bool            // the handler runs, and its outcome matters
	code   api.ProblemCode // of the answer, for the trace; "" while it is no problem

	mu    sync.Mutex
	timed context.Context    //nolint:containedctx // guarded by mu; nil until somebody waits
	stop  context.CancelFunc // guarded by mu
}

// Deadline implements context.Context.
func (r *requestContext) Deadline() (time.Time, bool) { return r.deadline, true }

// Done implements context.Context.
func (r *requestContext) Done() <-chan struct{} { return r.timer().Done() }

func (r *requestContext) timer() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timed == nil {
		r.timed, r.stop = context.WithDeadline(r.Context, r.deadline)
	}
	return r.timed
}

// Err implements context.Context.
func (r *requestContext) Err() error {
	if err := r.Context.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timed != nil {
		return r.timed.Err()
	}
	if !time.Now().Before(r.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// requestKey finds the requestContext of a context.
type requestKey struct{}

// Value implements context.Context. Contexts that are made of this one ask it for the
// timer.
func (r *requestContext) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	r.mu.Lock()
	timed := r.timed
	r.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return r.Context.Value(key)
}

// end stops the timer.
func (r *requestContext) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop == nil {
		r.timed, r.stop = ended, func() {}
	}
	r.stop()
}

// ended is the timer of a request that has ended before anybody waited.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// requestOf is the request that the context is of, or an empty one.
func requestOf(ctx context.Context) *requestContext {
	if r, ok := ctx.Value(requestKey{}).(*requestContext); ok {
		return r
	}
	return &requestContext{Context: ctx}
}
