// Package tokenlease decides whether a request may happen now by units that this
// process took ahead, a batch at a time, from where they are counted.
//
// A [Lessee] watches how much is asked for under each key. One that is asked for
// often gets a batch from the [Source], spends it in memory, and fetches the next one
// in the background before it is used up. What a key does not need goes back. A key
// that is asked for seldom gets no batch: the source decides each of its requests.
//
// What passes is more than the source alone would have let pass, at any time, by no
// more than all lessees hold at that time. It is the source that bounds how much they
// hold together.
package tokenlease

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// What a lessee takes, and for how long.
const (
	// MinBatch is the smallest batch that is worth its call.
	MinBatch = 5
	MaxBatch = 500
	// MinRequests is how many requests a batch must be good for: what costs more than that
	// part of MaxBatch, or comes more seldom within LookAhead, is left to the source.
	MinRequests = 5
	// LookAhead is the time for which a batch is to last, at the rate at which the key was asked for.
	LookAhead = 250 * time.Millisecond

	sweepInterval   = 50 * time.Millisecond
	sweepsOfAll     = 20
	idleTime        = 300 * time.Millisecond // without use, after which a batch goes back
	forgetTime      = 2 * time.Second        // without use, after which a key without a batch is forgotten
	crowdedTime     = 100 * time.Millisecond // until a batch is asked for again where others hold all that may be held
	shortestRefusal = 10 * time.Millisecond  // for which a source that refused is not asked
	longestRefusal  = time.Second
	maxKeys         = 1 << 16
)

// A Key says what a request asks for. Requests with the same key share a batch.
type Key struct {
	Tenant, Policy string
	// Names are the descriptors that count; nil means all.
	Names       []string
	Descriptors map[string]string
	// Version changes when what was leased before must not be spent any more.
	Version uint64
}

// An Ask is what a lessee wants from a source.
type Ask struct {
	Key
	// Holder names this lessee's batches of the key: a new one takes the place of those before.
	Holder string
	Held   int64 // what the source last let the holder hold
	Left   int64 // what the holder has of it and may still spend, 0 to Held
	Want   int64 // units besides, 1 to MaxBatch
	Least  int64 // what is of no use below, 1 to Want
}

// A Grant is what a source gives, or why it does not.
type Grant struct {
	Granted int64
	// ValidFor is for how long the granted units, and what the holder had left, may be
	// spent, counted from when the source was asked.
	ValidFor time.Duration
	// RetryAfter is when as many as were asked for at least are there; 0 with nothing
	// granted means that they are, but that lessees hold as much as they may.
	RetryAfter time.Duration
	// MaxOvershoot is what all lessees may hold together.
	MaxOvershoot int64
	// Room is how much of it nobody holds now; less than 0 where the source does not say.
	Room int64
	// Ref is the source's own.
	Ref any
}

// An Unspent is what goes back.
type Unspent struct {
	Key
	Holder string
	Units  int64
	Ref    any // of the last grant
}

// A Source counts the units and hands out batches of them.
//
// Lease charges what it grants, and no more is ever held by all holders of a key than
// MaxOvershoot: what they were granted and did not give back, for as long as it is
// valid. What a refused holder had left stays its own.
//
// An error means that it is not known what was done. Nothing is spent of such a
// batch, and the holder takes another name.
type Source interface {
	Lease(ctx context.Context, ask Ask) (Grant, error)
	Return(ctx context.Context, unspent Unspent) error
}

// An Answer is what a lessee says of a request.
type Answer struct {
	Allowed bool
	// Exact says that nothing was decided: the request is for the source.
	Exact      bool
	Left       int64         // of the batch, after the request
	RetryAfter time.Duration // where the request was refused: until it is asked for anew or would pass
	// Grant is the one that the answer rests on.
	Grant *Grant
}

// An Event is what became of units.
type Event string

// The events. All that was taken is spent, returned or lapsed in the end.
const (
	Taken    Event = "taken"
	Returned Event = "returned"
	Lapsed   Event = "lapsed" // not spent in time, or in doubt
)

// Options of a lessee; the zero value works.
type Options struct {
	// Observe is told of units, by policy.
	Observe func(policy string, event Event, units int64)
	Now     func() time.Time // nil = time.Now; the time between two readings must be right
}

