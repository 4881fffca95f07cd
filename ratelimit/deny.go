package ratelimit

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

// SourceDenyCache is this process's memory of what the store refused just before.
const SourceDenyCache Source = "deny_cache"

// Bounds of what is remembered. All shelves together hold 16,384 refusals, and at most
// some 10 MB.
const (
	longestDenial = 5 * time.Second
	longestDenied = 512 // bytes of a bucket's key
	shelves       = 64
	onShelf       = 256
	looksToEvict  = 8
	watched       = 8 // buckets of a request, the first ones
)

// denials are refusals that a process remembers until the refused cost would pass, so
// that a bucket which has nothing left is not asked for again by everybody who meets it.
// They belong to one set of policies, and end with it.
//
// A refusal is remembered under the bucket that refused: whoever meets the same bucket
// meets the refusal, whatever the other limits of the request.
type denials struct {
	seed    maphash.Seed
	shelves [shelves]shelf
}

type shelf struct {
	mu    sync.RWMutex
	kept  map[string]denial // guarded by mu, by the bucket's key
	drops uint64            // guarded by mu
}

// A denial holds for its cost, and for a larger one where it tells when that passes. Its
// instants are in microseconds.
type denial struct {
	rule      Rule
	cost      int64
	until     int64 // from then on the store is asked again
	passes    int64 // when the cost passes if nobody takes anything
	full      int64 // when the bucket is full
	remaining int64
}

func newDenials() *denials { return &denials{seed: maphash.MakeSeed()} }

func (d *denials) shelf(key string) *shelf { return &d.shelves[maphash.String(d.seed, key)%shelves] }

// find returns what is remembered of the bucket, and how often something was dropped
// where it lies.
func (d *denials) find(b Bucket, cost, now int64) (found denial, drops uint64, refuses bool) {
	s := d.shelf(b.Key)
	s.mu.RLock()
	found, refuses = s.kept[b.Key]
	drops = s.drops
	s.mu.RUnlock()
	if !refuses || now >= found.until || cost < found.cost || b.Rule != found.rule {
		return denial{}, drops, false
	}
	later, known := b.Rule.later(found.cost, cost)
	found.passes += later
	return found, drops, known
}

// later is how much later a cost passes than a smaller one that was refused, in
// microseconds, and whether that is known.
func (r Rule) later(refused, cost int64) (us int64, known bool) {
	switch {
	case cost == refused, r.Algorithm == FixedWindow:
		return 0, true
	case r.Algorithm.refills():
		return r.sub(r.price(cost), r.price(refused)).ceil(), true
	default:
		return 0, false
	}
}

// remember keeps a refusal, unless something was dropped since drops was read: it may
// have been decided before what a refund or a reset changed.
func (d *denials) remember(key string, one denial, drops uint64) {
	s := d.shelf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops != drops {
		return
	}
	if s.kept == nil {
		s.kept = make(map[string]denial)
	}
	if _, known := s.kept[key]; !known && len(s.kept) >= onShelf {
		s.evict()
	}
	s.kept[strings.Clone(key)] = one
}

// evict makes room. It looks at a few, in no order, and takes the one that ends first.
func (s *shelf) evict() {
	first, looks := "", 0
	for key, one := range s.kept {
		if first == "" || one.until < s.kept[first].until {
			first = key
		}
		if looks++; looks == looksToEvict {
			break
		}
	}
	delete(s.kept, first)
}

// drop forgets the bucket's refusal, and what is being decided about it.
func (d *denials) drop(key string) {
	s := d.shelf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drops++
	delete(s.kept, key)
}

// rememberDenials gives the set's policies one memory of refusals.
func (s *set) rememberDenials() {
	s.denials = newDenials()
	for _, p := range s.policies {
		p.denials = s.denials
	}
}

// dropDenials forgets the refusals of buckets that were filled, also where it is not
// known whether they were.
func (l *Limiter) dropDenials(buckets []Bucket) {
	if d := l.loaded.Load().denials; d != nil {
		for _, b := range buckets {
			d.drop(b.Key)
		}
	}
}

