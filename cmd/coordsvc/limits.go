package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// limitStore is where limits are counted: in Redis where there is one, and while
// that fails as each policy's posture says; else in this process.
func limitStore(s stores, c config, secrets fileKeys, metrics *telemetry.Metrics, log *slog.Logger) (store ratelimit.Store, opts ratelimit.Options, end func() error) {
	local := ratelimit.NewLocal(s.limits)
	decided := func(d ratelimit.Decision) {
		metrics.LimitDecided(d.Policy, string(d.Stage), limitOutcome(d), string(d.Source))
	}
	leased := func(policy string, event tokenlease.Event, units int64) {
		metrics.LeaseUnits(policy, string(event), units)
	}
	hot := &ratelimit.HotKeys{}
	if c.unmeasured {
		decided, leased, hot = nil, nil, nil
	}
	if s.redis == nil {
		return local, ratelimit.Options{Now: s.limitsNow, Decided: decided}, func() error { return nil }
	}
	shared := redislimit.New(s.redis, redislimit.Options{Prefix: c.redisPrefix, Secret: secrets.limits(), Leftover: metrics.LimitLeftover})
	guard := ratelimit.NewGuard(shared, ratelimit.GuardOptions{
		Budget: c.redisBudget,
		Changed: func(err error) {
			metrics.BreakerOpen(err != nil)
			if err != nil {
				log.Warn("redis does not decide on rate limits: the policies' postures do", "error", err)
				return
			}
			log.Info("redis decides on rate limits again")
		},
	})
	return guard, ratelimit.Options{Now: s.limitsNow, Fallback: local, Bypassed: metrics.LimitBypassed, Decided: decided, DenyCache: true, Leases: true, Leased: leased, HotKeys: hot}, func() error {
		return errors.Join(guard.Close(), shared.Close())
	}
}

// watchLeases has metrics tell what this node holds.
func watchLeases(limits *ratelimit.Limiter, metrics *telemetry.Metrics) {
	metrics.WatchLeases(limits.LeasedUnits, func() map[string]int64 {
		bounds := map[string]int64{}
		policies, _ := limits.Policies()
		for _, p := range policies {
			if p.Mode == ratelimit.Leased {
				bounds[p.Name] = p.MaxOvershoot
			}
		}
		return bounds
	})
}

// returnTime is how long a node that ends takes to return what it has leased.
const returnTime = 2 * time.Second

// endLeases returns what this node has leased. What cannot be returned lapses.
func endLeases(ctx context.Context, limits *ratelimit.Limiter, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	if err := limits.ReturnLeases(ctx); err != nil {
		log.Warn("leased units were not returned: they lapse", "error", err)
	}
}

// limitOutcome tells a request that only its policy's stage let pass from others that pass.
func limitOutcome(d ratelimit.Decision) string {
	switch {
	case !d.Allowed:
		return "refused"
	case d.Limiting != "":
		return "would_refuse"
	default:
		return "allowed"
	}
}
