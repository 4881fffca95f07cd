package ratelimit

import (
	"context"
	"errors"
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
// in the background looks for it. Where the process itself gets to the end of the
// budget late, it waits for one more, and does not hold that against the store. What is behind the guard may still do what nobody
// waits for any more.
type Guard struct {
	store   Prober
	budget  time.Duration
	changed func(error)
	breaker *breaker
	now     func() time.Time // monotonic
	stop    context.Context  // ends the probe
	end     context.CancelFunc
	probes  sync.WaitGroup
	freeing chan struct{} // has room for the slots that may be on their way back
	closing sync.Mutex    // no probe begins once Close waits for it: calls may end later
}

// NewGuard makes a guard. Close ends its probe.
func NewGuard(store Prober, opts GuardOptions) *Guard {
	g := &Guard{store: store, budget: opts.Budget, changed: opts.Changed, breaker: newBreaker(), freeing: make(chan struct{}, maxFreeing), now: time.Now}
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
	g.closing.Lock()
	g.end()
	g.closing.Unlock()
	g.probes.Wait()
	return nil
}

// Take implements Store. A slot whose name the caller does not learn goes back.
func (g *Guard) Take(ctx context.Context, t Take) (Outcome, error) {
	begun := time.Now()
	take := func(ctx context.Context) (Outcome, error) { return g.store.Take(ctx, t) }
	return guarded(ctx, g, take, func(out Outcome, err error) { g.free(t, out, err, begun) })
}

// Give implements Store.
func (g *Guard) Give(ctx context.Context, give Give) (Outcome, error) {
	return guarded(ctx, g, func(ctx context.Context) (Outcome, error) { return g.store.Give(ctx, give) }, nil)
}

// Forget implements Store.
func (g *Guard) Forget(ctx context.Context, buckets []Bucket) error {
	_, err := guarded(ctx, g, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.store.Forget(ctx, buckets) }, nil)
	return err
}

var (
	errBreakerOpen = &FaultError{Reason: ReasonBreakerOpen, Err: fmt.Errorf("not asked: %w", keytype.ErrUnavailable)}
	errTimeout     = &FaultError{Reason: ReasonTimeout, Err: fmt.Errorf("no answer in time: %w", keytype.ErrOutcomeUnknown)}
)

// guarded runs a call on a goroutine of its own, and waits for it or for the budget.
// The call goes on when nobody waits any more: a charge that has been sent is not
// undone by a caller that leaves. Of a result that nobody gets, and of one that is not
// known, lost is told, where not nil.
func guarded[T any](ctx context.Context, g *Guard, call func(context.Context) (T, error), lost func(T, error)) (T, error) {
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
	done, left := make(chan result), make(chan bool, 1)
	begun := g.now()
	go func() {
		value, err := call(context.WithoutCancel(ctx))
		g.ended(err)
		missed := true
		select {
		case done <- result{value, err}:
			missed = errors.Is(err, keytype.ErrOutcomeUnknown)
		case counted := <-left:
			if !counted {
				g.answered(g.inTime(err, begun))
			}
		}
		if missed && lost != nil {
			lost(value, err)
		}
	}()
	budget := time.NewTimer(g.budget)
	defer budget.Stop()
	for again := false; ; again = true {
		select {
		case r := <-done:
			g.answered(r.err)
			return r.value, r.err
		case <-budget.C:
		case <-ctx.Done():
			left <- false
			return none, ctx.Err()
		}
		if g.now().Sub(begun)-g.budget < g.budget/5 {
			left <- true
			g.answered(errTimeout)
			return none, errTimeout
		}
		// This process was late itself, which says nothing of the store: its answer may be here.
		if again {
			left <- true
			return none, errTimeout
		}
		budget.Reset(g.budget)
	}
}

// inTime is how a call ended for a caller who would have waited.
func (g *Guard) inTime(err error, begun time.Time) error {
	if g.now().Sub(begun) > g.budget {
		return errTimeout
	}
	return err
}

// answered counts what somebody waited for.
func (g *Guard) answered(err error) {
	if err == nil || isFault(err) {
		g.opened(g.breaker.answered(isOutage(err)), err)
	}
}

// ended counts how a call went in the end. One that hangs does so by the client's own timeouts.
func (g *Guard) ended(err error) {
	if err == nil || isFault(err) {
		g.opened(g.breaker.ended(isOutage(err)), err)
	}
}

// opened begins to look for a store that has just been given up.
func (g *Guard) opened(just bool, err error) {
	if !just {
		return
	}
	g.closing.Lock()
	defer g.closing.Unlock()
	if g.stop.Err() == nil {
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
