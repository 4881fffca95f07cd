package redislimit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// Checks that go together while their callers leave, and while connections are cut: what
// was charged is what passed and at most what nobody learned of, and nothing twice.
func TestR45ChecksThatGoTogetherAreChargedOnce(t *testing.T) {
	t.Parallel()
	server := engine.StartRedis(t)
	chargedOnce(t, dial(t, server.Addr), dial(t, server.Addr))
}

// chargedOnce has the other client cut connections of the first.
func chargedOnce(t *testing.T, client redis.UniversalClient, other *redis.Client) {
	store := redislimit.New(client, redislimit.Options{})
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: 50 * time.Millisecond})
	t.Cleanup(func() { _ = guard.Close() })
	const units = 1_000_000
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("once k", 1, time.Hour, units), bucketOf("once l", 1, time.Hour, units)}, Cost: 1}
	var passed, unknown, left atomic.Int64
	var callers sync.WaitGroup
	begun := time.Now()
	ended := func() bool {
		took := time.Since(begun)
		return took > 2*time.Second && left.Load() > 20 && unknown.Load() > 20 || took > 30*time.Second
	}
	for range 32 {
		callers.Go(func() {
			for !ended() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+rand.IntN(3000))*time.Microsecond)
				_, err := guard.Take(ctx, charge)
				cancel()
				switch {
				case err == nil:
					passed.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					left.Add(1)
				case errors.Is(err, keytype.ErrOutcomeUnknown):
					unknown.Add(1)
				default:
					time.Sleep(time.Millisecond) // the breaker
				}
			}
		})
	}
	for !ended() {
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		_ = other.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err()
	}
	callers.Wait()
	time.Sleep(300 * time.Millisecond) // for what is on its way
	out, err := redislimit.New(other, redislimit.Options{}).Take(t.Context(), ratelimit.Take{Buckets: charge.Buckets, Cost: 1, Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	charged := units - out.Verdicts[0].Remaining
	t.Logf("%d passed, %d left, %d lost, %d charged", passed.Load(), left.Load(), unknown.Load(), charged)
	if charged < passed.Load() || charged > passed.Load()+left.Load()+unknown.Load() || out.Verdicts[1].Remaining != out.Verdicts[0].Remaining {
		t.Errorf("charged %d", charged)
	}
	if left.Load() < 20 || unknown.Load() < 20 {
		t.Error("too little happened")
	}
}
