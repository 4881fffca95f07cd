package redislimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A Redis that pauses runs afterwards what it was sent, for callers that have gone: the
// slots go back.
func TestAPauseKeepsNoSlots(t *testing.T) {
	t.Parallel()
	server := engine.StartRedis(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { _ = client.Close() })
	store := redislimit.New(client, redislimit.Options{})
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: 50 * time.Millisecond})
	t.Cleanup(func() { _ = guard.Close() })
	slots := ratelimit.Take{Cost: 1, Buckets: []ratelimit.Bucket{{
		Key: "slots", Tag: "tag", Rule: ratelimit.Rule{Algorithm: ratelimit.Concurrency, Count: 3, Per: time.Hour.Microseconds(), Burst: 3},
	}}}
	free := func() int64 {
		peek := slots
		peek.Peek = true
		out, err := store.Take(t.Context(), peek)
		if err != nil {
			return -1
		}
		return out.Verdicts[0].Remaining
	}
	if n := free(); n != 3 {
		t.Fatalf("%d slots are free at the start", n)
	}
	if err := client.Do(t.Context(), "CLIENT", "PAUSE", 600, "ALL").Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		slots.SlotID = id
		if out, err := guard.Take(t.Context(), slots); err == nil {
			t.Errorf("%s: got %+v while Redis pauses", id, out)
		}
	}
	time.Sleep(time.Second) // until everything that was sent has run
	for begun := time.Now(); free() != 3; time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("%d of 3 slots are free", free())
		}
	}
}
