package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// SourceTokenLease is a batch of units that this process took from the store before, or
// what the store answered when it was asked for one.
const SourceTokenLease Source = "token_lease"

// Mode says where a policy's requests are decided.
type Mode string

// The modes.
const (
	Exact Mode = "exact" // each in the store; so is the zero Mode
	// Leased has nodes take units from the store in batches and spend them in memory. At
	// any time no more has passed than the policy's limits let pass, and MaxOvershoot more.
	// Limits that shape, or hand out slots, cannot be leased. A request with an id, one of
	// which few fit into a batch, one in another stage than Enforce, and one of an identity
	// that comes seldom are decided as if the mode was Exact.
	Leased Mode = "leased"
)

// Bounds of a lease.
const (
	maxOvershoot  = 10_000
	leaseTime     = time.Second            // for which units may be spent at most
	leaseMargin   = 250 * time.Millisecond // for which they count as held beyond it
	shortestLease = 100 * time.Millisecond // below which a batch would lapse before it is spent
	// leaseShare is the part of a limit's capacity that a node takes at once at most.
	leaseShare = 4
)

// TooSmallToLease reports whether a policy with the limit is decided as with Exact, because
// a quarter of the limit's units, or of those of one of its overrides, is what a node takes
// at once at most, and is no batch that is worth while; or because all of them are back
// sooner than a batch is spent, within 100 ms.
func (l Limit) TooSmallToLease() bool {
	p := Policy{Mode: Leased, Stage: Enforce, Limits: []Limit{l}}
	return !p.ready().leasable()
}

// leasable is Leased where batches are worth while.
func (p *policy) leasable() bool { return p.leaseMost >= tokenlease.MinBatch }

// readyToLease finds out what a node may take of the policy at once, 0 for nothing, and
// which descriptors decide what it is taken from.
func (p *policy) readyToLease() {
	if p.Mode != Leased || p.Stage != Enforce {
		return
	}
	p.leaseMost = tokenlease.MaxBatch
	for i, limit := range p.Limits {
		for _, rule := range p.rules[i] {
			p.leaseMost = min(p.leaseMost, rule.Burst/leaseShare)
			if rule.Window() < shortestLease {
				p.leaseMost = 0
			}
		}
		for _, name := range limit.Key {
			if !slices.Contains(p.leasedBy, name) {
				p.leasedBy = append(p.leasedBy, name)
			}
		}
	}
}

// spend decides on a request by units that this process holds, and reports false where
// the store has to.
func (l *Limiter) spend(ctx context.Context, tenant string, req Request) (d Decision, decided bool, err error) {
	if l.lessee == nil || req.RequestID != "" {
		return Decision{}, false, nil
	}
	loaded := l.loaded.Load()
	p, ok := loaded.policies[req.Policy]
	if !ok || !p.leasable() || req.Cost > p.leaseMost/tokenlease.MinRequests {
		return Decision{}, false, nil
	}
	if err := req.check(tenant); err != nil {
		return Decision{}, true, err
	}
	answer, err := l.lessee.Spend(ctx, tokenlease.Key{
		Tenant: tenant, Policy: req.Policy, Names: p.leasedBy, Descriptors: req.Descriptors, Version: loaded.number,
	}, req.Cost)
	switch {
	case err != nil && l.fallback != nil && isFault(err):
		m, matched := l.match(tenant, req)
		if matched != nil {
			return Decision{}, true, matched
		}
		d, err = l.degraded(ctx, m, Take{Buckets: m.buckets, Cost: req.Cost, Now: l.instant()}, err)
		return d, true, err
	case err != nil:
		return Decision{}, true, fmt.Errorf("decide by policy %q: %w", req.Policy, err)
	case answer.Exact:
		return Decision{}, false, nil
	}
	return p.leasedDecision(answer, l.instant()), true, nil
}

// A leaseRef is what the store said of the limits when it was asked for a batch.
type leaseRef struct {
	match
	at       int64 // microseconds since 1970
	limiting string
	limits   []LimitState
}

