package redislimit_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A Take behind the guard, by many callers at once, who share pipelines.
func BenchmarkTake(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: engine.Redis(b).Addr, MaxRetries: -1})
	b.Cleanup(func() { _ = client.Close() })
	for _, buckets := range []int{1, 4} {
		b.Run(fmt.Sprintf("buckets %d", buckets), func(b *testing.B) {
			store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix(), Secret: make([]byte, 16)})
			guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: time.Minute})
			b.Cleanup(func() { _ = guard.Close() })
			take := ratelimit.Take{Cost: 1}
			for i := range buckets {
				take.Buckets = append(take.Buckets, bucketOf(fmt.Sprint(i), 1_000_000, time.Second, 1_000_000))
			}
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := guard.Take(b.Context(), take); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		b.Run(fmt.Sprintf("buckets %d of each caller", buckets), func(b *testing.B) {
			store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix(), Secret: make([]byte, 16)})
			guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: time.Minute})
			b.Cleanup(func() { _ = guard.Close() })
			var callers atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				take := ratelimit.Take{Cost: 1}
				caller := callers.Add(1)
				for i := range buckets {
					take.Buckets = append(take.Buckets, bucketOf(fmt.Sprint(caller, i), 1_000_000, time.Second, 1_000_000))
				}
				for pb.Next() {
					if _, err := guard.Take(b.Context(), take); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
