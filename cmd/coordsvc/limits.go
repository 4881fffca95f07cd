package main

import (
	"log/slog"

	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// limitStore is where limits are counted: in Redis where there is one, and while
// that fails as each policy's posture says; else in this process.
func limitStore(s stores, c config, metrics *telemetry.Metrics, log *slog.Logger) (store ratelimit.Store, opts ratelimit.Options, end func() error) {
	local := ratelimit.NewLocal(s.limits)
	if s.redis == nil {
		return local, ratelimit.Options{}, func() error { return nil }
	}
	shared := redislimit.New(s.redis, redislimit.Options{Prefix: c.redisPrefix, Leftover: metrics.LimitLeftover})
	guard := ratelimit.NewGuard(shared, ratelimit.GuardOptions{
		Budget: c.redisBudget,
		Changed: func(err error) {
			if err != nil {
				log.Warn("redis does not decide on rate limits: the policies' postures do", "error", err)
				return
			}
			log.Info("redis decides on rate limits again")
		},
	})
	return guard, ratelimit.Options{Fallback: local, Bypassed: metrics.LimitBypassed}, guard.Close
}