// leasedDecision puts what the lessee answered into the words of the policy. The states
// are those of when the store was asked, and besides what is left of the batch.
func (p *policy) leasedDecision(a tokenlease.Answer, now int64) Decision {
	d := Decision{
		Allowed: a.Allowed, Policy: p.Name, Stage: p.Stage, Source: SourceTokenLease, MaxOvershoot: p.MaxOvershoot, Limits: []LimitState{},
	}
	if a.Grant == nil {
		return d
	}
	ref, _ := a.Grant.Ref.(*leaseRef)
	if !a.Allowed {
		d.Limiting, d.RetryAfter = ref.limiting, ceilMS(a.RetryAfter)
	}
	passed := micros(max(0, now-ref.at))
	d.Limits = slices.Clone(ref.limits)
	for i := range d.Limits {
		s := &d.Limits[i]
		s.Remaining = min(s.Limit, s.Remaining+a.Left)
		s.Reset = ceilMS(max(0, s.Reset-passed))
		if s.Remaining < s.Limit {
			s.Reset = max(s.Reset, time.Millisecond)
		}
	}
	return d
}

// spendPart is spend for a request that comes as one part: the states are those of all limits.
func (l *Limiter) spendPart(ctx context.Context, tenant, policy string, parts []Part) (d Decision, states []PartState, decided bool, err error) {
	if len(parts) != 1 || parts[0].Rate != nil {
		return Decision{}, nil, false, nil
	}
	d, decided, err = l.spend(ctx, tenant, Request{Policy: policy, Descriptors: parts[0].Descriptors, Cost: parts[0].Cost})
	state := PartState{Allowed: d.Allowed}
	if !d.Degraded {
		state.Limits = d.Limits
	}
	return d, []PartState{state}, decided, err
}

// A lessor is the limiter as the source of its own batches.
type lessor struct{ *Limiter }

// Lease implements tokenlease.Source.
func (l lessor) Lease(ctx context.Context, ask tokenlease.Ask) (tokenlease.Grant, error) {
	m, err := l.match(ask.Tenant, Request{Policy: ask.Policy, Descriptors: ask.Descriptors, Cost: 1})
	switch {
	case errors.Is(err, ErrUnknownPolicy), l.loaded.Load().number != ask.Version:
		return tokenlease.Grant{Room: -1}, nil // the policies were replaced just now
	case err != nil:
		return tokenlease.Grant{}, err
	}
	return l.lease(ctx, m, ask)
}

// Return implements tokenlease.Source.
func (l lessor) Return(ctx context.Context, u tokenlease.Unspent) error {
	ref, _ := u.Ref.(*leaseRef)
	return l.unlease(ctx, l.asNow(ref.match, u.Descriptors), u.Holder, u.Units)
}

// asNow has the buckets where they were, under the rules that they have now: a rule of
// before may know of less than was used meanwhile, and so would undo it.
func (l *Limiter) asNow(m match, descriptors map[string]string) match {
	p, ok := l.loaded.Load().policies[m.Name]
	if !ok {
		return m
	}
	m.buckets = slices.Clone(m.buckets)
	for i := range p.Limits {
		now, _, err := p.bucket(m.tenant, i, descriptors, "")
		at := slices.IndexFunc(m.buckets, func(b Bucket) bool { return b.Key == now.Key && b.Tag == now.Tag })
		if err == nil && at >= 0 {
			m.buckets[at].Rule = now.Rule
		}
	}
	return m
}

// lease takes a batch from all limits, or from none. Besides it counts, for each bucket,
// who holds what: together no more than MaxOvershoot. Where there is not as much as is
// wanted it takes what there was when that was refused, else as much as is of use at least.
func (l *Limiter) lease(ctx context.Context, m match, ask tokenlease.Ask) (tokenlease.Grant, error) {
	none := tokenlease.Grant{MaxOvershoot: m.MaxOvershoot, Room: -1}
	valid := m.leaseTime()
	want := min(ask.Want, m.leaseMost, m.MaxOvershoot-ask.Left)
	if want < ask.Least || !m.leasable() {
		return none, nil
	}
	for try := 1; ; try++ {
		t := Take{Buckets: append(slices.Clone(m.buckets), m.holds(ask.Left+want)...), Cost: want, Now: l.instant(), SlotID: ask.Holder}
		out, err := l.store.Take(ctx, t)
		if err != nil {
			return none, err
		}
		limits, holds := out.Verdicts[:len(m.buckets)], out.Verdicts[len(m.buckets):]
		there, room := least(limits), least(holds)
		out.Verdicts = limits
		if out.Allowed {
			return tokenlease.Grant{
				Granted: want, ValidFor: valid, MaxOvershoot: m.MaxOvershoot, Room: room,
				Ref: &leaseRef{match: m, at: t.Now, limits: m.limits(out)},
			}, nil
		}
		if want == ask.Least {
			none.RetryAfter, none.Ref = m.refusedLease(out, t.Now)
			return none, nil
		}
		if want = max(ask.Least, min(want, there, room+ask.Held-ask.Left)); try > 1 {
			want = ask.Least
		}
	}
}

