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

// An Asker is a Store that can begin a Take without waiting for it, which costs less
// than a goroutine that waits.
type Asker interface {
	Store
	// Ask begins the Take, or returns nil for one that takes several steps. The context
	// says who asks; its end ends nothing.
	Ask(ctx context.Context, t Take) Asked
}

// An Asked is a Take that was begun, and ends by the store's own timeouts.
type Asked interface {
	Done() <-chan struct{} // closed when it has ended
	// Result is to be called once, after that. ErrUndecided says that nothing was done,
	// and that it takes a call of Take.
	Result() (Outcome, error)
}

// ErrUndecided is the result of an Ask that takes more than one step after all.
var ErrUndecided = errors.New("ratelimit: not decided in one step")

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
	timers  sync.Pool
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
	begun, wait := g.now(), g.budget
	if err := g.unasked(ctx); err != nil {
		return Outcome{}, err
	}
	lost := g.freer(t, begun)
	if asker, ok := g.store.(Asker); ok {
		if asked := asker.Ask(ctx, t); asked != nil {
			out, err := await(ctx, g, begun, wait, asked, lost)
			if !errors.Is(err, ErrUndecided) {
				return out, err
			}
			wait -= g.now().Sub(begun)
		}
	}
	return await(ctx, g, begun, wait, g.take(ctx, t), lost)
}

func (g *Guard) take(ctx context.Context, t Take) *running[Outcome] {
	return start(ctx, func(ctx context.Context) (Outcome, error) { return g.store.Take(ctx, t) })
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

// unasked is why a store is not asked, nil where it is.
func (g *Guard) unasked(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if g.breaker.isOpen() {
		return errBreakerOpen
	}
	return nil
}

// guarded runs a call on a goroutine of its own, and waits for it or for the budget.
func guarded[T any](ctx context.Context, g *Guard, call func(context.Context) (T, error)) (T, error) {
	if err := g.unasked(ctx); err != nil {
		return *new(T), err
	}
	return await(ctx, g, g.now(), g.budget, start(ctx, call), nil)
}

// A pending is what will be known once Done is closed. Then Result may be called, once.
type pending[T any] interface {
	Done() <-chan struct{}
	Result() (T, error)
}

// A running is a call on a goroutine of its own.
type running[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func start[T any](ctx context.Context, call func(context.Context) (T, error)) *running[T] {
	r := &running[T]{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.value, r.err = call(context.WithoutCancel(ctx))
	}()
	return r
}

// Done implements pending.
func (r *running[T]) Done() <-chan struct{} { return r.done }

// Result implements pending.
func (r *running[T]) Result() (T, error) { return r.value, r.err }

// await waits for what was begun, or for the budget. It goes on when nobody waits any
// more: a charge that has been sent is not undone by a caller that leaves. Of a result
// that nobody gets, and of one that is not known, lost is told, where not nil.
func await[T any](ctx context.Context, g *Guard, begun time.Time, wait time.Duration, p pending[T], lost func(T, error)) (T, error) {
	var none T
	budget := g.timer(wait)
	defer g.timers.Put(budget)
	defer budget.Stop()
	gone := gone(ctx, begun.Add(2*g.budget))
	for again := false; ; again = true {
		select {
		case <-p.Done():
			value, err := p.Result()
			g.ended(err)
			g.answered(err)
			if lost != nil && errors.Is(err, keytype.ErrOutcomeUnknown) {
				go lost(value, err)
			}
			return value, err
		case <-budget.C:
		case <-gone:
			go outlive(g, p, lost, func(err error) { g.answered(g.inTime(err, begun)) })
			return none, ctx.Err()
		}
		onTime := g.now().Sub(begun)-g.budget < g.budget/5
		// Where not, this process was late itself, which says nothing of the store: its answer may be here.
		if onTime || again {
			go outlive(g, p, lost, func(error) {})
			if onTime {
				g.answered(errTimeout)
			}
			return none, errTimeout
		}
		budget.Reset(g.budget)
	}
}

// timer is one that goes off after so long. A stopped one can go off no more, and serves again.
func (g *Guard) timer(wait time.Duration) *time.Timer {
	if timer, ok := g.timers.Get().(*time.Timer); ok {
		timer.Reset(wait)
		return timer
	}
	return time.NewTimer(wait)
}

// A bounded context ends with its outer one, or at its deadline, for which it makes a
// timer where somebody waits for its end.
type bounded interface {
	context.Context
	Outer() context.Context
}

// gone is closed when the context ends, for somebody who waits until the instant at most.
func gone(ctx context.Context, until time.Time) <-chan struct{} {
	if b, ok := ctx.(bounded); ok {
		if deadline, _ := b.Deadline(); deadline.After(until) {
			return b.Outer().Done()
		}
	}
	return ctx.Done()
}

// outlive waits for what nobody else waits for any more.
func outlive[T any](g *Guard, p pending[T], lost func(T, error), answered func(error)) {
	<-p.Done()
	value, err := p.Result()
	g.ended(err)
	answered(err)
	if lost != nil {
		lost(value, err)
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
		g.opened(g.breaker.ended(isOutage(err), togetherOf(err)), err)
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
