package rls

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// check answers a request of a proxy. What goes back goes back first; then it is
// looked at what has no hits, and if that passes the rest is charged, all of it or
// nothing.
//
// A refusal of any kind is OVER_LIMIT and no error, also where the policy is closed
// while its store fails, and where the hits can never pass: at an error the proxy
// would do as it is configured, and not as the policy says.
func (s *Server) check(ctx context.Context, c *call) (*reply, error) {
	key, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.sort(); err != nil {
		return nil, err
	}
	deciding, ended := s.step(ctx, "ratelimit check")
	err = s.decide(deciding, key.Tenant, c)
	ended(err)
	if err := c.answer.refused(c.domain, err); err != nil {
		return nil, err
	}
	return c.answer.reply(s.Fields), nil
}

func (s *Server) decide(ctx context.Context, tenant string, c *call) error {
	a, policy := &c.answer, c.domain
	a.Decision = ratelimit.Decision{Allowed: true, Policy: policy}
	if len(c.back.parts) > 0 {
		states, err := s.limits.RefundParts(ctx, tenant, policy, c.back.parts)
		if err != nil {
			return err
		}
		a.add(c.back, states)
	}
	if len(c.look.parts) > 0 {
		d, states, err := s.limits.PeekParts(ctx, tenant, policy, c.look.parts)
		if err != nil {
			return err
		}
		a.Decision = d
		a.add(c.look, states)
	}
	if len(c.take.parts) > 0 && a.Allowed {
		d, states, err := s.limits.CheckParts(ctx, tenant, policy, c.take.parts)
		if err != nil {
			return err
		}
		a.Decision = d
		a.add(c.take, states)
	}
	return nil
}

// An answer is what was decided, and the states by descriptor, nil where it was not asked for.
type answer struct {
	ratelimit.Decision
	states []*ratelimit.PartState
	cost   *ratelimit.CostError // where the hits can never pass
	header http.Header          // empty; room for the fields
}

func (a *answer) add(g group, states []ratelimit.PartState) {
	for i, place := range g.places {
		a.states[place] = &states[i]
	}
}

// refused takes the errors that are answers, and returns others.
func (a *answer) refused(policy string, err error) error {
	if cost, ok := errors.AsType[*ratelimit.CostError](err); ok {
		a.tooCostly(policy, cost)
		return nil
	}
	if closed, ok := errors.AsType[*ratelimit.ClosedError](err); ok {
		a.closed(closed)
		return nil
	}
	return err
}

// closed refuses as the policy does, whatever the proxy does at an error.
func (a *answer) closed(e *ratelimit.ClosedError) {
	a.Decision = ratelimit.Decision{
		Policy: e.Policy, Stage: e.Stage, Source: ratelimit.SourceFailClosed, RetryAfter: time.Second,
		Degraded: true, DegradedReason: e.Reason,
	}
	for i, state := range a.states {
		if state == nil {
			a.states[i] = &ratelimit.PartState{}
		}
	}
}

// tooCostly refuses for good: no Retry-After says when it would pass. A policy whose
// stage refuses nobody lets it pass and says so.
func (a *answer) tooCostly(policy string, e *ratelimit.CostError) {
	a.Decision = ratelimit.Decision{Allowed: true, Policy: policy, Limiting: e.LimitName} // allowed also for the header
	a.cost = e
}