// refusedLease is how long the limits, those that count who holds what not among them, have to be waited for.
func (m match) refusedLease(out Outcome, now int64) (time.Duration, *leaseRef) {
	ref, wait := &leaseRef{match: m, at: now, limits: m.limits(out)}, time.Duration(0)
	for i, v := range out.Verdicts {
		if v.Wait > wait {
			ref.limiting, wait = m.Limits[i].Name, v.Wait
		}
	}
	return wait, ref
}

// unlease puts back what was not spent.
func (l *Limiter) unlease(ctx context.Context, m match, holder string, units int64) error {
	buckets := append(slices.Clone(m.buckets), m.holds(0)...)
	_, err := l.store.Give(ctx, Give{Buckets: buckets, Cost: units, SlotID: holder, Now: l.instant()})
	l.dropDenials(m.buckets)
	if err != nil {
		return fmt.Errorf("return a lease by policy %q: %w", m.Name, err)
	}
	return nil
}

// leaseTime is for how long a batch may be spent: no longer than a limit takes to be
// full again, so that what was charged is not spent when all of it has come back.
func (m match) leaseTime() time.Duration {
	t := leaseTime
	for _, b := range m.buckets {
		t = min(t, b.Rule.Window())
	}
	return t
}

// holds are the buckets that count who holds units of the limits' buckets. No entry is so
// small that there could be more than MaxEntries.
func (m match) holds(units int64) []Bucket {
	units = max(units, ceilDiv(m.MaxOvershoot, MaxEntries))
	rule := Rule{Algorithm: Concurrency, Count: m.MaxOvershoot, Per: (m.leaseTime() + leaseMargin).Microseconds(), Burst: m.MaxOvershoot}
	all := make([]Bucket, len(m.buckets))
	for i, b := range m.buckets {
		key := keytype.TokenLease.Key(m.tenant, m.Name, m.Limits[i].Name, m.described[i])
		all[i] = Bucket{Key: key, Rule: rule, Tag: b.Tag, Cost: units, Leased: true}
	}
	return all
}

// least is the least that any of the buckets has left.
func least(verdicts []Verdict) int64 {
	n := int64(math.MaxInt64)
	for _, v := range verdicts {
		n = min(n, v.Remaining)
	}
	return n
}

// leases reports whether a Take is for a lease: then its slot is no request's, and stays.
func (t Take) leases() bool {
	return slices.ContainsFunc(t.Buckets, func(b Bucket) bool { return b.Leased })
}

// returnLease gives back what this process holds, before somebody changes what is counted.
func (l *Limiter) returnLease(ctx context.Context, tenant, name string, descriptors map[string]string) {
	loaded := l.loaded.Load()
	if p, ok := loaded.policies[name]; ok && l.lessee != nil && p.leasable() {
		key := tokenlease.Key{Tenant: tenant, Policy: name, Names: p.leasedBy, Descriptors: descriptors, Version: loaded.number}
		_ = l.lessee.Return(ctx, key) // what could not be returned lapses
	}
}

// RunLeases gives back what this process holds and does not need, until ctx ends. It
// must run where Options has Leases.
func (l *Limiter) RunLeases(ctx context.Context) {
	if l.lessee != nil {
		l.lessee.Run(ctx)
	}
}

// ReturnLeases gives back all that this process holds, as far as ctx lets it. From then
// on it decides as if no policy was Leased.
func (l *Limiter) ReturnLeases(ctx context.Context) error {
	if l.lessee == nil {
		return nil
	}
	return l.lessee.Close(ctx)
}

