package rls

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// ShouldRateLimit answers a request of a proxy. What goes back goes back first; then
// it is looked at what has no hits, and if that passes the rest is charged, all of it
// or nothing.
//
// A refusal of any kind is OVER_LIMIT and no error, also where the policy is closed
// while its store fails, and where the hits can never pass: at an error the proxy
// would do as it is configured, and not as the policy says.
func (s *Server) ShouldRateLimit(ctx context.Context, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	key, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	c, err := read(req)
	if err != nil {
		return nil, err
	}
	a := answer{fields: s.Fields, states: make([]*ratelimit.PartState, len(req.GetDescriptors()))}
	deciding, ended := s.step(ctx, "ratelimit check")
	err = s.decide(deciding, key.Tenant, req.GetDomain(), c, &a)
	ended(err)
	if cost, ok := errors.AsType[*ratelimit.CostError](err); ok {
		return a.tooCostly(req.GetDomain(), cost), nil
	}
	if closed, ok := errors.AsType[*ratelimit.ClosedError](err); ok {
		return a.closed(closed), nil
	}
	if err != nil {
		return nil, err
	}
	return a.decided(), nil
}

func (s *Server) decide(ctx context.Context, tenant, policy string, c call, a *answer) error {
	a.Decision = ratelimit.Decision{Allowed: true, Policy: policy}
	if len(c.back.parts) > 0 {
		states, err := s.limits.RefundParts(ctx, tenant, policy, c.back.parts)
		if err != nil {
			return err
		}
		a.add(c.back, states)
	}
	for _, step := range []struct {
		group
		decide func(context.Context, string, string, []ratelimit.Part) (ratelimit.Decision, []ratelimit.PartState, error)
	}{{c.look, s.limits.PeekParts}, {c.take, s.limits.CheckParts}} {
		if len(step.parts) == 0 || !a.Allowed {
			continue
		}
		d, states, err := step.decide(ctx, tenant, policy, step.parts)
		if err != nil {
			return err
		}
		a.Decision = d
		a.add(step.group, states)
	}
	return nil
}

// An answer is what was decided, and the states by descriptor, nil where it was not asked for.
type answer struct {
	ratelimit.Decision
	states []*ratelimit.PartState
	fields ratelimithttp.Fields
}

func (a *answer) add(g group, states []ratelimit.PartState) {
	for i, place := range g.places {
		a.states[place] = &states[i]
	}
}

func (a *answer) decided() *rlspb.RateLimitResponse {
	resp := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	if !a.Allowed {
		resp.OverallCode = rlspb.RateLimitResponse_OVER_LIMIT
	}
	resp.Statuses = make([]*rlspb.RateLimitResponse_DescriptorStatus, len(a.states))
	for i, state := range a.states {
		resp.Statuses[i] = a.status(state)
	}
	header := http.Header{}
	a.fields.Set(header, a.Decision)
	resp.ResponseHeadersToAdd = headerValues(header)
	resp.DynamicMetadata = a.metadata()
	return resp
}

// closed refuses as the policy does, whatever the proxy does at an error.
func (a *answer) closed(e *ratelimit.ClosedError) *rlspb.RateLimitResponse {
	a.Decision = ratelimit.Decision{
		Policy: e.Policy, Stage: e.Stage, Source: ratelimit.SourceFailClosed, RetryAfter: time.Second,
		Degraded: true, DegradedReason: e.Reason,
	}
	for i, state := range a.states {
		if state == nil {
			a.states[i] = &ratelimit.PartState{}
		}
	}
	return a.decided()
}

// tooCostly refuses for good: no Retry-After says when it would pass. A policy whose
// stage refuses nobody lets it pass and says so.
func (a *answer) tooCostly(policy string, e *ratelimit.CostError) *rlspb.RateLimitResponse {
	a.Decision = ratelimit.Decision{Allowed: true, Policy: policy, Limiting: e.LimitName} // allowed also for the header
	resp := a.decided()
	resp.DynamicMetadata.Fields["cost_exceeds_capacity"] = structpb.NewNumberValue(float64(e.Capacity))
	if !e.Uncounted {
		resp.OverallCode = rlspb.RateLimitResponse_OVER_LIMIT
		resp.DynamicMetadata.Fields["allowed"] = structpb.NewBoolValue(false)
	}
	return resp
}

