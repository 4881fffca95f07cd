package ratelimit

import (
	"context"
	"fmt"
	"slices"
)

// MaxParts is how many parts a request may have.
const MaxParts = 32

// A Part is one of several descriptions of the same request, as proxies send them:
// each limit of the policy counts for the parts that have all of its key.
type Part struct {
	Descriptors map[string]string // at most MaxDescriptors
	Cost        int64             // at least 1
	// Rate, where not nil, stands in place of the rate of the limits whose key is
	// exactly what Descriptors names, and its Count in place of a burst. A Count of 0
	// lets nothing pass.
	Rate *Rate
}

// A PartState is what the limits of one part said.
type PartState struct {
	Allowed bool // false where one of Limits refused, also where the stage lets that not count
	// Limits that have their key among the part's descriptors, in the policy's order.
	// None where the policy has none for them, and where a posture asked nobody.
	Limits []LimitState
}

// CheckParts takes the cost of each part from the limits that count for it, or
// nothing at all. Where parts meet in one bucket it is charged once, with the
// largest of their costs: they describe one request. The decision tells of every
// limit that was met, the states of those of each part.
//
// Errors as those of Check. A policy without a limit for any of the parts is a
// *keytype.ValueError: a mistyped name must not look like a limit that allows.
func (l *Limiter) CheckParts(ctx context.Context, tenant, policy string, parts []Part) (Decision, []PartState, error) {
	d, states, err := l.takeParts(ctx, tenant, policy, parts, false)
	l.tell(d, err)
	return d, states, err
}

// PeekParts decides as CheckParts would, and takes nothing.
func (l *Limiter) PeekParts(ctx context.Context, tenant, policy string, parts []Part) (Decision, []PartState, error) {
	return l.takeParts(ctx, tenant, policy, parts, true)
}

func (l *Limiter) takeParts(ctx context.Context, tenant, policy string, parts []Part, peek bool) (Decision, []PartState, error) {
	if !peek {
		if d, states, decided, err := l.spendPart(ctx, tenant, policy, parts); decided {
			return d, states, err
		}
	}
	m, err := l.matchParts(tenant, policy, parts)
	if err != nil {
		return Decision{}, nil, err
	}
	if err := m.affordableParts(); err != nil {
		return Decision{}, nil, err
	}
	m.met = m.spread(l.spotOfParts(parts, peek))
	t := Take{Buckets: m.met, Cost: m.buckets[0].Cost, Now: l.instant(), Peek: peek}
	if !peek {
		t.SlotID = m.newSlot()
	}
	before := m.recall(t)
	if before.denials != nil {
		d, states := m.refusalOfParts(t, before.denials)
		return d, states, nil
	}
	l.hot.met(m.match, t)
	out, err := l.store.Take(ctx, t)
	if err != nil && l.fallback != nil && isFault(err) {
		d, err := l.degraded(ctx, m.match, t, err)
		return d, m.unknown(d.Allowed), err
	}
	if err != nil {
		return Decision{}, nil, fmt.Errorf("decide by policy %q: %w", policy, err)
	}
	l.learn(m.match, t, out, before)
	d := m.decision(out, t.Cost)
	return d, m.states(d.Limits, out.Verdicts), nil
}

// RefundParts puts the cost of each part back into the limits that count for it, but
// those that hand out slots; none gets fuller than full. Errors as those of CheckParts.
func (l *Limiter) RefundParts(ctx context.Context, tenant, policy string, parts []Part) ([]PartState, error) {
	m, err := l.matchParts(tenant, policy, parts)
	if err != nil {
		return nil, err
	}
	m.met = m.spread(l.spotOfParts(parts, false).back())
	out, err := l.store.Give(ctx, Give{Buckets: m.met, Cost: m.buckets[0].Cost, Now: l.instant()})
	l.dropDenials(m.met)
	if err != nil {
		return nil, fmt.Errorf("refund by policy %q: %w", policy, err)
	}
	return m.states(m.limits(out), out.Verdicts), nil
}

// A partsMatch is a policy applied to the parts of one request. What it has of the
// policy are the limits that count for any of them, each as often as it has buckets.
type partsMatch struct {
	match
	parts [][]int // by part: its buckets
}

