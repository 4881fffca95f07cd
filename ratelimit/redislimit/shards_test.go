package redislimit_test

import (
	"context"
	"regexp"
	"strconv"
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

var scriptCalls = regexp.MustCompile(`(?m)^cmdstat_evalsha:calls=(\d+)`)

// ran is how many scripts a server has run.
func ran(t *testing.T, server *redis.Client) (n int64) {
	t.Helper()
	info, err := server.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Error(err)
	}
	if found := scriptCalls.FindStringSubmatch(info); found != nil {
		n, _ = strconv.ParseInt(found[1], 10, 64)
	}
	return n
}

// callsByMaster is how many scripts each master has run.
func callsByMaster(t *testing.T, client *redis.ClusterClient) map[string]int64 {
	t.Helper()
	var mu sync.Mutex
	calls := map[string]int64{}
	err := client.ForEachMaster(t.Context(), func(_ context.Context, master *redis.Client) error {
		n := ran(t, master) //nolint:contextcheck // it has the test's
		mu.Lock()
		defer mu.Unlock()
		calls[master.Options().Addr] = n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// One hot key with 16 shards: the three masters of six nodes do the same work within
// 20 %, and together let no more pass than the limit.
func TestL52ShardsOnACluster(t *testing.T) {
	client := dialCluster(t, engine.StartCluster(t).Addrs, 10*time.Second)
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix(), Secret: []byte("0123456789abcdef")})
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{{
		Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.TokenBucket, Shards: 16,
		Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 1000},
	}}}
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hot := range []string{"big-shop", "other-shop", "third-shop"} {
		req := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": hot}}
		before := callsByMaster(t, client)
		var passed atomic.Int64
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for range 100 {
					d, err := limits.Check(t.Context(), "t", req)
					if err != nil {
						t.Error(err)
					} else if d.Allowed {
						passed.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if passed.Load() != 1000 {
			t.Errorf("%d of 1,600 passed, want 1,000", passed.Load())
		}
		after, all := callsByMaster(t, client), int64(0)
		for master := range after {
			after[master] -= before[master]
			all += after[master]
		}
		for master, calls := range after {
			if share := float64(calls) * 3 / float64(all); share < 0.8 || share > 1.2 || len(after) != 3 {
				t.Errorf("%s ran %d of %d scripts on %d masters", master, calls, all, len(after))
			}
		}
		t.Logf("%s: %v", hot, after)
		if err := limits.Reset(t.Context(), "t", "p", req.Descriptors); err != nil {
			t.Fatal(err)
		}
		if d, err := limits.Peek(t.Context(), "t", req); err != nil || d.Limits[0].Remaining != 1000 {
			t.Errorf("after a reset: %+v, %v", d, err)
		}
	}
}

// A shard's key belongs to its type as any other, hidden or not, and so does the record
// of a request beside it.
func TestKeysOfShards(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	for _, secret := range [][]byte{nil, []byte("0123456789abcdef")} {
		prefix := engine.FreshPrefix()
		store := redislimit.New(client, redislimit.Options{Prefix: prefix, Secret: secret})
		limits, err := ratelimit.New(store, []ratelimit.Policy{{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{{
			Name: "l", Key: []string{"a"}, Algorithm: ratelimit.TokenBucket, Shards: 4, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 4},
		}}}}, ratelimit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			req := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"a": "x"}, RequestID: "id" + strconv.Itoa(i)}
			if _, err := limits.Check(t.Context(), "t", req); err != nil {
				t.Fatal(err)
			}
		}
		kinds := map[*keytype.Type]int{}
		keys := client.Keys(t.Context(), prefix+"*").Val()
		for _, key := range keys {
			kind, parts, ok := keytype.SplitTagged(prefix, key)
			if !ok || secret == nil && len(parts) == 0 {
				t.Errorf("%q is of no type: %v", key, parts)
			}
			kinds[kind]++
		}
		if kinds[keytype.RateBucket] != 4 || kinds[keytype.ChargeRequest] != 24 {
			t.Errorf("got %v of %q", kinds, keys)
		}
	}
}
