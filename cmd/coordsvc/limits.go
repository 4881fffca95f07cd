package main

import (
	"log/slog"

	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// limitStore is where limits are counted: in Redis where there is one, and while
// that fails as each policy's posture says; else in this process.
func limitStore(s stores, c config, secrets fileKeys, metrics *telemetry.Metrics, log *slog.Logger) (store ratelimit.Store, opts ratelimit.Options, end func() error) {
	local := ratelimit.NewLocal(s.limits)
	decided := func(d ratelimit.Decision) {
		metrics.LimitDecided(d.Policy, string(d.Stage), limitOutcome(d), string(d.Source))
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
	return guard, ratelimit.Options{Now: s.limitsNow, Fallback: local, Bypassed: metrics.LimitBypassed, Decided: decided}, guard.Close
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
