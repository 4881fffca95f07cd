package ratelimit

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// Check takes the cost from every limit of the policy, or from none. A refusal is
// a Decision. Errors: ErrUnknownPolicy; *CostError, whatever the state of the
// limits, but not for a retry of what was charged before a limit was lowered, and not
// where by its stage the policy refuses nobody; *keytype.ValueError, also for a
// descriptor that a limit needs and the
// request lacks; ErrMismatch; *ClosedError; and the faults of a [Store].
func (l *Limiter) Check(ctx context.Context, tenant string, req Request) (Decision, error) {
	d, err := l.take(ctx, tenant, req, false)
	l.tell(d, err)
	return d, err
}

// tell counts a decision, also that of a policy that is closed.
func (l *Limiter) tell(d Decision, err error) {
	if closed, ok := errors.AsType[*ClosedError](err); ok {
		l.decided(Decision{Policy: closed.Policy, Stage: closed.Stage, Source: SourceFailClosed, Degraded: true, DegradedReason: closed.Reason})
	} else if err == nil {
		l.decided(d)
	}
}

// Peek decides as Check would, and takes nothing. It ignores a RequestID.
func (l *Limiter) Peek(ctx context.Context, tenant string, req Request) (Decision, error) {
	return l.take(ctx, tenant, req, true)
}

func (l *Limiter) take(ctx context.Context, tenant string, req Request, peek bool) (Decision, error) {
	if !peek {
		if d, decided, err := l.spend(ctx, tenant, req); decided {
			return d, err
		}
	}
	m, err := l.match(tenant, req)
	if err != nil {
		return Decision{}, err
	}
	tooMuch := m.affordable(req.Cost)
	if tooMuch != nil && !m.counts {
		return l.uncounted(ctx, m, req, peek)
	}
	m.met = m.spread(l.spot(req, peek))
	t := Take{Buckets: m.met, Cost: req.Cost, Now: l.instant(), Peek: peek}
	if !peek {
		t.Record, t.Bind = req.named(tenant, "check")
		t.SlotID = m.newSlot()
	}
	if tooMuch != nil { // unless it was charged before the limit was lowered
		if t.Record == "" {
			return Decision{}, tooMuch
		}
		t.Repeat, t.Bind = true, Bind{}
	}
	before := m.recall(t)
	if before.denials != nil {
		return m.refusal(t, before.denials), nil
	}
	l.hot.met(m, t)
	out, err := l.store.Take(ctx, t)
	if err != nil && l.fallback != nil && isFault(err) {
		return l.degraded(ctx, m, t, err)
	}
	if err != nil {
		return Decision{}, fmt.Errorf("decide by policy %q: %w", req.Policy, err)
	}
	l.learn(m, t, out, before)
	if out.Mismatch {
		return Decision{}, ErrMismatch
	}
	if t.Repeat && !out.Allowed {
		return Decision{}, tooMuch
	}
	return m.decision(out, req.Cost), nil
}

// uncounted lets a cost pass that is above a capacity, where by its stage the policy
// refuses nobody. It takes nothing, and names a limit that would refuse.
func (l *Limiter) uncounted(ctx context.Context, m match, req Request, peek bool) (Decision, error) {
	i := m.tightest()
	m.met = m.spread(l.spot(req, true))
	t := Take{Buckets: m.met, Cost: m.capacity(i), Now: l.instant(), Peek: true}
	out, err := l.store.Take(ctx, t)
	if err != nil && l.fallback != nil && isFault(err) {
		t.Peek = peek
		return l.degraded(ctx, m, t, err)
	}
	if err != nil {
		return Decision{}, fmt.Errorf("decide by policy %q: %w", m.Name, err)
	}
	out.Allowed = false
	out.Verdicts[i].Wait = max(out.Verdicts[i].Wait, m.buckets[i].Rule.Window())
	return m.decision(out, req.Cost), nil
}

// Refund puts the cost back into every limit of the policy but those that hand out
// slots; none gets fuller than full. A cost above a limit's capacity is no error: the
// limit may have been lowered since the charge. Errors as those of Check, but for *CostError.
func (l *Limiter) Refund(ctx context.Context, tenant string, req Request) ([]LimitState, error) {
	m, err := l.match(tenant, req)
	if err != nil {
		return nil, err
	}
	l.returnLease(ctx, tenant, req.Policy, req.Descriptors)
	m.met = m.spread(l.spot(req, false).back())
	g := Give{Buckets: m.met, Cost: req.Cost, Now: l.instant()}
	g.Record, g.Bind = req.named(tenant, "refund")
	out, err := l.store.Give(ctx, g)
	l.dropDenials(g.Buckets)
	if err != nil {
		return nil, fmt.Errorf("refund by policy %q: %w", req.Policy, err)
	}
	if out.Mismatch {
		return nil, ErrMismatch
	}
	return m.limits(out), nil
}