// matchParts finds the buckets that the parts meet, in the order of the policy's limits.
func (l *Limiter) matchParts(tenant, name string, parts []Part) (partsMatch, error) {
	if len(parts) > MaxParts {
		return partsMatch{}, descriptorError("come in more than %d parts", MaxParts)
	}
	for _, part := range parts {
		r := Request{Policy: name, Descriptors: part.Descriptors, Cost: min(part.Cost, MaxCost)} // no capacity is larger
		if err := r.check(tenant); err != nil {
			return partsMatch{}, err
		}
	}
	p, ok := l.loaded.Load().policies[name]
	if !ok {
		return partsMatch{}, ErrUnknownPolicy
	}
	met := &policy{Policy: p.Policy, denials: p.denials}
	m := partsMatch{match: match{policy: met, tenant: tenant}, parts: make([][]int, len(parts))}
	most := make([]int, len(parts)) // room for one bucket of each part, as most have
	for i := range parts {
		m.parts[i] = most[i : i : i+1]
	}
	m.buckets, m.described, met.Limits = make([]Bucket, 0, len(parts)), make([]string, 0, len(parts)), make([]Limit, 0, len(parts))
	for i := range p.Limits {
		for j, part := range parts {
			if err := m.meet(p, i, part, j); err != nil {
				return partsMatch{}, err
			}
		}
	}
	for i, part := range parts {
		if part.Rate != nil && !slices.ContainsFunc(m.parts[i], func(at int) bool { return part.names(&met.Limits[at]) }) {
			return partsMatch{}, descriptorError("that come with a rate of their own must be the whole key of a limit")
		}
	}
	if len(m.buckets) == 0 {
		return partsMatch{}, descriptorError("have the key of no limit of the policy")
	}
	m.counts = m.enforced()
	return m, m.passable()
}

// names reports whether the limit's key is exactly what the part names.
func (p Part) names(l *Limit) bool { return len(p.Descriptors) == len(l.Key) && p.has(l) }

// has reports whether the part has all of the limit's key.
func (p Part) has(l *Limit) bool {
	for _, name := range l.Key {
		if _, ok := p.Descriptors[name]; !ok {
			return false
		}
	}
	return true
}

// meet adds the bucket of the policy's limit i for the part j, if the part has the limit's key.
func (m *partsMatch) meet(p *policy, i int, part Part, j int) error {
	limit := &p.Limits[i]
	if !part.has(limit) {
		return nil
	}
	tag := ""
	if len(m.buckets) > 0 {
		tag = m.buckets[0].Tag
	}
	b, key, err := p.bucket(m.tenant, i, part.Descriptors, tag)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(m.buckets, func(other Bucket) bool { return other.Key == b.Key })
	if at < 0 {
		at = len(m.buckets)
		m.buckets, m.Limits, m.described = append(m.buckets, b), append(m.Limits, *limit), append(m.described, key)
	}
	m.buckets[at].Cost = max(m.buckets[at].Cost, part.Cost)
	if part.Rate != nil && part.names(limit) {
		if m.buckets[at].Rule, err = limit.at(*part.Rate); err != nil {
			return err
		}
	}
	m.parts[j] = append(m.parts[j], at)
	return nil
}

// at is the limit's rule at another rate. Without units it has no capacity.
func (l Limit) at(rate Rate) (Rule, error) {
	if l.Algorithm == Concurrency {
		return Rule{}, descriptorError("of a limit with slots cannot come with a rate")
	}
	if rate.Count == 0 {
		return Rule{Algorithm: l.Algorithm}, nil
	}
	l.Rate = rate
	if l.Algorithm == TokenBucket || l.Algorithm == GCRA {
		l.Burst = rate.Count
	}
	if wrong := l.checkNumbers(); len(wrong) > 0 {
		return Rule{}, descriptorError("come with a rate that is not possible: %v", wrong[0])
	}
	return l.rule(), nil
}

// passable refuses what no cost passes.
func (m partsMatch) passable() error {
	for i, b := range m.buckets {
		if b.Rule.Burst == 0 {
			return &CostError{LimitName: m.Limits[i].Name, Uncounted: !m.counts}
		}
	}
	return nil
}

// affordableParts refuses a cost above the capacity of its bucket.
func (m partsMatch) affordableParts() error {
	for i, b := range m.buckets {
		if capacity := m.capacity(i); b.Cost > capacity {
			return &CostError{LimitName: m.Limits[i].Name, Capacity: capacity, Uncounted: !m.counts}
		}
	}
	return nil
}

// states sorts by part what was said by bucket.
func (m partsMatch) states(limits []LimitState, verdicts []Verdict) []PartState {
	states, room := make([]PartState, len(m.parts)), make([]LimitState, 0, len(m.parts))
	for i, buckets := range m.parts {
		states[i].Allowed = true
		begin := len(room)
		for _, at := range buckets {
			states[i].Allowed = states[i].Allowed && verdicts[at].Wait == 0
			room = append(room, limits[at])
		}
		if len(buckets) > 0 {
			states[i].Limits = slices.Clip(room[begin:])
		}
	}
	return states
}

// unknown is what a posture says of the parts: one answer for all of them.
func (m partsMatch) unknown(allowed bool) []PartState {
	states := make([]PartState, len(m.parts))
	for i := range states {
		states[i].Allowed = allowed
	}
	return states
}
