package auth

import (
	"cmp"
	"context"
	"sync"
	"time"
)

const (
	keepFound   = 30 * time.Second // how long a revocation on another node may go unseen
	renewFound  = 5 * time.Second  // when a key in use is read again, so that in an outage it counts for the rest of keepFound
	keepMissing = 5 * time.Second  // how long a key made on another node may go unseen
	maxKept     = 10_000           // answers of each kind
	loadTimeout = 5 * time.Second
)

// A cache remembers what the store said about an id. Found and missing ids have
// room of their own, so that a flood of wrong keys pushes no good one out.
type cache struct {
	load func(ctx context.Context, id string) (Record, bool, error)
	now  func() time.Time // with its monotonic reading: only ages are taken from it

	mu      sync.Mutex
	found   shelf              // guarded by mu
	missing shelf              // guarded by mu
	pending map[string]*answer // guarded by mu
}

// An answer is one read of the store, which all that ask for the id meanwhile share.
type answer struct {
	asked time.Time // before the read began: it is as old as that
	done  chan struct{}

	// Set before done is closed.
	rec   Record
	found bool
	err   error
}

// youngerThan is false as well for an answer from the future: the clock went back.
func (a *answer) youngerThan(life time.Duration, now time.Time) bool {
	age := now.Sub(a.asked)
	return age >= 0 && age < life
}

func newCache(store Store, now func() time.Time) *cache {
	return &cache{
		load:    store.Get,
		now:     now,
		found:   shelf{life: keepFound, answers: map[string]*answer{}},
		missing: shelf{life: keepMissing, answers: map[string]*answer{}},
		pending: map[string]*answer{},
	}
}

// get returns the id's record, as it was at most keepFound ago. Failures are not remembered.
func (c *cache) get(ctx context.Context, id string) (Record, bool, error) {
	a := c.ask(ctx, id)
	select {
	case <-a.done: // as nearly always: a context is not asked for its end without need
		return a.rec, a.found, a.err
	default:
	}
	select {
	case <-a.done:
		return a.rec, a.found, a.err
	case <-ctx.Done():
		return Record{}, false, ctx.Err()
	}
}

// ask returns a remembered answer, else one that is on its way. One that is no longer
// young is read again meanwhile.
func (c *cache) ask(ctx context.Context, id string) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if a := c.missing.get(id, now); a != nil {
		return a
	}
	known := c.found.get(id, now)
	if known != nil && known.youngerThan(renewFound, now) {
		return known
	}
	return cmp.Or(known, c.read(ctx, id, now))
}

// read joins a young read of the store, or starts one. The caller holds c.mu.
func (c *cache) read(ctx context.Context, id string, now time.Time) *answer {
	if a := c.pending[id]; a != nil && a.youngerThan(loadTimeout, now) {
		return a
	}
	a := &answer{asked: now, done: make(chan struct{})}
	c.pending[id] = a
	// Without the asker's end: others wait for the same answer.
	go c.fetch(context.WithoutCancel(ctx), id, a)
	return a
}

func (c *cache) fetch(ctx context.Context, id string, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	a.rec, a.found, a.err = c.load(ctx, id)
	c.keep(id, a)
	close(a.done)
}

// keep moves an answer from pending to where its kind is kept.
func (c *cache) keep(id string, a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[id] != a {
		return // forgotten meanwhile: what was read may be older than the change
	}
	delete(c.pending, id)
	switch {
	case a.err != nil:
	case a.found:
		c.found.put(id, a)
	default:
		delete(c.found.answers, id)
		c.missing.put(id, a)
	}
}

// forget makes every get that begins from now on read the store. A read that is
// on its way still answers those that wait for it, and nobody after them.
func (c *cache) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
	delete(c.found.answers, id)
	delete(c.missing.answers, id)
}

// A shelf keeps up to maxKept answers, each for its life.
type shelf struct {
	life    time.Duration
	answers map[string]*answer
}

func (s *shelf) get(id string, now time.Time) *answer {
	a := s.answers[id]
	if a == nil {
		return nil
	}
	if !a.youngerThan(s.life, now) {
		delete(s.answers, id)
		return nil
	}
	return a
}

func (s *shelf) put(id string, a *answer) {
	if _, replaced := s.answers[id]; !replaced && len(s.answers) >= maxKept {
		s.dropOne()
	}
	s.answers[id] = a
}

// dropOne makes room. Go ranges over a map from a random place, which no caller can steer.
func (s *shelf) dropOne() {
	for id := range s.answers {
		delete(s.answers, id)
		return
	}
}
