package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// MaxWait is the longest that an acquire may wait.
const MaxWait = time.Minute

const (
	pollEvery = 500 * time.Millisecond // ± a fifth, so that nodes do not meet
	tryTime   = 8 * time.Second        // for one try of a waiter
)

// A place is what waiters wait for.
type place struct{ tenant, resource string }

// A waiter is one caller in a line.
type waiter struct {
	owner, requestID string
	moved            chan struct{} // holds one element when the waiter has to look again
	again            bool          // a grant was made that it asked for too; guarded by lines.mu
}

// A line is the callers of this node who wait for one resource, first come first. Only
// the first of them asks the store.
type line struct {
	waiters []*waiter
	next    time.Time  // when to ask again, by the monotonic clock
	held    *HeldError // what the last try met, nil before
	wakes   int        // how often the resource was released meanwhile
}

// lines are all there are on this node; an empty one is removed.
type lines struct {
	mu sync.Mutex // guards all below, the lines and their waiters too
	at map[place]*line
}

func (l *lines) join(p place, req AcquireRequest) (w *waiter, first bool) {
	w = &waiter{owner: req.Owner, requestID: req.RequestID, moved: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at[p] == nil {
		l.at[p] = &line{}
	}
	l.at[p].waiters = append(l.at[p].waiters, w)
	return w, len(l.at[p].waiters) == 1
}

func (l *lines) leave(p place, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.at[p]
	wasFirst := q.waiters[0] == w
	q.waiters = slices.DeleteFunc(q.waiters, func(other *waiter) bool { return other == w })
	switch {
	case len(q.waiters) == 0:
		delete(l.at, p)
	case wasFirst:
		q.waiters[0].look()
	}
}

// due says whether it is for this waiter to ask the store, and in how long.
func (l *lines) due(p place, w *waiter) (in time.Duration, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.at[p]
	switch {
	case w.again:
		w.again = false
		return 0, true
	case q.waiters[0] != w:
		return 0, false
	default:
		return max(0, time.Until(q.next)), true
	}
}

// wakes is to be read before a try, which sees every release that was before it.
func (l *lines) wakes(p place) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[p].wakes
}

// met keeps what a try met, and when to try again: at the latest when the resource
// can be free, and at once if it was released during the try.
func (l *lines) met(p place, wakes int, held *HeldError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at[p].held = held
	l.at[p].postpone(wakes, min(pollTime(), held.RetryAfter))
}

// postpone leaves the next try where it is if a release woke the line since then.
func (q *line) postpone(wakes int, by time.Duration) {
	if q.wakes == wakes {
		q.next = time.Now().Add(by)
	}
}

// answered is after a try that the waiter's wait ends with. Those who repeat a request
// that was granted ask at once; whoever is first now does not press a store that fails.
func (l *lines) answered(p place, w *waiter, wakes int, granted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.at[p]
	q.postpone(wakes, pollTime())
	for _, other := range q.waiters {
		if granted && other != w && w.requestID != "" && other.requestID == w.requestID && other.owner == w.owner {
			other.again = true
			other.look()
		}
	}
}

// wake has the first waiter ask at once, if there is one: the resource was released.
func (l *lines) wake(p place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.at[p]; q != nil {
		q.next = time.Time{}
		q.wakes++
		q.waiters[0].look()
	}
}

// last is what the line met, nil where nothing was asked yet.
func (l *lines) last(p place) *HeldError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[p].held
}

func (w *waiter) look() {
	select {
	case w.moved <- struct{}{}:
	default: // it has to already
	}
}

func pollTime() time.Duration {
	return pollEvery - pollEvery/5 + rand.N(2*pollEvery/5) //nolint:gosec // spreads polls, hides nothing
}

// wait stands in the resource's line until a try is answered by something else than
// a *HeldError, or the time is over. A caller that is gone leaves the line.
func (m *Manager) wait(ctx context.Context, p place, req AcquireRequest, try func(context.Context) (Grant, error)) (Grant, error) {
	over := time.NewTimer(req.Wait)
	defer over.Stop()
	stillMay := req.StillMay
	if stillMay == nil {
		stillMay = func(context.Context) error { return nil }
	}
	late := func(ctx context.Context) (Grant, error) {
		if err := stillMay(ctx); err != nil {
			return Grant{}, err
		}
		return try(ctx)
	}
	w, first := m.lines.join(p, req)
	defer m.lines.leave(p, w)
	if !first && req.RequestID != "" { // the grant may be its own: then waiting for its end is in vain
		s, err := m.store.Get(ctx, p.tenant, p.resource)
		if err != nil {
			return Grant{}, err
		}
		if s.RequestID == req.RequestID && s.Owner == req.Owner {
			return try(ctx)
		}
	}
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		var due <-chan time.Time
		if in, mine := m.lines.due(p, w); mine {
			poll.Reset(in)
			due = poll.C
		}
		select {
		case <-due:
			if err := stillMay(ctx); err != nil {
				return Grant{}, err
			}
			wakes := m.lines.wakes(p)
			g, err := m.tryAwaited(ctx, p, req, try)
			if err == nil {
				g, err = m.keepIf(ctx, p, g, stillMay)
			}
			held, isHeld := errors.AsType[*HeldError](err)
			if !isHeld {
				m.lines.answered(p, w, wakes, err == nil)
				return g, err
			}
			m.lines.met(p, wakes, held)
		case <-w.moved:
		case <-over.C:
			return m.waitedInVain(ctx, p, late)
		case <-m.done:
			return m.waitedInVain(ctx, p, late)
		case <-ctx.Done():
			return Grant{}, ctx.Err()
		}
	}
}

// keepIf gives the grant back of a caller whose rights ended while it was made. That the
// caller has gone away is no such end.
func (m *Manager) keepIf(ctx context.Context, p place, g Grant, stillMay func(context.Context) error) (Grant, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTime)
	defer cancel()
	ended := stillMay(ctx)
	if ended == nil {
		return g, nil
	}
	return Grant{}, errors.Join(ended, m.Release(ctx, p.tenant, p.resource, Holder{ID: g.ID, Token: g.Token}))
}

// waitedInVain says who held the resource when the line last looked.
func (m *Manager) waitedInVain(ctx context.Context, p place, try func(context.Context) (Grant, error)) (Grant, error) {
	held := m.lines.last(p)
	if held == nil {
		return try(ctx)
	}
	left := max(held.HeldUntil.Sub(m.clock()), 0) + time.Millisecond
	return Grant{}, &HeldError{HeldUntil: held.HeldUntil, RetryAfter: left}
}

// tryAwaited awaits the answer even if the caller goes away meanwhile: nobody would
// know of its grant, so it is given back. With a request id the caller can ask again.
func (m *Manager) tryAwaited(ctx context.Context, p place, req AcquireRequest, try func(context.Context) (Grant, error)) (Grant, error) {
	awaited, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTime)
	defer cancel()
	g, err := try(awaited)
	if err != nil || ctx.Err() == nil || req.RequestID != "" {
		return g, err
	}
	if err := m.Release(awaited, p.tenant, p.resource, Holder{ID: g.ID, Token: g.Token}); err != nil {
		return Grant{}, errors.Join(ctx.Err(), err)
	}
	return Grant{}, ctx.Err()
}
