package redislimit_test

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// One count for all nodes. Nobody waits longer than the budget for it; while Redis
// fails the policies' postures decide, and those with posture Local count here.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", MaxRetries: -1, DialTimeout: 100 * time.Millisecond, ReadTimeout: 100 * time.Millisecond})
	guard := ratelimit.NewGuard(redislimit.New(client, redislimit.Options{Prefix: "shop:"}), ratelimit.GuardOptions{Budget: 5 * time.Millisecond})
	defer guard.Close()
	limits, err := ratelimit.New(guard, []ratelimit.Policy{ratelimit.DefaultPolicy()}, ratelimit.Options{
		Fallback: ratelimit.NewLocal(embedded.Bounded(100_000)),
		Bypassed: func(reason string) { fmt.Println("decided by posture:", reason) },
	})
	_, _ = limits, err
}
