package redislimit_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimittest"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// dial returns a client that repeats nothing.
func dial(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, PoolSize: 64,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRedis(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	ratelimittest.Run(t, func(*testing.T) ratelimit.Store {
		return redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix(), TakesNow: true})
	})
}
