package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/coordsvc/coordsvc/api"
)

// Check asks whether one more request may happen now, and takes its cost if so. A
// refusal is an answer, not an error: see Allowed, RetryAfterMS and Source. While the
// service does not answer in time, or with a 5xx, Options.OnNoAnswer decides, and the
// answer is Degraded; so is one with source fail_closed, of a policy that is closed
// while the service's store fails.
//
// The error is the caller's own: a policy, descriptor or cost that the service
// refuses, a key without the scope, a context that was canceled, or ErrNoPosture.
//
// Without a RequestID a check is not tried again once it was sent, since it may have
// been charged.
func (c *Client) Check(ctx context.Context, req api.RateLimitRequest) (api.RateLimitDecision, error) {
	if c.opts.OnNoAnswer == "" {
		return api.RateLimitDecision{}, ErrNoPosture
	}
	req.Descriptors = given(req.Descriptors)
	r := call{method: http.MethodPost, route: "/v1/ratelimit/check", body: req, repeat: never, within: c.opts.CheckTimeout}
	if req.RequestID != nil {
		r.repeat = exact
	}
	var d api.RateLimitDecision
	_, err := c.do(ctx, r, &d)
	if err == nil {
		return d, nil
	}
	if p, ok := errors.AsType[*ProblemError](err); ok && p.Code == api.CodeRateLimited {
		return refused(p)
	} else if ok && p.Source == api.SourceFailClosed {
		return closed(req, p), nil
	}
	if !outage(err) || errors.Is(ctx.Err(), context.Canceled) {
		return api.RateLimitDecision{}, err
	}
	return c.unanswered(ctx, req)
}

// outage reports whether the error is the service's failure to answer, rather than its answer.
func outage(err error) bool {
	if p, ok := errors.AsType[*ProblemError](err); ok {
		return p.Status >= http.StatusInternalServerError
	}
	_, ok := errors.AsType[*NoAnswerError](err)
	return ok
}

// refused reads the decision of a refused check.
func refused(p *ProblemError) (d api.RateLimitDecision, err error) {
	return d, json.Unmarshal(p.raw, &d)
}

// closed is the answer of a policy that is closed while its store fails.
func closed(req api.RateLimitRequest, p *ProblemError) api.RateLimitDecision {
	return api.RateLimitDecision{
		Policy: req.Policy, Limits: []api.LimitState{}, RetryAfterMS: p.RetryAfter.Milliseconds(),
		Source: p.Source, Degraded: true, DegradedReason: p.DegradedReason,
	}
}

// Peek tells what Check would answer now, and takes nothing. No posture answers it:
// without an answer it is an error.
func (c *Client) Peek(ctx context.Context, req api.RateLimitRequest) (d api.RateLimitDecision, err error) {
	req.Descriptors = given(req.Descriptors)
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/ratelimit/peek", body: req, repeat: exact, within: c.opts.CheckTimeout}, &d)
	return d, err
}

// Refund puts units back that a check took and nobody used. No limit gets fuller than full.
// Of a limit with shards they go back to where they came from if the RequestID is the
// check's, or if the descriptors say which shard that is; else to any, which may be full.
func (c *Client) Refund(ctx context.Context, req api.RateLimitRefund) ([]api.LimitState, error) {
	req.RequestID, req.Descriptors = orNew(req.RequestID), given(req.Descriptors)
	var states api.RateLimitStates
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/ratelimit/refund", body: req, repeat: exact}, &states)
	return states.Limits, err
}

// ReleaseSlot frees the slot of a check. A slot that has expired is no error.
func (c *Client) ReleaseSlot(ctx context.Context, req api.RateLimitRelease) error {
	req.Descriptors = given(req.Descriptors)
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/ratelimit/release", body: req, repeat: exact}, nil)
	return err
}

// given is the descriptors, none where there are none: the contract has no null.
func given(d api.Descriptors) api.Descriptors {
	if d == nil {
		return api.Descriptors{}
	}
	return d
}

// orNew is the request id, or one that nobody else has.
func orNew(id *api.ID) *api.ID {
	if id == nil {
		return new(rand.Text())
	}
	return id
}