// A Lessee spends batches. It is safe for concurrent use.
type Lessee struct {
	source  Source
	observe func(string, Event, int64)
	now     func() time.Time
	start   time.Time
	table   table
	closed  atomic.Bool
	closing sync.RWMutex // held by what starts a flight: none does once Close waits for them
	flights sync.WaitGroup
}

// New makes a lessee. [Lessee.Run] must run for batches to go back in time.
func New(source Source, opts Options) *Lessee {
	l := &Lessee{source: source, observe: opts.Observe, now: opts.Now, table: newTable()}
	if l.observe == nil {
		l.observe = func(string, Event, int64) {}
	}
	if l.now == nil {
		l.now = time.Now
	}
	l.start = l.now()
	return l
}

// clock is the time since the lessee was made.
func (l *Lessee) clock() time.Duration { return l.now().Sub(l.start) }

// Spend decides on a request. It waits only where the key's batch is used up and
// another one worth having: then for the source, or until ctx ends. Errors are those
// of the source, and of ctx.
func (l *Lessee) Spend(ctx context.Context, key Key, cost int64) (Answer, error) {
	if cost < 1 || cost > MaxBatch/MinRequests || l.closed.Load() {
		return Answer{Exact: true}, nil
	}
	hash, ok := l.table.hash(key)
	if !ok {
		return Answer{Exact: true}, nil
	}
	now := l.clock()
	a := l.table.find(hash, key)
	if a == nil {
		if a = l.table.open(hash, key, now); a == nil {
			return Answer{Exact: true}, nil
		}
	}
	if left, ok := a.spend(cost, now); ok {
		if left <= a.low.Load() && a.flight.Load() == nil && now >= time.Duration(a.notBefore.Load()) {
			l.fly(ctx, a, 1)
		}
		return Answer{Allowed: true, Left: left, Grant: a.grant.Load()}, nil
	}
	return l.fetch(ctx, a, cost, now)
}

// maxFlights is for how many batches one request waits, all of which others used up before it.
const maxFlights = 3

// fetch decides where the batch does not suffice.
func (l *Lessee) fetch(ctx context.Context, a *account, cost int64, now time.Duration) (Answer, error) {
	for try := range maxFlights {
		if r := a.refusal.Load(); r != nil && now < r.until && cost == r.cost {
			return Answer{RetryAfter: max(r.until, r.passes) - now, Grant: r.grant}, nil
		}
		if try == 0 {
			a.missed.Add(cost)
		}
		if !a.worth(cost, now) {
			break
		}
		var err error
		if f := l.fly(ctx, a, cost); f != nil {
			select {
			case <-f.done:
				err = f.err
			case <-ctx.Done():
				return Answer{}, ctx.Err()
			}
		}
		now = l.clock()
		if left, ok := a.spend(cost, now); ok {
			return Answer{Allowed: true, Left: left, Grant: a.grant.Load()}, nil
		}
		if err != nil {
			return Answer{}, err
		}
	}
	return Answer{Exact: true}, nil
}

// A flight is one call to the source on behalf of a key. There is one at a time.
type flight struct {
	done chan struct{}
	err  error // of a batch that was asked for; readable once done
}

// fly begins a flight for a batch, or finds the one that is under way; nil where that
// has just ended, or the lessee ends.
func (l *Lessee) fly(ctx context.Context, a *account, least int64) *flight {
	return l.begin(a, func() error { return l.refill(context.WithoutCancel(ctx), a, least) })
}

func (l *Lessee) begin(a *account, run func() error) *flight {
	f := &flight{done: make(chan struct{})}
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed.Load() {
		return nil
	}
	if !a.flight.CompareAndSwap(nil, f) {
		return a.flight.Load()
	}
	l.flights.Go(func() {
		defer close(f.done)
		defer a.flight.Store(nil)
		f.err = run()
	})
	return f
}

