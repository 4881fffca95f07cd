package ratelimithttp

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A problem is an answer as in RFC 9457, with the names that the service's API has.
type problem struct {
	Type           string `json:"type"`
	Title          string `json:"title"`
	Status         int    `json:"status"`
	Detail         string `json:"detail"`
	Code           string `json:"code"`
	Retryable      bool   `json:"retryable"`
	Policy         string `json:"policy,omitempty"`
	Limiting       string `json:"limiting,omitempty"`
	RetryAfterMS   int64  `json:"retry_after_ms,omitempty"`
	Limit          int64  `json:"limit,omitempty"`
	Source         string `json:"source,omitempty"`
	Degraded       bool   `json:"degraded,omitempty"`
	DegradedReason string `json:"degraded_reason,omitempty"`
}

// TooMany is the default answer to a request that the policy does not let through: 429.
func TooMany(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	problem{
		Status: http.StatusTooManyRequests, Code: "rate_limited", Title: "the rate limit is reached",
		Detail: "repeat the request after the time in Retry-After", Retryable: true,
		Policy: d.Policy, Limiting: d.Limiting, RetryAfterMS: d.RetryAfter.Milliseconds(),
		Source: string(d.Source), Degraded: d.Degraded, DegradedReason: d.DegradedReason,
	}.write(w)
}

// Unavailable is the default answer to a fault: 422 for a cost that can never pass, 503
// with Retry-After where the limits could not be looked at, and 500 for a defect: a
// policy that is not loaded, a descriptor that is missing. It tells nothing of the
// error but, where a policy is closed, why.
func Unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if e, ok := errors.AsType[*ratelimit.CostError](err); ok {
		problem{
			Status: http.StatusUnprocessableEntity, Code: "cost_exceeds_capacity", Title: "the cost can never pass",
			Detail: "the request is larger than the limit " + e.LimitName + " ever allows", Limit: e.Capacity,
		}.write(w)
		return
	}
	p := problem{
		Status: http.StatusServiceUnavailable, Code: "store_unavailable", Title: "the limits could not be looked at",
		Detail: "try again later", Retryable: true,
	}
	e, closed := errors.AsType[*ratelimit.ClosedError](err)
	switch {
	case closed:
		SetDegraded(w.Header())
		p.Policy, p.Source, p.Degraded, p.DegradedReason = e.Policy, string(ratelimit.SourceFailClosed), true, e.Reason
	case errors.Is(err, keytype.ErrUnavailable), errors.Is(err, keytype.ErrOutcomeUnknown), r.Context().Err() != nil:
	default:
		p = problem{Status: http.StatusInternalServerError, Code: "internal", Title: "the service has a defect", Detail: "the request could not be judged"}
	}
	if p.Retryable {
		w.Header().Set("Retry-After", "1")
	}
	p.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	p.Type = "urn:coordsvc:problem:" + p.Code
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // fails where the client is gone
}
