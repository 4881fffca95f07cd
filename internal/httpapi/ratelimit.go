package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/ratelimit"
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
	decision := decisionJSON(d)
	if !d.Allowed {
		setRateLimit(c, d, ceilSeconds(d.RetryAfter))
		return &limitedError{decision}
	}
	setRateLimit(c, d, unbounded)
	return write(c, http.StatusOK, decision)
}

func (s *server) peek(c echo.Context, key auth.Key) error {
	req, err := rateLimitRequest(c)
	if err != nil {
		return err
	}
	d, err := s.Limits.Peek(c.Request().Context(), key.Tenant, req)
	if err != nil {
		return err
	}
	setRateLimit(c, d, unbounded)
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

// unbounded lets each limit say when it is full again.
const unbounded = int64(1) << 62

// degradedHeader marks an answer that a posture gave.
const degradedHeader = "X-RateLimit-Degraded"

// closed says that a posture refused the request, and why.
func closed(c echo.Context, e *ratelimit.ClosedError, p *api.Problem) {
	c.Response().Header().Set(degradedHeader, "true")
	p.Detail = "the policy is closed while its store does not decide; the cost may have been charged"
	p.Source, p.Degraded, p.DegradedReason = api.DecisionSource(ratelimit.SourceFailClosed), true, e.Reason
}

// setRateLimit sets the two fields of draft-ietf-httpapi-ratelimit-headers-10,
// one item a limit. Both count in whole seconds, rounded up. The draft wants no
// reset behind Retry-After (section 4), so a refusal caps it there.
//
// A posture that asks nobody knows no limits, and sets neither.
func setRateLimit(c echo.Context, d ratelimit.Decision, latest int64) {
	if d.Degraded {
		c.Response().Header().Set(degradedHeader, "true")
	}
	if len(d.Limits) == 0 {
		return
	}
	var limits, policies []string
	for _, l := range d.Limits {
		name := sfString(l.Name)
		limits = append(limits, fmt.Sprintf("%s;r=%d;t=%d", name, l.Remaining, min(ceilSeconds(l.Reset), latest)))
		policies = append(policies, fmt.Sprintf("%s;q=%d;w=%d", name, l.Limit, ceilSeconds(l.Window)))
	}
	c.Response().Header().Set("RateLimit", strings.Join(limits, ", "))
	c.Response().Header().Set("RateLimit-Policy", strings.Join(policies, ", "))
	if d.OverBy > 0 {
		c.Response().Header().Set("RateLimit-Warning", warning(d))
	}
}

func warning(d ratelimit.Decision) string {
	if d.EnforceFrom.IsZero() {
		return fmt.Sprintf("%d%% over", d.OverBy)
	}
	return fmt.Sprintf("%d%% over; enforcement begins %s", d.OverBy, d.EnforceFrom.Format(time.DateOnly))
}

// sfString writes a String of RFC 9651 section 3.3.3: printable ASCII with \ and " escaped.
func sfString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
