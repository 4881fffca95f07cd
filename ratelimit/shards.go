package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// MaxShards is how many parts a limit may have.
const MaxShards = 64

// shardable reports whether parts of the algorithm's limit add up to the limit. Leaky
// buckets would let as many flow at once as there are, and a slot must be found again.
func (a Algorithm) shardable() bool { return a != LeakyBucket && a != Concurrency }

// shardsOf is into how many buckets the limit is split under a rule: no more than can
// have a unit each, and a rate that is not too slow. The rule of a Part may allow fewer
// than the policy.
func (l Limit) shardsOf(r Rule) int64 {
	n := min(int64(l.Shards), r.Burst)
	if r.Algorithm.refills() {
		n = min(n, maxPer.Microseconds()/r.Per)
	}
	return max(1, n)
}

// shard is what bucket k of n has of the rule. A rate is divided exactly, by its time;
// units that are left over go to the first buckets.
func (r Rule) shard(k, n int64) Rule {
	r.Burst = share(r.Burst, k, n)
	if r.Algorithm.refills() {
		r.Per *= n
	} else {
		r.Count = share(r.Count, k, n)
	}
	return r
}

func share(units, k, n int64) int64 {
	if k < units%n {
		return units/n + 1
	}
	return units / n
}

// capacity is the largest cost that passes limit i, in whichever of its buckets.
func (m match) capacity(i int) int64 {
	rule := m.buckets[i].Rule
	return rule.Burst / m.Limits[i].shardsOf(rule)
}

// left is how many units limit i has left, if its other buckets are as the one that was met.
func (m match) left(i int, inBucket int64) int64 {
	whole := m.buckets[i].Rule.Burst
	if m.met == nil || m.met[i].Rule.Burst == whole {
		return inBucket
	}
	left, _ := mulDiv(inBucket, whole, m.met[i].Rule.Burst)
	return left
}

// A spot decides which bucket of a limit a request meets: by its descriptors that the
// limit's key does not name, so that what belongs together meets the same one again. One
// without such goes by its id, so that a retry finds what it charged; and one without an
// id takes turns.
type spot struct {
	descriptors map[string]string
	parts       []Part // of CheckParts: the descriptors of all of them
	id          string
	turns       *turns
	looks       bool // which takes no turn
	gives       bool // back what the last check took
}

// back is the spot of a refund.
func (s spot) back() spot {
	s.gives = true
	return s
}

func (l *Limiter) spot(req Request, looks bool) spot {
	return spot{descriptors: req.Descriptors, id: req.RequestID, turns: l.turns, looks: looks}
}

func (l *Limiter) spotOfParts(parts []Part, looks bool) spot {
	return spot{parts: parts, turns: l.turns, looks: looks}
}

// of is the hash by which a limit with the key chooses, and whether there is anything to hash.
func (s spot) of(key []string) (sum uint64, found bool) {
	add := func(descriptors map[string]string) {
		for name, value := range descriptors {
			if !slices.Contains(key, name) {
				sum, found = sum+stableHash(name, value), true // in any order
			}
		}
	}
	add(s.descriptors)
	for _, part := range s.parts {
		add(part.Descriptors)
	}
	if !found && s.id != "" {
		return stableHash("", s.id), true
	}
	return sum, found
}

