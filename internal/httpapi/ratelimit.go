package httpapi

import (
	"fmt"
	"net/http"
	"strings"

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
	return write(c, http.StatusOK, api.PolicyList{Version: s.Limits.Version(), Policies: each(s.Limits.Policies(), policyJSON)})
}

func (s *server) getPolicy(c echo.Context, _ auth.Key) error {
	policy, err := s.Limits.Policy(c.Param("name"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.PolicyList{Version: s.Limits.Version(), Policies: []api.Policy{policyJSON(policy)}})
}

func rateLimitRequest(c echo.Context) (ratelimit.Request, error) {
	var body api.RateLimitRequest
	if err := bind(c, &body); err != nil {
		return ratelimit.Request{}, err
	}
	cost := int64(1)
	if body.Cost != nil {
		cost = *body.Cost
	}
	return ratelimit.Request{Policy: body.Policy, Descriptors: body.Descriptors, Cost: cost}, nil
}

// A limitedError is a refusal of the limiter on its way to the caller.
type limitedError struct{ decision api.RateLimitDecision }

func (e *limitedError) Error() string { return "rate limited by " + e.decision.Limiting }

// problem puts the whole decision into the problem.
func (e *limitedError) problem(p api.Problem) api.RateLimitProblem {
	d := e.decision
	return api.RateLimitProblem{
		Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, Code: p.Code, RequestID: p.RequestID, Retryable: p.Retryable,
		Allowed: d.Allowed, Policy: d.Policy, Stage: d.Stage, Limiting: d.Limiting, RetryAfterMS: d.RetryAfterMS,
		Limits: d.Limits, Degraded: d.Degraded, Source: d.Source,
	}
}

func decisionJSON(d ratelimit.Decision) api.RateLimitDecision {
	return api.RateLimitDecision{
		Allowed:      d.Allowed,
		Policy:       d.Policy,
		Stage:        api.Stage(d.Stage),
		Limiting:     d.Limiting,
		RetryAfterMS: ceilMillis(d.RetryAfter),
		Limits:       each(d.Limits, limitStateJSON),
		Source:       api.DecisionSource(d.Source),
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
	return api.Policy{Name: p.Name, Stage: api.Stage(p.Stage), Posture: api.Posture(p.Posture), Limits: each(p.Limits, limitJSON)}
}

func limitJSON(l ratelimit.Limit) api.Limit {
	return api.Limit{
		Name:      l.Name,
		Key:       list[string](l.Key),
		Algorithm: api.Algorithm(l.Algorithm),
		Rate:      api.Rate{Count: l.Rate.Count, PerMS: l.Rate.Per.Milliseconds()},
		Burst:     l.Burst,
	}
}

// unbounded lets each limit say when it is full again.
const unbounded = int64(1) << 62

// setRateLimit sets the two fields of draft-ietf-httpapi-ratelimit-headers-10,
// one item a limit. Both count in whole seconds, rounded up. The draft wants no
// reset behind Retry-After (section 4), so a refusal caps it there.
func setRateLimit(c echo.Context, d ratelimit.Decision, latest int64) {
	var limits, policies []string
	for _, l := range d.Limits {
		name := sfString(l.Name)
		limits = append(limits, fmt.Sprintf("%s;r=%d;t=%d", name, l.Remaining, min(ceilSeconds(l.Reset), latest)))
		policies = append(policies, fmt.Sprintf("%s;q=%d;w=%d", name, l.Limit, ceilSeconds(l.Window)))
	}
	c.Response().Header().Set("RateLimit", strings.Join(limits, ", "))
	c.Response().Header().Set("RateLimit-Policy", strings.Join(policies, ", "))
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
