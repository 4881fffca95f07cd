package ratelimit

import (
	"context"

	"github.com/coordsvc/coordsvc/keytype"
)

// Sources of an answer that a policy's store did not give.
const (
	SourceLocal      Source = "local"       // the policy's local rate, on this node alone
	SourceFailOpen   Source = "fail_open"   // nobody: the request passes
	SourceFailClosed Source = "fail_closed" // nobody: the request does not pass
)

// A ClosedError is the answer of a policy with posture FailClosed while its store
// fails. The request may have been charged; a retry with its RequestID is exact.
type ClosedError struct {
	Policy string
	Reason string // one of a FaultError
	Err    error
}

func (e *ClosedError) Error() string {
	return "ratelimit: policy " + e.Policy + " is closed, " + e.Reason + ": " + e.Err.Error()
}

// Is makes it a keytype.ErrUnavailable, also where the store's outcome is unknown:
// to the caller the request is refused.
func (e *ClosedError) Is(target error) bool { return target == keytype.ErrUnavailable }

// degraded answers by the policy's posture. Where no refusal counts, none does for
// want of a store.
func (l *Limiter) degraded(ctx context.Context, m match, t Take, fault error) (Decision, error) {
	reason := reasonOf(fault)
	l.bypassed(reason)
	d := Decision{Policy: m.Name, Stage: m.Stage, Degraded: true, DegradedReason: reason, Limits: []LimitState{}}
	switch {
	case m.Posture == FailOpen, m.Posture == FailClosed && !m.counts:
		d.Allowed, d.Source = true, SourceFailOpen
		return d, nil
	case m.Posture == FailClosed:
		return Decision{}, &ClosedError{Policy: m.Name, Reason: reason, Err: fault}
	}
	local := m.local()
	t.Buckets, t.Record, t.SlotID = local.buckets, "", ""
	t.Cost = min(t.Cost, local.buckets[0].Rule.Burst)
	out, err := l.fallback.Take(ctx, t)
	if err != nil {
		return Decision{}, err
	}
	out.Source = SourceLocal
	d = local.decision(out, t.Cost)
	d.Degraded, d.DegradedReason = true, reason
	return d, nil
}

// local is the policy as it holds on this node while its store fails: one token
// bucket for each identity of its first limit. A cost above its burst takes it all.
func (m match) local() match {
	first := m.Limits[0]
	rule := Rule{Algorithm: TokenBucket, Count: m.Local.Rate.Count, Per: m.Local.Rate.Per.Microseconds(), Burst: m.Local.Burst}
	if m.Local == (LocalRate{}) {
		rule = m.buckets[0].Rule
		rule.Algorithm = TokenBucket
	}
	first.Algorithm = TokenBucket
	only := &policy{Policy: m.Policy}
	only.Limits = []Limit{first}
	return match{policy: only, tenant: m.tenant, counts: m.counts, buckets: []Bucket{{Key: first.storedKey(m.tenant, m.Name, m.first), Rule: rule}}}
}
