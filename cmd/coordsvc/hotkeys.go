package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// From where on a bucket is worth a line in the log: half of a policy's checks, and 500 a
// second of them on this node. One in a minute is enough.
const (
	hotShare    = 0.5
	hotChecks   = 5000 // in 10 s
	hotInterval = 10 * time.Second
	hotSilence  = time.Minute
)

// watchHotKeys has metrics tell each policy's share of its hottest bucket, and the log
// what that is called in Redis: whose it is only the callers' own words would say, and
// those stand in no log.
func watchHotKeys(ctx context.Context, hot *ratelimit.HotKeys, s stores, c config, secrets fileKeys, metrics *telemetry.Metrics, log *slog.Logger) {
	if hot == nil {
		return
	}
	metrics.WatchHottest(func() map[string]float64 {
		shares := map[string]float64{}
		for _, h := range hot.Hottest(s.limitsNow()) {
			shares[h.Policy] = h.Share
		}
		return shares
	})
	names := redislimit.Options{Prefix: c.redisPrefix, Secret: secrets.limits()}
	told := map[string]time.Time{}
	ticker := time.NewTicker(hotInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, h := range hot.Hottest(s.limitsNow()) {
				if mine := int64(h.Share * float64(h.Checks)); h.Share >= hotShare && mine >= hotChecks && now.Sub(told[h.Policy]) >= hotSilence {
					told[h.Policy] = now
					log.Warn("most checks of a policy meet one key in redis", "policy", h.Policy, "limit", h.Limit, "share", h.Share, "checks_per_s", mine/10, "key", redislimit.NameOf(h.Bucket, names))
				}
			}
		}
	}
}