// LeasedUnits is how many units this process holds, by policy.
func (l *Limiter) LeasedUnits() map[string]int64 {
	if l.lessee == nil {
		return map[string]int64{}
	}
	return l.lessee.Held()
}

// A LeaseRequest is that of another process for a batch of units, which it will spend by itself.
type LeaseRequest struct {
	Policy      string
	Descriptors map[string]string
	Want        int64 // 1 to tokenlease.MaxBatch
	// Holder names the process' batches of these descriptors: a new one takes the place of
	// those before, of which Held is left. Without it each batch counts as held until it expires.
	Holder string
	Held   int64 // 0 to tokenlease.MaxBatch
}

// A Lease is a batch, or why there is none.
type Lease struct {
	Granted      int64         // up to what was wanted
	ValidFor     time.Duration // of it and of what the holder had left, from when it was asked for; in whole milliseconds, rounded down
	RetryAfter   time.Duration // where nothing was granted: until something is there, 0 where checks are to be asked for instead
	MaxOvershoot int64         // what all nodes may hold together
}

// Lease takes a batch of units from all limits of a policy with mode Leased. It refuses
// with a Lease that grants nothing. Errors: those of Check, but for *CostError; a policy
// of another mode is a *keytype.ValueError.
func (l *Limiter) Lease(ctx context.Context, tenant string, req LeaseRequest) (Lease, error) {
	m, holder, err := l.leaseMatch(tenant, req.Policy, req.Descriptors, req.Holder)
	if err != nil {
		return Lease{}, err
	}
	if err := keytype.CheckRange("want", req.Want, 1, tokenlease.MaxBatch); err != nil {
		return Lease{}, err
	}
	if err := keytype.CheckRange("held", req.Held, 0, tokenlease.MaxBatch); err != nil {
		return Lease{}, err
	}
	if req.Held > 0 && req.Holder == "" {
		return Lease{}, &keytype.ValueError{Field: "held", Reason: "is of a holder: name it"}
	}
	g, err := l.lease(ctx, m, tokenlease.Ask{Holder: holder, Held: req.Held, Left: req.Held, Want: req.Want, Least: 1})
	if err != nil {
		return Lease{}, fmt.Errorf("lease by policy %q: %w", req.Policy, err)
	}
	return Lease{Granted: g.Granted, ValidFor: g.ValidFor.Truncate(time.Millisecond), RetryAfter: ceilMS(g.RetryAfter), MaxOvershoot: m.MaxOvershoot}, nil
}

// A LeaseReturn puts back what was not spent of a Lease, by the holder's word. Without a
// Holder what it held counts as held until it expires, all the same.
type LeaseReturn struct {
	Policy      string
	Descriptors map[string]string
	Unspent     int64 // 1 to tokenlease.MaxBatch
	Holder      string
}

// ReturnLease puts units back into every limit; none gets fuller than full. Errors as those of Lease.
func (l *Limiter) ReturnLease(ctx context.Context, tenant string, r LeaseReturn) error {
	m, holder, err := l.leaseMatch(tenant, r.Policy, r.Descriptors, r.Holder)
	if err != nil {
		return err
	}
	if err := keytype.CheckRange("unspent", r.Unspent, 1, tokenlease.MaxBatch); err != nil {
		return err
	}
	return l.unlease(ctx, m, holder, r.Unspent)
}

// leaseMatch finds the policy, and what a holder is called in the store: no word of a caller stands there.
func (l *Limiter) leaseMatch(tenant, policy string, descriptors map[string]string, holder string) (match, string, error) {
	m, err := l.match(tenant, Request{Policy: policy, Descriptors: maps.Clone(descriptors), Cost: 1})
	if err != nil {
		return match{}, "", err
	}
	if m.Mode != Leased {
		return match{}, "", &keytype.ValueError{Field: "policy", Reason: "is decided exactly: only one with mode leased has units to lease"}
	}
	if holder == "" {
		return m, tokenlease.NewHolder(), nil
	}
	if err := keytype.CheckID("holder", holder); err != nil {
		return match{}, "", err
	}
	sum := sha256.Sum256(append(appendPart(nil, tenant), holder...))
	return m, base64.RawURLEncoding.EncodeToString(sum[:12]), nil
}
