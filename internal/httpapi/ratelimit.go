package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

func (s *server) check(c echo.Context, key auth.Key) error {
	req, err := rateLimitRequest(c)
	if err != nil {
		return err
	}
	d, err := s.Limits.Check(c.Request().Context(), key.Tenant, req)
	if err != nil {
		return err
	}
	s.RateLimitFields.Set(c.Response().Header(), d)
	decision := decisionJSON(d)
	if !d.Allowed {
		return &limitedError{decision}
	}
	return writeRaw(c, http.StatusOK, echo.MIMEApplicationJSON, appendDecision(make([]byte, 0, 512), &decision))
}

func (s *server) peek(c echo.Context, key auth.Key) error {
	req, err := rateLimitRequest(c)
	if err != nil {
		return err
	}
	d, err := s.Limits.Peek(c.Request().Context(), key.Tenant, req)
	if e, ok := errors.AsType[*ratelimit.ClosedError](err); ok { // what a check would be told, which is an answer here
		d = ratelimit.Decision{Policy: e.Policy, Stage: e.Stage, Source: ratelimit.SourceFailClosed, Degraded: true, DegradedReason: e.Reason}
	} else if err != nil {
		return err
	}
	shown := d
	shown.Allowed = true // this answer refuses nothing, so no Retry-After goes with it
	s.RateLimitFields.Set(c.Response().Header(), shown)
	return write(c, http.StatusOK, decisionJSON(d))
}

func (s *server) listPolicies(c echo.Context, _ auth.Key) error {
	policies, version := s.Limits.Policies()
	return write(c, http.StatusOK, api.PolicyList{Version: version, Policies: each(policies, policyJSON)})
}

func (s *server) getPolicy(c echo.Context, _ auth.Key) error {
	policy, version, err := s.Limits.Policy(c.Param("name"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.PolicyList{Version: version, Policies: []api.Policy{policyJSON(policy)}})
}

func (s *server) refund(c echo.Context, key auth.Key) error {
	var body api.RateLimitRefund
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"request_id", body.RequestID}); err != nil { // an empty one would make the retry a new refund
		return err
	}
	states, err := s.Limits.Refund(c.Request().Context(), key.Tenant, ratelimit.Request{
		Policy: body.Policy, Descriptors: body.Descriptors, Cost: body.Cost, RequestID: orZero(body.RequestID),
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.RateLimitStates{Limits: each(states, limitStateJSON)})
}

func (s *server) releaseSlot(c echo.Context, key auth.Key) error {
	var body api.RateLimitRelease
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Limits.Release(c.Request().Context(), key.Tenant, body.Policy, body.Descriptors, body.SlotID); err != nil {
		return err
	}
	return noContent(c)
}

func (s *server) resetLimits(c echo.Context, key auth.Key) error {
	var body api.RateLimitReset
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Limits.Reset(c.Request().Context(), key.Tenant, body.Policy, body.Descriptors); err != nil {
		return err
	}
	return noContent(c)
}

func rateLimitRequest(c echo.Context) (ratelimit.Request, error) {
	var body api.RateLimitRequest
	if err := bind(c, &body); err != nil {
		return ratelimit.Request{}, err
	}
	if err := checkOptional(text{"request_id", body.RequestID}); err != nil {
		return ratelimit.Request{}, err
	}
	cost := int64(1)
	if body.Cost != nil {
		cost = *body.Cost
	}
	return ratelimit.Request{Policy: body.Policy, Descriptors: body.Descriptors, Cost: cost, RequestID: orZero(body.RequestID)}, nil
}

// A limitedError is a refusal of the limiter on its way to the caller.
type limitedError struct{ decision api.RateLimitDecision }

func (e *limitedError) Error() string { return "rate limited by " + e.decision.Limiting }

// problem puts the whole decision into the problem.
func (e *limitedError) problem(p api.Problem) api.RateLimitProblem {
	d := e.decision
	return api.RateLimitProblem{
		Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, Code: p.Code, RequestID: p.RequestID, Retryable: p.Retryable,
		Allowed: d.Allowed, Policy: d.Policy, Stage: d.Stage, Limiting: d.Limiting, RetryAfterMS: d.RetryAfterMS, DelayMS: d.DelayMS, SlotID: d.SlotID,
		Limits: d.Limits, Degraded: d.Degraded, DegradedReason: d.DegradedReason, Source: d.Source,
		MaxOvershoot: d.MaxOvershoot,
	}
}

func decisionJSON(d ratelimit.Decision) api.RateLimitDecision {
	return api.RateLimitDecision{
		Allowed:      d.Allowed,
		Policy:       d.Policy,
		Stage:        api.Stage(d.Stage),
		Limiting:     d.Limiting,
		RetryAfterMS: ceilMillis(d.RetryAfter),
		DelayMS:      ceilMillis(d.Delay),
		SlotID:       d.SlotID,
		Limits:       each(d.Limits, limitStateJSON),
		Source:       api.DecisionSource(d.Source),

		Degraded:       d.Degraded,
		DegradedReason: d.DegradedReason,
		MaxOvershoot:   d.MaxOvershoot,
	}
}

func limitStateJSON(l ratelimit.LimitState) api.LimitState {
	return api.LimitState{
		Name:      l.Name,
		Algorithm: api.Algorithm(l.Algorithm),
		Limit:     l.Limit,
		Remaining: l.Remaining,
		ResetMS:   ceilMillis(l.Reset),
		WindowMS:  ceilMillis(l.Window),
	}
}

func policyJSON(p ratelimit.Policy) api.Policy {
	out := api.Policy{
		Name: p.Name, Owner: p.Owner, Stage: api.Stage(p.Stage), CanaryPercent: p.Percent, Posture: api.Posture(p.Posture),
		Mode: api.Mode(cmp.Or(p.Mode, ratelimit.Exact)), MaxOvershoot: p.MaxOvershoot,
		Limits: each(p.Limits, limitJSON),
	}
	if !p.EnforceFrom.IsZero() {
		out.EnforceFrom = p.EnforceFrom.Format(time.DateOnly)
	}
	return out
}

func limitJSON(l ratelimit.Limit) api.Limit {
	out := api.Limit{
		Name:      l.Name,
		Key:       list[string](l.Key),
		Algorithm: api.Algorithm(l.Algorithm),
		Rate:      rateJSON(l.Rate),
		Burst:     l.Burst,
		Queue:     l.Queue,
		Slots:     l.Slots,
		SlotTTLMS: l.SlotTTL.Milliseconds(),
		Shards:    l.Shards,
	}
	for _, o := range l.Overrides {
		out.Overrides = append(out.Overrides, api.Override{
			Match: o.Match, Rate: rateJSON(o.Rate), Burst: o.Burst, Queue: o.Queue, Slots: o.Slots, SlotTTLMS: o.SlotTTL.Milliseconds(),
		})
	}
	return out
}

// rateJSON is nil for a limit without a rate.
func rateJSON(r ratelimit.Rate) *api.Rate {
	if r.Count == 0 {
		return nil
	}
	return &api.Rate{Count: r.Count, PerMS: r.Per.Milliseconds()}
}

// closed says that a posture refused the request, and why.
func closed(c echo.Context, e *ratelimit.ClosedError, p *api.Problem) {
	ratelimithttp.SetDegraded(c.Response().Header())
	p.Detail = "the policy is closed while its store does not decide; the cost may have been charged"
	p.Source, p.Degraded, p.DegradedReason = api.DecisionSource(ratelimit.SourceFailClosed), true, e.Reason
}
