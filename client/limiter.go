package client

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// exactTime is for how long a policy that the service does not lease is not asked for batches again.
const exactTime = 30 * time.Second

// maxExact is of how many policies that is remembered.
const maxExact = 1000

// returnTime is for how long it is tried to give a batch back, which then lapses anyhow:
// a check of its key waits for that.
const returnTime = time.Second

// A Limiter answers checks from batches of units that it took ahead, without a
// request for each. Only policies with mode leased have such units, and only keys that
// are asked for often get a batch: every other check goes to the service, as does one
// with a RequestID. It may be used by many goroutines at once, until Close.
type Limiter struct {
	c      *Client
	lessee *tokenlease.Lessee
	stop   context.CancelFunc
	ended  sync.WaitGroup

	mu    sync.Mutex
	exact map[string]time.Time // guarded by mu: policies that are not leased, and until when that is believed
}

// NewLimiter makes a limiter. Close gives back what it holds.
func (c *Client) NewLimiter() *Limiter {
	l := &Limiter{c: c, lessee: tokenlease.New(leaseSource{c}, tokenlease.Options{}), exact: map[string]time.Time{}}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.ended.Go(func() { l.lessee.Run(ctx) })
	return l
}

// Check decides as [Client.Check] does. An answer from a batch has the source
// token_lease and no Limits.
func (l *Limiter) Check(ctx context.Context, req api.RateLimitRequest) (api.RateLimitDecision, error) {
	cost := int64(1)
	if req.Cost != nil {
		cost = *req.Cost
	}
	if l.c.opts.OnNoAnswer == "" || req.RequestID != nil || l.isExact(req.Policy) {
		return l.c.Check(ctx, req)
	}
	asked, cancel := within(ctx, l.c.opts.CheckTimeout) // for a batch and a check together
	defer cancel()
	a, err := l.lessee.Spend(asked, tokenlease.Key{Policy: req.Policy, Descriptors: req.Descriptors}, cost)
	switch {
	case err == nil && !a.Exact:
		d := api.RateLimitDecision{
			Allowed: a.Allowed, Policy: req.Policy, Stage: api.StageEnforce, Limits: []api.LimitState{},
			RetryAfterMS: (a.RetryAfter + time.Millisecond - 1).Milliseconds(), Source: api.SourceTokenLease,
		}
		if a.Grant != nil {
			d.MaxOvershoot = a.Grant.MaxOvershoot
		}
		return d, nil
	case outage(err) && ctx.Err() == nil: // the service was asked just now
		return l.c.unanswered(ctx, req)
	}
	if p, ok := errors.AsType[*ProblemError](err); ok && p.Code == api.CodeInvalidValue && p.Field == "policy" {
		l.mu.Lock()
		if len(l.exact) >= maxExact {
			clear(l.exact) // they are asked once more
		}
		l.exact[req.Policy] = time.Now().Add(exactTime)
		l.mu.Unlock()
	}
	return l.c.Check(asked, req) // which also says what is wrong with the request
}

func (l *Limiter) isExact(policy string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.exact[policy])
}

// Close gives back what the limiter holds, as far as ctx lets it. Checks go to the
// service from then on.
func (l *Limiter) Close(ctx context.Context) error {
	l.stop()
	l.ended.Wait()
	return l.lessee.Close(ctx)
}

// leaseSource is the service as where a lessee takes its batches from. The tenant is the key's.
type leaseSource struct{ c *Client }

// Lease asks once: whether a batch whose answer was lost was charged, nobody knows.
func (s leaseSource) Lease(ctx context.Context, ask tokenlease.Ask) (tokenlease.Grant, error) {
	body := api.TokenLeaseRequest{Policy: ask.Policy, Descriptors: given(ask.Descriptors), Want: ask.Want, Holder: &ask.Holder, Held: &ask.Left}
	var got api.TokenLease
	if _, err := s.c.do(ctx, call{method: http.MethodPost, route: "/v1/ratelimit/token-leases", body: body, repeat: never, within: s.c.opts.CheckTimeout}, &got); err != nil {
		return tokenlease.Grant{}, err
	}
	g := tokenlease.Grant{Granted: got.Granted, ValidFor: ms(got.ValidForMS), RetryAfter: ms(got.RetryAfterMS), MaxOvershoot: got.MaxOvershoot, Room: -1}
	if ask.Least > 1 {
		g.RetryAfter = 0 // it is until one unit is there: for more a check is asked for
	}
	return g, nil
}

func (s leaseSource) Return(ctx context.Context, unspent tokenlease.Unspent) error {
	body := api.TokenLeaseReturn{Policy: unspent.Policy, Descriptors: given(unspent.Descriptors), Unspent: unspent.Units, Holder: &unspent.Holder}
	_, err := s.c.do(ctx, call{method: http.MethodPost, route: "/v1/ratelimit/token-leases/return", body: body, repeat: keyed, within: returnTime}, nil)
	return err
}
