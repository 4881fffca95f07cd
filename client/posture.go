package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// noAnswer is the reason of a decision that the service did not make.
const noAnswer = "no_answer"

// localKeys is how many keys posture local counts; beyond that it forgets those not used for longest.
const localKeys = 10_000

// localPolicy counts a policy and its descriptors under one key.
const localPolicy = "local"

// newLocal makes the limiter of posture local. It has one rate for all policies,
// whose own the client does not know.
func newLocal(rate ratelimit.LocalRate) (*ratelimit.Limiter, error) {
	limits, err := ratelimit.New(ratelimit.NewLocal(embedded.Bounded(localKeys)), []ratelimit.Policy{{
		Name: localPolicy, Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: localPolicy, Key: []string{"who"}, Algorithm: ratelimit.TokenBucket,
			Numbers: ratelimit.Numbers{Rate: rate.Rate, Burst: rate.Burst},
		}},
	}}, ratelimit.Options{})
	if err != nil {
		return nil, fmt.Errorf("client: Options.Local: %w", err)
	}
	return limits, nil
}

// unanswered decides by the posture. Under local a cost above the burst takes it all.
func (c *Client) unanswered(ctx context.Context, req api.RateLimitRequest) (api.RateLimitDecision, error) {
	d := api.RateLimitDecision{
		Allowed: c.opts.OnNoAnswer == api.PostureFailOpen, Policy: req.Policy, Limits: []api.LimitState{},
		Source: api.DecisionSource(c.opts.OnNoAnswer), Degraded: true, DegradedReason: noAnswer,
	}
	if c.local == nil {
		return d, nil
	}
	cost := int64(1)
	if req.Cost != nil {
		cost = *req.Cost
	}
	// The caller's time may be over, and this takes none.
	taken, err := c.local.Check(context.WithoutCancel(ctx), localPolicy, ratelimit.Request{
		Policy: localPolicy, Descriptors: map[string]string{"who": whole(req)}, Cost: min(cost, c.opts.Local.Burst),
	})
	if err != nil {
		return api.RateLimitDecision{}, fmt.Errorf("client: posture local: %w", err)
	}
	d.Allowed, d.RetryAfterMS = taken.Allowed, taken.RetryAfter.Milliseconds()
	if !d.Allowed {
		d.Limiting = localPolicy
	}
	for _, l := range taken.Limits {
		d.Limits = append(d.Limits, api.LimitState{
			Name: l.Name, Algorithm: api.Algorithm(l.Algorithm), Limit: l.Limit, Remaining: l.Remaining,
			ResetMS: l.Reset.Milliseconds(), WindowMS: l.Window.Milliseconds(),
		})
	}
	return d, nil
}

// whole names a policy with its descriptors in a fixed length, each part behind its own.
func whole(req api.RateLimitRequest) string {
	h := sha256.New()
	write := func(part string) { fmt.Fprintf(h, "%d:%s", len(part), part) }
	write(req.Policy)
	for _, name := range slices.Sorted(maps.Keys(req.Descriptors)) {
		write(name)
		write(req.Descriptors[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}
