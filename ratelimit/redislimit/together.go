package redislimit

import (
	"slices"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Takes of the same cost from the same buckets that wait for the same convoy go as one,
// whose cost is that of all: what is taken at one instant is taken in any order. Where
// all of it passes, each is told what it would have been told after those before it.
// Where it does not, and not even one alone would pass, that is everybody's answer. In
// between each asks for itself.

// combines reports whether such a Take can be one of several.
func (s *Store) combines(t *ratelimit.Take) bool {
	return !s.opts.TakesNow && t.Record == "" && !t.Pending && !slices.ContainsFunc(t.Buckets, func(b ratelimit.Bucket) bool {
		return b.Rule.Algorithm == ratelimit.LeakyBucket || b.Rule.Algorithm == ratelimit.Concurrency // each has a turn, or a slot, of its own
	})
}

// A like is what Takes must have in common to be combined, besides the rest of their buckets.
type like struct {
	first string // the key of the first bucket
	cost  int64
}

func (a *asked) like() like { return like{a.take.Buckets[0].Key, a.take.Cost} }

// join has the Take decided by one that waits, if there is one like it with room for more.
func (c *convoy) join(a *asked) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	leader := c.leaders[a.like()]
	if leader == nil || !slices.Equal(leader.take.Buckets, a.take.Buckets) {
		return false
	}
	for _, b := range a.take.Buckets {
		if b.CostOf(a.take.Cost)*(leader.count+1) > b.Rule.Burst {
			return false
		}
	}
	leader.count++
	a.leader, a.nth, a.landed = leader, leader.count, leader.landed
	return true
}

// times is the Take n times.
func times(t ratelimit.Take, n int64) ratelimit.Take {
	t.Cost *= n
	t.Buckets = slices.Clone(t.Buckets)
	for i := range t.Buckets {
		t.Buckets[i].Cost *= n
	}
	return t
}

// gather makes the leader's command that of all who joined. Nobody joins any more.
func (a *asked) gather() {
	if a.count == 1 {
		return
	}
	all := times(a.take, a.count)
	words := a.cmd.Args()[:3+len(all.Buckets)] // but for the numbers they stay
	a.send(a.ctx, a.store.appendArgs(words, asking(&all)))
}

// share is the Take as it stands after those before it, or false where it must be decided alone.
func (a *asked) share(seen sight) (ratelimit.Take, bool) {
	if a.leader.count == 1 {
		return a.take, true
	}
	if seen.status != refused {
		return times(a.take, a.nth), true
	}
	alone := a.take
	alone.Now = seen.now
	_, out, err := alone.Decide(seen.stored)
	return a.take, err != nil || !out.Allowed
}