// Release frees what a Check took from the limits that hand out slots. A slot that
// is released, expired or unheard of is left as it is, without an error. Errors as
// those of Check, and ErrNoSlots.
func (l *Limiter) Release(ctx context.Context, tenant, policy string, descriptors map[string]string, slotID string) error {
	if err := checkSlotID(slotID); err != nil {
		return err
	}
	m, err := l.match(tenant, Request{Policy: policy, Descriptors: descriptors, Cost: 1})
	if err != nil {
		return err
	}
	buckets := slices.DeleteFunc(m.buckets, func(b Bucket) bool { return b.Rule.Algorithm != Concurrency })
	if len(buckets) == 0 {
		return ErrNoSlots
	}
	if _, err := l.store.Give(ctx, Give{Buckets: buckets, SlotID: slotID, Now: l.instant()}); err != nil {
		return fmt.Errorf("release by policy %q: %w", policy, err)
	}
	return nil
}

// Reset makes every limit of the policy full for these descriptors, and frees the
// slots. A request id stays known. Errors as those of Check.
func (l *Limiter) Reset(ctx context.Context, tenant, policy string, descriptors map[string]string) error {
	m, err := l.match(tenant, Request{Policy: policy, Descriptors: descriptors, Cost: 1})
	if err != nil {
		return err
	}
	l.returnLease(ctx, tenant, policy, descriptors)
	buckets := m.everywhere()
	err = l.store.Forget(ctx, buckets)
	l.dropDenials(buckets)
	if err != nil {
		return fmt.Errorf("reset by policy %q: %w", policy, err)
	}
	return nil
}

// instant is now in microseconds. One before 1970 has no state: such a clock stands still until then.
func (l *Limiter) instant() int64 { return max(0, l.now().UnixMicro()) }

// A match is a policy applied to one request.
type match struct {
	*policy
	tenant    string
	buckets   []Bucket
	met       []Bucket // the same, but those that the request meets of limits with shards; nil where it is not known yet
	described []string // by bucket: its descriptors, as in its key
	counts    bool     // whether a refusal does, by the stage
}

// match finds the policy, and the bucket and the rule of each of its limits.
func (l *Limiter) match(tenant string, req Request) (match, error) {
	if err := req.check(tenant); err != nil {
		return match{}, err
	}
	p, ok := l.loaded.Load().policies[req.Policy]
	if !ok {
		return match{}, ErrUnknownPolicy
	}
	m := match{policy: p, tenant: tenant, buckets: make([]Bucket, len(p.Limits)), described: make([]string, len(p.Limits))}
	tag := ""
	for i := range p.Limits {
		b, key, err := p.bucket(tenant, i, req.Descriptors, tag)
		if err != nil {
			return match{}, err
		}
		tag = b.Tag
		m.buckets[i], m.described[i] = b, key
	}
	m.counts = m.enforced()
	return m, nil
}

// bucket is what the policy's limit i counts for the descriptors, and the part of its key
// that they make. The tag of another of the policy's buckets may be the same.
func (p *policy) bucket(tenant string, i int, descriptors map[string]string, tag string) (Bucket, string, error) {
	limit := &p.Limits[i]
	whole, err := descriptorKey(tenant, limit.Name, limit.Key, descriptors, tag)
	if err != nil {
		return Bucket{}, "", err
	}
	var room [16]byte
	key := whole[len(appendLength(room[:0], tenant))+len(tenant):]
	b := Bucket{Key: limit.storedKey(tenant, p.Name, key), Rule: p.rules[i][1+limit.override(descriptors)], Tag: whole}
	if p.beside[i] {
		b.Tag, err = descriptorKey(tenant, limit.Name, p.slot(), descriptors, tag)
	}
	return b, key, err
}

// slot names the descriptors that the policy's limits share where they can.
func (p Policy) slot() []string {
	if len(p.Slot) > 0 {
		return p.Slot
	}
	return p.Limits[0].Key
}

// inSlot reports whether the limit can lie where the policy's slot is.
func (p Policy) inSlot(l Limit) bool {
	return !slices.ContainsFunc(p.slot(), func(name string) bool { return !slices.Contains(l.Key, name) })
}

