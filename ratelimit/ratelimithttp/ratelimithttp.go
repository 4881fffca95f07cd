package ratelimithttp

import (
	"context"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// limiter is a [ratelimit.Limiter], or a client that asks one.
type limiter interface {
	Check(ctx context.Context, tenant string, req ratelimit.Request) (ratelimit.Decision, error)
	Release(ctx context.Context, tenant, policy string, descriptors map[string]string, slotID string) error
}

// A Subject is whom a request counts for.
type Subject struct {
	Tenant      string
	Descriptors map[string]string // all that the limits of the policy are keyed by
}

// Options of a guard; the zero value works.
type Options struct {
	// Cost is what a request costs, 1 to ratelimit.MaxCost; 1 where nil. It is called
	// before anything of the body was read.
	Cost   func(*http.Request) int64
	Fields Fields // of the answers, those of the handler among them
	// Refused answers a request that the policy does not let through, [TooMany] where
	// nil. The fields stand in the header by then.
	Refused func(w http.ResponseWriter, r *http.Request, d ratelimit.Decision)
	// Fault answers a request that could not be judged, [Unavailable] where nil: also
	// one of a policy that is closed while its store fails (*ratelimit.ClosedError).
	// It is the place to log the error.
	Fault func(w http.ResponseWriter, r *http.Request, err error)
	// NotReleased is told of a slot that could not be given back, nobody where nil. It
	// comes back by itself after its time.
	NotReleased func(r *http.Request, err error)
}

// A Guard lets requests through that a policy allows. Routes of another policy have a
// guard of their own.
type Guard struct {
	limits   limiter
	policy   string
	describe func(*http.Request) (Subject, error)
	opts     Options
}

// New makes a guard. describe says whom a request counts for; an error of it, and one
// for a descriptor that is missing, is a fault: no request shares a bucket with others
// for want of an identity. New panics without describe, and where there is no such form of Fields.
func New(limits limiter, policy string, describe func(*http.Request) (Subject, error), opts Options) *Guard {
	if describe == nil {
		panic("ratelimithttp: nothing says whom a request counts for")
	}
	opts.Fields.check()
	if opts.Cost == nil {
		opts.Cost = func(*http.Request) int64 { return 1 }
	}
	if opts.Refused == nil {
		opts.Refused = TooMany
	}
	if opts.Fault == nil {
		opts.Fault = Unavailable
	}
	if opts.NotReleased == nil {
		opts.NotReleased = func(*http.Request, error) {}
	}
	return &Guard{limits: limits, policy: policy, describe: describe, opts: opts}
}

// Handler lets requests that the policy allows through to next. Where one guard stands
// behind another, its fields replace those of the first.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r, done, ok := g.Check(w, r); ok {
			defer done()
			next.ServeHTTP(w, r)
		}
	})
}

// Check is what [Guard.Handler] does, for routers with handlers of another form. Where
// it returns true, the request it returns has the decision in its context and goes on,
// and done must be called after it; where false, the request has been answered.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request) (checked *http.Request, done func(), ok bool) {
	if skipped(r.Context()) {
		return r, func() {}, true
	}
	subject, err := g.describe(r)
	if err != nil {
		g.fault(w, r, err)
		return r, nil, false
	}
	req := ratelimit.Request{Policy: g.policy, Descriptors: subject.Descriptors, Cost: g.opts.Cost(r)}
	d, err := g.limits.Check(r.Context(), subject.Tenant, req)
	if err != nil {
		g.fault(w, r, err)
		return r, nil, false
	}
	g.opts.Fields.Set(w.Header(), d)
	if !d.Allowed {
		w.Header().Set("Cache-Control", "no-store")
		g.opts.Refused(w, r, d)
		return r, nil, false
	}
	done = func() { g.release(r, subject, d) }
	if err := wait(r.Context(), d.Delay); err != nil {
		done()
		g.fault(w, r, err)
		return r, nil, false
	}
	return r.WithContext(context.WithValue(r.Context(), decisionKey{}, d)), done, true
}

func (g *Guard) fault(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Cache-Control", "no-store")
	g.opts.Fault(w, r, err)
}

// release gives a slot back, also where the client is gone.
func (g *Guard) release(r *http.Request, s Subject, d ratelimit.Decision) {
	if d.SlotID == "" {
		return
	}
	if err := g.limits.Release(context.WithoutCancel(r.Context()), s.Tenant, g.policy, s.Descriptors, d.SlotID); err != nil {
		g.opts.NotReleased(r, err)
	}
}

// wait is for the turn that a leaky bucket gave. Whoever leaves before has been charged.
func wait(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type (
	decisionKey struct{}
	skipKey     struct{}
)

// FromContext returns the decision on a request that a guard let through. It is false
// where none did, or where it had nothing to decide.
func FromContext(ctx context.Context) (ratelimit.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(ratelimit.Decision)
	return d, ok
}

// Skip marks a request that no guard behind it shall judge, for example one of our own
// health checks, or that a gateway has judged before. Only what was verified may lead to it.
func Skip(ctx context.Context) context.Context { return context.WithValue(ctx, skipKey{}, true) }

func skipped(ctx context.Context) bool {
	skip, _ := ctx.Value(skipKey{}).(bool)
	return skip
}