// refill asks the source for the key's next batch.
func (l *Lessee) refill(ctx context.Context, a *account, least int64) error {
	now := l.clock()
	l.lapse(a, now)
	left := a.left.Load()
	want := a.batch(now) - left
	if want < least && left >= least {
		return nil
	}
	g, err := l.source.Lease(ctx, Ask{Key: a.key, Holder: a.holder, Held: a.held, Left: left, Want: max(want, least), Least: least})
	switch {
	case err != nil:
		a.rename()
		return err
	case g.Granted > 0:
		a.take(g, left, now)
		l.observe(a.key.Policy, Taken, g.Granted)
	case g.RetryAfter > 0:
		a.refuse(g, least, now)
	default:
		a.crowd(now)
	}
	return nil
}

// lapse drops what may not be spent any more.
func (l *Lessee) lapse(a *account, now time.Duration) {
	if now < time.Duration(a.expires.Load()) {
		return
	}
	a.held = 0
	if n := a.empty(); n > 0 {
		l.observe(a.key.Policy, Lapsed, n)
	}
}

// giveBack returns what is left to the source.
func (l *Lessee) giveBack(ctx context.Context, a *account) error {
	l.lapse(a, l.clock())
	n := a.empty()
	if n == 0 {
		return nil
	}
	unspent := Unspent{Key: a.key, Holder: a.holder, Units: n}
	if g := a.grant.Load(); g != nil {
		unspent.Ref = g.Ref
	}
	a.rename()
	if err := l.source.Return(ctx, unspent); err != nil {
		l.observe(a.key.Policy, Lapsed, n)
		return err
	}
	l.observe(a.key.Policy, Returned, n)
	return nil
}

// Return gives back what is left of the key's batch, and forgets that the source
// refused: what the source says of the key has been changed by somebody. Without a
// batch it does nothing. Errors are those of the source, and of ctx.
func (l *Lessee) Return(ctx context.Context, key Key) error {
	hash, ok := l.table.hash(key)
	if !ok {
		return nil
	}
	a := l.table.find(hash, key)
	if a == nil {
		return nil
	}
	var err error
	for mine := false; !mine && !l.closed.Load(); {
		f := l.begin(a, func() error {
			mine = true
			a.forgive()
			err = l.giveBack(context.WithoutCancel(ctx), a)
			return nil
		})
		if f == nil {
			continue
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// Run gives back what is not needed, until ctx ends.
func (l *Lessee) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.sweep(ctx, i%sweepsOfAll == 0)
		}
	}
}

// sweep looks at what holds units, and sometimes at all.
func (l *Lessee) sweep(ctx context.Context, all bool) {
	now := l.clock()
	for a := range l.table.all() {
		if !all && a.left.Load() == 0 {
			continue
		}
		switch a.look(now) {
		case keep:
		case yield:
			l.begin(a, func() error { _ = l.giveBack(context.WithoutCancel(ctx), a); return nil }) // then it lapses
		case forget:
			l.table.remove(a)
		}
	}
}

// returners is how many batches go back at a time when the lessee ends.
const returners = 16

// Close gives all batches back, and waits for what is under way, as far as ctx lets it.
// Afterwards every request is for the source. Errors are those of the source, and of ctx.
func (l *Lessee) Close(ctx context.Context) error {
	l.closing.Lock()
	l.closed.Store(true)
	l.closing.Unlock()
	landed := make(chan struct{})
	go func() {
		defer close(landed)
		l.flights.Wait()
	}()
	select {
	case <-landed:
	case <-ctx.Done():
		return ctx.Err() // what is held lapses
	}
	var (
		mu   sync.Mutex
		errs []error
		work = make(chan *account)
		done sync.WaitGroup
	)
	for range returners {
		done.Go(func() {
			for a := range work {
				if err := l.giveBack(ctx, a); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for a := range l.table.all() {
		if a.left.Load() > 0 {
			work <- a
		}
	}
	close(work)
	done.Wait()
	return errors.Join(errs...)
}

// Held is how many units this lessee holds, by policy.
func (l *Lessee) Held() map[string]int64 {
	held := map[string]int64{}
	now := l.clock()
	for a := range l.table.all() {
		if now < time.Duration(a.expires.Load()) {
			held[a.key.Policy] += a.left.Load()
		}
	}
	return held
}

// NewHolder makes a name for a holder.
func NewHolder() string { return rand.Text()[:16] }