// remembers reports whether a refusal of the bucket ends by the clock alone.
func remembers(b Bucket) bool {
	return b.Rule.Algorithm != Concurrency && len(b.Key) <= longestDenied
}

// A recall is what the process remembers of the buckets of a request.
type recall struct {
	denials []denial        // by bucket, a zero one where nothing is known; nil where none refuses
	drops   [watched]uint64 // by bucket
	learns  bool            // whether the answer of the store may be remembered
}

// recall looks for a refusal of one of the Take's buckets. One with the id of a request
// finds none: it may be the retry of one that passed.
func (m match) recall(t Take) (r recall) {
	if m.denials == nil || t.Peek || t.Repeat {
		return recall{}
	}
	r.learns = true
	for i, b := range t.Buckets[:min(len(t.Buckets), watched)] {
		if !remembers(b) {
			continue
		}
		one, drops, refuses := m.denials.find(b, b.CostOf(t.Cost), t.Now)
		r.drops[i] = drops
		if refuses && t.Record == "" {
			if r.denials == nil {
				r.denials = make([]denial, len(t.Buckets))
			}
			r.denials[i] = one
		}
	}
	return r
}

// lastTag is that of the buckets which a store that goes from tag to tag charges last. What
// it charges before may go back, so that a refusal there may end before its time. Of parts
// one bucket may be met last here and earlier elsewhere: then its verdict says so.
func lastTag(buckets []Bucket) (last string) {
	for i, b := range buckets {
		if !slices.ContainsFunc(buckets[:i], func(earlier Bucket) bool { return earlier.Tag == b.Tag }) {
			last = b.Tag
		}
	}
	return last
}

// learn remembers which buckets refused the Take. Each refusal ends before the store's
// can, which was decided after the Take began.
func (l *Limiter) learn(m match, t Take, out Outcome, r recall) {
	if !r.learns || out.Allowed || out.Mismatch {
		return
	}
	answered, last := l.instant(), lastTag(t.Buckets)
	for i, b := range t.Buckets[:min(len(t.Buckets), watched)] {
		v := out.Verdicts[i]
		if v.Wait == 0 || v.Pending || b.Tag != last || !remembers(b) {
			continue
		}
		m.denials.remember(b.Key, denial{
			rule: b.Rule, cost: b.CostOf(t.Cost), remaining: v.Remaining,
			until:  t.Now + min(v.Wait, longestDenial).Microseconds(),
			passes: answered + v.Wait.Microseconds(), full: answered + v.Reset.Microseconds(),
		}, r.drops[i])
	}
}

// refusal is the answer that is remembered. Of limits that did not refuse it knows
// nothing, and so leaves them out.
func (m match) refusal(t Take, known []denial) Decision {
	of := match{tenant: m.tenant, counts: m.counts}
	out := Outcome{Source: SourceDenyCache}
	policy := policy{Policy: m.Policy}
	policy.Limits = make([]Limit, 0, len(known))
	for i, one := range known {
		if one.until == 0 {
			continue
		}
		policy.Limits, of.buckets, of.met = append(policy.Limits, m.Limits[i]), append(of.buckets, m.buckets[i]), append(of.met, m.met[i])
		out.Verdicts = append(out.Verdicts, Verdict{
			Remaining: one.remaining, Wait: micros(one.passes - t.Now), Reset: micros(max(0, one.full-t.Now)),
		})
	}
	of.policy = &policy
	return of.decision(out, t.Cost)
}

// refusalOfParts is the same by part. A part whose limits are not known to refuse is let pass.
func (m partsMatch) refusalOfParts(t Take, known []denial) (Decision, []PartState) {
	d := m.refusal(t, known)
	states, place := m.unknown(true), make([]int, len(known))
	n := 0
	for i, one := range known {
		if place[i] = n; one.until != 0 {
			n++
		}
	}
	for i, buckets := range m.parts {
		for _, at := range buckets {
			if known[at].until != 0 {
				states[i].Allowed = false
				states[i].Limits = append(states[i].Limits, d.Limits[place[at]])
			}
		}
	}
	return d, states
}