// status tells of a descriptor by the limit that has the least left: of those that
// were asked for the same cost one that refuses has less than one that allows.
func (a *answer) status(state *ratelimit.PartState) *rlspb.RateLimitResponse_DescriptorStatus {
	if state == nil {
		return &rlspb.RateLimitResponse_DescriptorStatus{} // UNKNOWN: another one ended the decision
	}
	status := &rlspb.RateLimitResponse_DescriptorStatus{Code: rlspb.RateLimitResponse_OK}
	if !state.Allowed && !a.Allowed {
		status.Code = rlspb.RateLimitResponse_OVER_LIMIT
	}
	if len(state.Limits) == 0 {
		return status
	}
	l := state.Limits[0]
	for _, other := range state.Limits[1:] {
		if other.Remaining < l.Remaining {
			l = other
		}
	}
	status.CurrentLimit = currentLimit(l)
	status.LimitRemaining = uint32(min(l.Remaining, math.MaxUint32)) //nolint:gosec // bounded
	status.DurationUntilReset = durationpb.New(l.Reset)
	return status
}

// A span is a unit of the protocol.
type span struct {
	unit rlspb.RateLimitResponse_RateLimit_Unit
	long int64 // seconds
}

// spans are the units in which a window can be told, the longest first.
var spans = []span{
	{rlspb.RateLimitResponse_RateLimit_DAY, 86_400},
	{rlspb.RateLimitResponse_RateLimit_HOUR, 3600},
	{rlspb.RateLimitResponse_RateLimit_MINUTE, 60},
	{rlspb.RateLimitResponse_RateLimit_SECOND, 1},
}

// currentLimit is the capacity and the time in which it comes back, as in RateLimit-Policy.
func currentLimit(l ratelimit.LimitState) *rlspb.RateLimitResponse_RateLimit {
	seconds := max(1, int64((l.Window+time.Second-1)/time.Second))
	span := spans[slices.IndexFunc(spans, func(s span) bool { return seconds%s.long == 0 })]
	current := &rlspb.RateLimitResponse_RateLimit{
		Name: l.Name, RequestsPerUnit: uint32(min(l.Limit, math.MaxUint32)), Unit: span.unit, //nolint:gosec // bounded
	}
	if n := seconds / span.long; n > 1 {
		current.UnitMultiplier = wrapperspb.UInt32(uint32(min(n, math.MaxUint32)))
	}
	return current
}

// headerValues are in the order of their names, which are written as in HTTP/2.
func headerValues(h http.Header) []*corepb.HeaderValue {
	values, all := make([]*corepb.HeaderValue, 0, len(h)), make([]corepb.HeaderValue, len(h)) // one piece of memory for all
	for name, value := range h {
		v := &all[len(values)]
		v.Key, v.Value = strings.ToLower(name), value[0]
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b *corepb.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return values
}

// metadata are the fields of the HTTP answer that the headers do not have.
func (a *answer) metadata() *structpb.Struct {
	fields := make(map[string]*structpb.Value, 8)
	text := func(name, value string) {
		if value != "" {
			v := &struct { // one piece of memory
				value structpb.Value
				text  structpb.Value_StringValue
			}{}
			v.text.StringValue = value
			v.value.Kind = &v.text
			fields[name] = &v.value
		}
	}
	wait := func(name string, d time.Duration) {
		if d > 0 {
			fields[name] = structpb.NewNumberValue(float64(d.Milliseconds()))
		}
	}
	fields["allowed"] = structpb.NewBoolValue(a.Allowed)
	text("policy", a.Policy)
	text("stage", string(a.Stage))
	text("source", string(a.Source))
	text("limiting", a.Limiting)
	text("slot_id", a.SlotID)
	wait("retry_after_ms", a.RetryAfter)
	wait("delay_ms", a.Delay)
	if a.MaxOvershoot > 0 {
		fields["max_overshoot"] = structpb.NewNumberValue(float64(a.MaxOvershoot))
	}
	if a.Degraded {
		fields["degraded"] = structpb.NewBoolValue(true)
		text("degraded_reason", a.DegradedReason)
	}
	return &structpb.Struct{Fields: fields}
}
