package ratelimit

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// Check takes the cost from every limit of the policy, or from none. A refusal is
// a Decision. Errors: ErrUnknownPolicy; *CostError, whatever the state of the
// limits; *keytype.ValueError, also for a descriptor that a limit needs and the
// request lacks; *ClosedError; and the faults of a [Store].
func (l *Limiter) Check(ctx context.Context, tenant string, req Request) (Decision, error) {
	return l.take(ctx, tenant, req, false)
}

// Peek decides as Check would, and takes nothing. It ignores a RequestID.
func (l *Limiter) Peek(ctx context.Context, tenant string, req Request) (Decision, error) {
	return l.take(ctx, tenant, req, true)
}

func (l *Limiter) take(ctx context.Context, tenant string, req Request, peek bool) (Decision, error) {
	m, err := l.match(tenant, req)
	if err != nil {
		return Decision{}, err
	}
	if err := m.affordable(req.Cost); err != nil {
		return Decision{}, err
	}
	t := Take{Buckets: m.buckets, Cost: req.Cost, Now: l.instant(), Peek: peek}
	if !peek {
		t.Record, t.SlotID = m.record("check", req.RequestID), m.newSlot()
	}
	out, err := l.store.Take(ctx, t)
	if err != nil && l.fallback != nil && isFault(err) {
		return l.degraded(ctx, m, t, err)
	}
	if err != nil {
		return Decision{}, fmt.Errorf("decide by policy %q: %w", req.Policy, err)
	}
	return m.decision(out, req.Cost), nil
}

// Refund puts the cost back into every limit of the policy but those that hand out
// slots; none gets fuller than full. Errors as those of Check.
func (l *Limiter) Refund(ctx context.Context, tenant string, req Request) ([]LimitState, error) {
	m, err := l.match(tenant, req)
	if err != nil {
		return nil, err
	}
	out, err := l.store.Give(ctx, Give{Buckets: m.buckets, Cost: req.Cost, Now: l.instant(), Record: m.record("refund", req.RequestID)})
	if err != nil {
		return nil, fmt.Errorf("refund by policy %q: %w", req.Policy, err)
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
	if err := l.store.Forget(ctx, m.buckets); err != nil {
		return fmt.Errorf("reset by policy %q: %w", policy, err)
	}
	return nil
}

// instant is now in microseconds. One before 1970 has no state: such a clock stands still until then.
func (l *Limiter) instant() int64 { return max(0, l.now().UnixMicro()) }

// A match is a policy applied to one request.
type match struct {
	*policy
	tenant  string
	buckets []Bucket
	first   string // the descriptors of the first limit, as in its key
	counts  bool   // whether a refusal does, by the stage
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
	m := match{policy: p, tenant: tenant, buckets: make([]Bucket, len(p.Limits))}
	slot, err := descriptorKey(p.Limits[0].Name, p.slot(), req.Descriptors)
	if err != nil {
		return match{}, err
	}
	for i, limit := range p.Limits {
		key, err := descriptorKey(limit.Name, limit.Key, req.Descriptors)
		if err != nil {
			return match{}, err
		}
		b := Bucket{Key: limit.storedKey(tenant, p.Name, key), Rule: p.rules[i][1+limit.override(req.Descriptors)], Tag: key}
		if i == 0 {
			m.first = key
		}
		if p.inSlot(limit) {
			b.Tag = slot
		}
		b.Tag = string(appendPart(nil, tenant)) + b.Tag
		m.buckets[i] = b
	}
	m.counts = m.enforced()
	return m, nil
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
	return keytype.RateBucket.Key(tenant, policy, l.Name, counter, descriptors)
}

// affordable refuses a cost above the smallest capacity.
func (m match) affordable(cost int64) error {
	tightest := 0
	for i, b := range m.buckets {
		if b.Rule.Burst < m.buckets[tightest].Rule.Burst {
			tightest = i
		}
	}
	if capacity := m.buckets[tightest].Rule.Burst; cost > capacity {
		return &CostError{LimitName: m.Limits[tightest].Name, Capacity: capacity}
	}
	return nil
}

// record is the key under which a request is remembered, "" without an id. Requests
// of one id are the same only where they meet the same buckets.
func (m match) record(operation, requestID string) string {
	if requestID == "" {
		return ""
	}
	return keytype.ChargeRequest.Key(m.tenant, m.Name, operation, hex.EncodeToString(m.identity(m.buckets)), requestID)
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
			d.OverBy = ceilDiv(100*(cost-v.Remaining), m.buckets[i].Rule.Burst)
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
			Remaining: v.Remaining, Reset: ceilMS(v.Reset), Window: ceilMS(rule.Window()),
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
