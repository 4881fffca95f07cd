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
// fails. The request may have been charged; a retry with its RequestID is exact, but for
// a slot: that goes back, and the retry is charged anew with another.
type ClosedError struct {
	Policy string
	Stage  Stage
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
	if !t.Peek { // which bypasses nothing
		l.bypassed(reason)
	}
	d := Decision{Policy: m.Name, Stage: m.Stage, Degraded: true, DegradedReason: reason, Limits: []LimitState{}}
	switch {
	case m.Posture == FailOpen, m.Posture == FailClosed && !m.counts:
		d.Allowed, d.Source = true, SourceFailOpen
		return d, nil
	case m.Posture == FailClosed:
		return Decision{}, &ClosedError{Policy: m.Name, Stage: m.Stage, Reason: reason, Err: fault}
	}
	local := m.local()
	if len(local.buckets) == 0 {
		d.Allowed, d.Source = true, SourceFailOpen
		return d, nil
	}
	t.Buckets, t.Cost, t.Record, t.Repeat, t.Bind, t.SlotID = local.buckets, min(t.Cost, local.buckets[0].Rule.Burst), "", false, Bind{}, ""
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
// bucket for each identity that the request has under the first limit that it meets. A
// cost above its burst takes it all. A limit with slots has no rate: without one of
// the policy's own the next limit counts, and where there is none, nothing does.
func (m match) local() match {
	own := m.Local != LocalRate{}
	only := &policy{Policy: m.Policy}
	only.Limits = nil
	local := match{policy: only, tenant: m.tenant, counts: m.counts}
	for i, b := range m.buckets {
		limit := m.Limits[i]
		if !own && limit.Algorithm == Concurrency || len(only.Limits) > 0 && limit.Name != only.Limits[0].Name {
			continue
		}
		if own {
			b.Rule = Rule{Count: m.Local.Rate.Count, Per: m.Local.Rate.Per.Microseconds(), Burst: m.Local.Burst}
		}
		limit.Algorithm, b.Rule.Algorithm, limit.Shards = TokenBucket, TokenBucket, 0
		b.Cost = min(b.Cost, b.Rule.Burst)
		b.Key = limit.storedKey(m.tenant, m.Name, m.described[i])
		only.Limits, local.buckets = append(only.Limits, limit), append(local.buckets, b)
	}
	return local
}