// storedKey is the key of a bucket. It tells apart how limits count, so that
// after a change from one kind to another neither reads the other's state.
func (l Limit) storedKey(tenant, policy, descriptors string) string {
	return l.storedShard(tenant, policy, "", descriptors)
}

// storedShard is that of one of the limit's buckets.
func (l Limit) storedShard(tenant, policy, shard, descriptors string) string {
	counter := "debt"
	switch l.Algorithm {
	case Concurrency:
		return keytype.ConcurrencySlot.Key(tenant, policy, l.Name, descriptors)
	case FixedWindow, SlidingWindowCounter:
		counter = "window"
	case SlidingWindowLog:
		counter = "log"
	case TokenBucket, GCRA, LeakyBucket:
	}
	return keytype.RateBucket.Key(tenant, policy, l.Name, counter+shard, descriptors)
}

// affordable refuses a cost above the smallest capacity.
func (m match) affordable(cost int64) error {
	tightest := m.tightest()
	if capacity := m.capacity(tightest); cost > capacity {
		return &CostError{LimitName: m.Limits[tightest].Name, Capacity: capacity}
	}
	return nil
}

// tightest is the limit with the smallest capacity.
func (m match) tightest() int {
	tightest := 0
	for i := range m.buckets {
		if m.capacity(i) < m.capacity(tightest) {
			tightest = i
		}
	}
	return tightest
}

// identity is a hash of which buckets they are.
func (m match) identity(buckets []Bucket) []byte {
	var keys []byte
	for _, b := range buckets {
		keys = appendPart(keys, b.Key)
	}
	sum := sha256.Sum256(keys)
	return sum[:16]
}

// newSlot makes an id where a limit needs one.
func (m match) newSlot() string {
	if !slices.ContainsFunc(m.buckets, func(b Bucket) bool { return b.Rule.Algorithm == Concurrency }) {
		return ""
	}
	return "slt_" + rand.Text()
}

// checkSlotID lets only pass what newSlot could have made.
func checkSlotID(id string) error {
	if err := keytype.CheckID("slot_id", id); err != nil {
		return err
	}
	if len(id) > 64 || slices.Contains([]byte(id), ':') {
		return &keytype.ValueError{Field: "slot_id", Reason: "is not one that a check returned"}
	}
	return nil
}

// decision puts the store's answer into the words of the policy.
func (m match) decision(out Outcome, cost int64) Decision {
	d := Decision{
		Allowed: out.Allowed, Policy: m.Name, Stage: m.Stage, SlotID: out.SlotID, Source: out.Source,
		Limits: m.limits(out),
	}
	for i, v := range out.Verdicts {
		d.Delay = max(d.Delay, ceilMS(v.Delay))
		if wait := ceilMS(v.Wait); wait > d.RetryAfter {
			d.Limiting, d.RetryAfter = m.Limits[i].Name, wait
			d.OverBy = ceilDiv(100*(m.buckets[i].CostOf(cost)-v.Remaining), m.capacity(i))
		}
	}
	if m.Stage == Warn && !out.Allowed {
		d.EnforceFrom = m.EnforceFrom
	} else {
		d.OverBy = 0
	}
	if !out.Allowed {
		d.Delay = 0
		if !m.counts {
			d.Allowed, d.RetryAfter = true, 0
		}
	}
	return d
}

// limits puts what the rules say into the words of the policy.
func (m match) limits(out Outcome) []LimitState {
	states := make([]LimitState, len(m.Limits))
	for i, v := range out.Verdicts {
		limit, rule := &m.Limits[i], m.buckets[i].Rule
		states[i] = LimitState{
			Name: limit.Name, Algorithm: limit.Algorithm, Limit: rule.Burst,
			Remaining: m.left(i, v.Remaining), Reset: ceilMS(v.Reset), Window: ceilMS(rule.Window()),
		}
	}
	return states
}

// enforced reports whether a refusal counts. Of a canary the same identities are
// refused on every node and after every restart; each policy has its own.
func (m match) enforced() bool {
	if m.Stage == Canary {
		share := binary.BigEndian.Uint64(m.identity(m.buckets[:1])) % 10_000
		return share < uint64(m.Percent)*100 //nolint:gosec // 1 to 99
	}
	return m.Stage == Enforce
}

// ceilMS rounds up to whole milliseconds, so that what is promised for an instant holds at it.
func ceilMS(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
