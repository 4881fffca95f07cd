package tokenlease

import (
	"sync"
	"sync/atomic"
	"time"
)

// An account is what is held of one key. Spending needs no lock; all else happens
// within a flight, of which there is one at a time.
type account struct {
	key  Key
	hash uint64
	next atomic.Pointer[account] // in the table

	left      atomic.Int64 // units
	expires   atomic.Int64 // until when they may be spent, on the lessee's clock
	low       atomic.Int64 // with so many left the next batch is fetched
	notBefore atomic.Int64 // until when none is
	missed    atomic.Int64 // units that were asked for and not spent from a batch
	received  atomic.Int64 // units granted and not given back or lapsed: those and no others were spent or are left
	grant     atomic.Pointer[Grant]
	refusal   atomic.Pointer[refusal]
	flight    atomic.Pointer[flight]

	// Of the flight.
	holder string
	held   int64 // what the source lets the holder hold
	most   int64 // what the account takes at most: less where others want some, too

	mu      sync.Mutex
	mark    time.Duration // guarded by mu: since when asked is counted from base
	base    int64         // guarded by mu
	rate    int64         // guarded by mu: units asked for within a LookAhead, of late
	before  int64         // guarded by mu: what was asked for when the account was last looked at
	touched time.Duration // guarded by mu: when that last rose
}

// A refusal is what the source said to a cost. When another one passes it did not say.
type refusal struct {
	cost   int64
	until  time.Duration // the source is not asked for that cost
	passes time.Duration // when the source would let it pass
	grant  *Grant
}

func newAccount(hash uint64, key Key, now time.Duration) *account {
	return &account{key: key, hash: hash, holder: NewHolder(), most: MaxBatch, mark: now, touched: now}
}

// spend takes the cost from what is left, all of it or nothing.
func (a *account) spend(cost int64, now time.Duration) (left int64, ok bool) {
	for {
		left = a.left.Load()
		if left < cost || now >= time.Duration(a.expires.Load()) {
			return left, false
		}
		if a.left.CompareAndSwap(left, left-cost) {
			return left - cost, true
		}
	}
}

// empty takes all that is left without spending it.
func (a *account) empty() int64 {
	n := a.left.Swap(0)
	a.received.Add(-n)
	return n
}

// take adds a grant to what was left when it was asked for.
func (a *account) take(g Grant, left int64, asked time.Duration) {
	a.held = left + g.Granted
	a.grant.Store(&g)
	a.expires.Store(int64(asked + g.ValidFor))
	a.low.Store(a.held / 5)
	a.received.Add(g.Granted)
	a.left.Add(g.Granted)
	a.forgive()
	if g.Room < 0 {
		return
	}
	// Where little room is left others may want some; where there is, it may be used.
	if g.Room < g.MaxOvershoot/8 {
		a.most = max(MinBatch, a.held*3/4)
	} else {
		a.most = min(MaxBatch, a.most+MaxBatch/16)
	}
}

func (a *account) refuse(g Grant, cost int64, now time.Duration) {
	until := now + min(max(g.RetryAfter, shortestRefusal), longestRefusal)
	a.refusal.Store(&refusal{cost: cost, until: until, passes: now + g.RetryAfter, grant: &g})
	a.notBefore.Store(int64(until))
}

// crowd leaves the key to the source for a while.
func (a *account) crowd(now time.Duration) {
	a.most = max(MinBatch, a.most/2)
	a.notBefore.Store(int64(now + crowdedTime))
}

// forgive forgets that the source refused.
func (a *account) forgive() {
	a.refusal.Store(nil)
	a.notBefore.Store(0)
}

// rename begins anew with the source, which may have anything under the name so far.
func (a *account) rename() { a.holder, a.held = NewHolder(), 0 }

// asked is how many units were asked for so far, those that were refused here not among them.
func (a *account) asked() int64 { return a.received.Load() - a.left.Load() + a.missed.Load() }

// demand is how many units are asked for within a LookAhead: what was of late, or
// what already has been.
func (a *account) demand(now time.Duration) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked() - a.base
	if passed := now - a.mark; passed >= LookAhead {
		a.rate >>= min(passed/LookAhead, 32) // halved by every LookAhead
		a.rate += asked * int64(LookAhead) / int64(passed) / 2
		a.base, a.mark, asked = a.base+asked, now, 0
	}
	return max(a.rate, asked)
}

// worth reports whether a batch is, and may be asked for, for a request of the cost.
func (a *account) worth(cost int64, now time.Duration) bool {
	return a.flight.Load() != nil || now >= time.Duration(a.notBefore.Load()) && a.demand(now) >= max(MinBatch, MinRequests*cost)
}

// batch is how many units the account should hold: those that are asked for within
// the LookAhead, or within half of what they are valid for.
func (a *account) batch(now time.Duration) int64 {
	n := a.demand(now)
	if g := a.grant.Load(); g != nil && g.ValidFor < 2*LookAhead {
		n = n * int64(g.ValidFor) / int64(2*LookAhead)
	}
	return min(max(n, MinBatch), a.most)
}

// What becomes of an account.
type verdict int

const (
	keep   verdict = iota
	yield          // give back what is left
	forget         // there is nothing left, and nobody asks
)

// look decides what becomes of an account: every sweepInterval of one that holds units.
func (a *account) look(now time.Duration) verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if asked := a.asked(); asked != a.before {
		a.before, a.touched = asked, now
	}
	idle := now - a.touched
	if a.left.Load() == 0 {
		if idle >= forgetTime && a.flight.Load() == nil {
			return forget
		}
		return keep
	}
	if idle >= idleTime || time.Duration(a.expires.Load())-now <= sweepInterval {
		return yield
	}
	return keep
}