// stableHash is the same on every node: FNV-1a (draft-eastlake-fnv) over both, and
// MurmurHash3's finalizer, because the last bits choose.
func stableHash(name, value string) uint64 {
	h := uint64(14695981039346656037)
	for _, part := range [...]string{name, "\x00", value} { // no id holds a NUL
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * 1099511628211
		}
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// spread puts in place of each limit with shards the bucket that the request meets.
func (m match) spread(s spot) []Bucket {
	if !m.sharded() {
		return m.buckets
	}
	met := slices.Clone(m.buckets)
	turn, taken := uint64(0), false
	for i, limit := range m.Limits {
		n := limit.shardsOf(met[i].Rule)
		if n == 1 {
			continue
		}
		hash, found := s.of(limit.Key)
		if !found {
			if !taken { // one for all limits, or each would see every other turn only
				turn, taken = s.turns.next(m.described[i], s), true
			}
			hash = turn
		}
		met[i] = m.shard(i, int64(hash%uint64(n)), n) //nolint:gosec // 2 to 64
	}
	return met
}

// everywhere is all buckets of all limits, as far as the policy has them.
func (m match) everywhere() []Bucket {
	if !m.sharded() {
		return m.buckets
	}
	var all []Bucket
	for i, limit := range m.Limits {
		n := limit.shardsOf(m.buckets[i].Rule)
		if n == 1 {
			all = append(all, m.buckets[i])
			continue
		}
		for k := range n {
			all = append(all, m.shard(i, k, n))
		}
	}
	return all
}

func (m match) sharded() bool {
	return slices.ContainsFunc(m.Limits, func(l Limit) bool { return l.Shards > 1 })
}

// shard is bucket k of the n of limit i.
func (m match) shard(i int, k, n int64) Bucket {
	b := m.buckets[i]
	b.Rule = b.Rule.shard(k, n)
	number := strconv.FormatInt(k, 10)
	b.Key = m.Limits[i].storedShard(m.tenant, m.Name, "/"+number, m.described[i])
	b.Tag = "shard " + number + "/" + strconv.FormatInt(n, 10) + " " + b.Tag
	return b
}

// ShardOf takes the tag of a bucket apart that is one of several of a limit: into the tag
// that the limit would have whole, and which of how many this is, from 0. Other tags come
// back as they are, and 0 of 1. A partitioned store should put the shards of one tag on
// parts as different as it has.
func ShardOf(tag string) (whole string, shard, of int) {
	numbers, found := strings.CutPrefix(tag, "shard ")
	if !found { // as nearly all
		return tag, 0, 1
	}
	numbers, whole, ok := strings.Cut(numbers, " ")
	first, second, split := strings.Cut(numbers, "/")
	shard, err := strconv.Atoi(first)
	of, err2 := strconv.Atoi(second)
	if !ok || !split || err != nil || err2 != nil {
		return tag, 0, 1
	}
	return whole, shard, of
}

// turns lets the requests for one limit take turns at its buckets. Many share a counter;
// all begin where chance wants, or all nodes would begin at the first bucket.
type turns struct {
	start    uint64
	counters [256]struct {
		taken atomic.Uint64
		back  atomic.Uint64 // refunds since the last check
	}
}

func newTurns() *turns { return &turns{start: rand.Uint64()} } //nolint:gosec // nothing depends on it being hard to guess

// next is whose turn it is for what a request describes. A refund meets what the last check
// met, and the one after it what the check before that met. It takes no turn back: who gives
// a part of each check back would meet one bucket only.
func (t *turns) next(described string, s spot) uint64 {
	hash := stableHash("", described)
	c := &t.counters[hash%uint64(len(t.counters))]
	switch {
	case s.looks:
		return t.start + hash + c.taken.Load()
	case s.gives:
		return t.start + hash + c.taken.Load() - c.back.Add(1)
	}
	if c.back.Load() != 0 { // which most checks need not write
		c.back.Store(0)
	}
	return t.start + hash + c.taken.Add(1) - 1
}

// checkShards refuses what cannot be split so that each part counts for itself.
func (p Policy) checkShards(wrong *mistakes) {
	for _, l := range p.Limits {
		if l.Shards > 1 && p.Mode == Leased {
			wrong.add(fmt.Errorf("mode %s is not for limit %s, which has shards: one of both is enough", Leased, l.Name))
		}
	}
}

func (l Limit) checkShards() (wrong mistakes) {
	switch {
	case l.Shards == 0:
		return nil
	case l.Shards < 2 || l.Shards > MaxShards:
		wrong.add(fmt.Errorf("shards %d must be from 2 to %d", l.Shards, MaxShards))
	case !l.Algorithm.shardable():
		wrong.add(fmt.Errorf("shards are not for %s", l.Algorithm))
	case l.capacity() < int64(l.Shards):
		wrong.add(fmt.Errorf("shards %d are more than the limit's capacity of %d: each needs a unit", l.Shards, l.capacity()))
	case l.Algorithm.refills() && (l.Rate.Per*time.Duration(l.Shards) > maxPer || l.rule().shard(0, int64(l.Shards)).tooSlow()):
		wrong.add(fmt.Errorf("shards %d of so slow a rate would need more than 366 days for its count, or 36,600 for the burst", l.Shards))
	}
	return wrong
}
