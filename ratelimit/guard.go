package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// probeInterval is how often a store that failed is looked for.
const probeInterval = 100 * time.Millisecond

// A Prober finds out whether a store that failed decides again.
type Prober interface {
	Store
	Probe(ctx context.Context) error
}

// GuardOptions say how long a store may take; the zero value works.
type GuardOptions struct {
	Budget time.Duration // how long a caller waits for one decision, 5 ms where zero
	// Changed is called when the store is given up, with the failure, and with nil when it decides again.
	Changed func(err error)
}

// A Guard is a Store that answers in time whatever the one behind it does. It waits
// no longer than the budget, also where a client of the store does not heed a
// context, and does not ask at all while the store is known to fail: then a probe
// in the background looks for it. What is behind the guard may still do what nobody
// waits for any more.
type Guard struct {
	store   Prober
	budget  time.Duration
	changed func(error)
	breaker *breaker
	stop    context.Context // ends the probe
	end     context.CancelFunc
	probes  sync.WaitGroup
}

// NewGuard makes a guard. Close ends its probe.
func NewGuard(store Prober, opts GuardOptions) *Guard {
	g := &Guard{store: store, budget: opts.Budget, changed: opts.Changed, breaker: newBreaker()}
	if g.budget == 0 {
		g.budget = 5 * time.Millisecond
	}
	if g.changed == nil {
		g.changed = func(error) {}
	}
	g.stop, g.end = context.WithCancel(context.Background())
	return g
}

// Close ends the probe. The guard must not be used afterwards.
func (g *Guard) Close() error {
	g.end()
	g.probes.Wait()
	return nil
}

// Take implements Store.
func (g *Guard) Take(ctx context.Context, t Take) (Outcome, error) {
	return guarded(ctx, g, func(ctx context.Context) (Outcome, error) { return g.store.Take(ctx, t) })
}

// Give implements Store.
func (g *Guard) Give(ctx context.Context, give Give) (Outcome, error) {
	return guarded(ctx, g, func(ctx context.Context) (Outcome, error) { return g.store.Give(ctx, give) })
}

// Forget implements Store.
func (g *Guard) Forget(ctx context.Context, buckets []Bucket) error {
	_, err := guarded(ctx, g, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.store.Forget(ctx, buckets) })
	return err
}

var (
	errBreakerOpen = &FaultError{Reason: ReasonBreakerOpen, Err: fmt.Errorf("not asked: %w", keytype.ErrUnavailable)}
	errTimeout     = &FaultError{Reason: ReasonTimeout, Err: fmt.Errorf("no answer in time: %w", keytype.ErrOutcomeUnknown)}
)

// guarded runs a call on a goroutine of its own, and waits for it or for the budget.
// The call goes on when nobody waits any more: a charge that has been sent is not
// undone by a caller that leaves.
func guarded[T any](ctx context.Context, g *Guard, call func(context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if g.breaker.isOpen() {
		return none, errBreakerOpen
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := call(context.WithoutCancel(ctx))
		done <- result{value, err}
	}()
	budget := time.NewTimer(g.budget)
	defer budget.Stop()
	select {
	case r := <-done:
		g.finished(r.err)
		return r.value, r.err
	case <-budget.C:
		g.finished(errTimeout)
		return none, errTimeout
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// finished counts a round trip, and begins to look for a store that has just been given up.
func (g *Guard) finished(err error) {
	if err != nil && !isFault(err) {
		return
	}
	if g.breaker.finished(isOutage(err)) {
		g.changed(err)
		g.probes.Go(g.probe)
	}
}

// probe closes the breaker once the store decides within the budget.
func (g *Guard) probe() {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-g.stop.Done():
			return
		case <-ticker.C:
		}
		if g.answers() {
			g.breaker.close()
			g.changed(nil)
			return
		}
	}
}

// answers waits for the probe no longer than the budget. A probe that hangs ends by
// the client's own timeouts.
func (g *Guard) answers() bool {
	ctx, cancel := context.WithTimeout(g.stop, g.budget)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- g.store.Probe(ctx) }()
	select {
	case err := <-done:
		return err == nil
	case <-ctx.Done():
		return false
	}
}
