package redislimit_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// soon is how long a client waits for a node that may be dead.
const soon = 500 * time.Millisecond

func dialCluster(t *testing.T, addrs []string, timeout time.Duration) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRetries: -1, DialerRetries: 1, ClusterStateReloadInterval: time.Second,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: 5 * time.Second,
		Dialer: redislimit.Dialer(&redis.Options{DialTimeout: timeout}),
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// On a real Cluster the whole contract holds where the keys share a slot; where a
// limit lies in another one it is never passed, and what it refuses is given back.
func TestR47Cluster(t *testing.T) {
	cluster := engine.StartCluster(t)
	t.Run("limits apart", func(t *testing.T) { limitsApart(t, dialCluster(t, cluster.Addrs, soon)) })
	t.Run("refused at once", func(t *testing.T) { refusedAtOnce(t, dialCluster(t, cluster.Addrs, soon), 50) })
	t.Run("goes back", func(t *testing.T) { raceOverSlots(t, dialCluster(t, cluster.Addrs, soon), 5) })
	t.Run("a slot moves", func(t *testing.T) { slotMoves(t, dialCluster(t, cluster.Addrs, soon)) })
	if depth, _ := os.LookupEnv("COORD_TEST_DEPTH"); depth == "proof" { // it takes the others seconds to take over
		t.Run("a master dies", func(t *testing.T) { masterDies(t, cluster, dialCluster(t, cluster.Addrs, soon)) })
	}
}

func limitsApart(t *testing.T, client *redis.ClusterClient) {
	var leftovers atomic.Int64
	store := redislimit.New(client, redislimit.Options{Leftover: func() { leftovers.Add(1) }})
	limit := func(name string, burst int64, key ...string) ratelimit.Limit {
		return ratelimit.Limit{Name: name, Key: key, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 24 * time.Hour}, Burst: burst}}
	}
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Slot: []string{"tenant"}, Limits: []ratelimit.Limit{
		limit("user", 20, "tenant", "user"), limit("tenant", 60, "tenant"), limit("all", 50, "region"),
	}}
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(tenant, user int) ratelimit.Request {
		return ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": strconv.Itoa(tenant), "user": strconv.Itoa(user), "region": "eu"}}
	}
	var passed [2][3]atomic.Int64
	var callers sync.WaitGroup
	for i := range 60 {
		callers.Go(func() {
			for range 4 {
				d, err := limits.Check(t.Context(), "t", ask(i%2, i%3))
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					passed[i%2][i%3].Add(1)
				}
			}
		})
	}
	callers.Wait()
	all := int64(0)
	for tenant := range passed {
		ofTenant := int64(0)
		for user := range passed[tenant] {
			n := passed[tenant][user].Load()
			ofTenant += n
			d, err := limits.Peek(t.Context(), "t", ask(tenant, user))
			if err != nil || n > 20 || n+d.Limits[0].Remaining != 20 {
				t.Errorf("tenant %d, user %d: %d passed, %+v, %v", tenant, user, n, d.Limits, err)
			}
			if user == 2 && ofTenant+d.Limits[1].Remaining != 60 {
				t.Errorf("tenant %d: %d passed, %+v", tenant, ofTenant, d.Limits[1])
			}
		}
		all += ofTenant
	}
	t.Logf("%d passed, %d leftovers", all, leftovers.Load())
	// A charge that waits to be given back may refuse somebody else, so it can be fewer.
	if all > 50 || all < 40 || leftovers.Load() != 0 {
		t.Errorf("%d passed of 50, %d leftovers", all, leftovers.Load())
	}
}

// The client follows to where a slot has gone, and to where it is just going.
func slotMoves(t *testing.T, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("moves", 1, 24*time.Hour, 10)}, Cost: 1}
	key := charge.Buckets[0].Type().Tagged("", "tag", "moves")
	slot := client.ClusterKeySlot(t.Context(), key).Val()
	from, err := client.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	to := from
	if err := client.ForEachMaster(t.Context(), func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if master != from {
			to = master
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	set := func(node *redis.Client, words ...any) {
		t.Helper()
		if err := node.Do(t.Context(), append([]any{"CLUSTER", "SETSLOT", slot}, words...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	id := func(node *redis.Client) string { return node.Do(t.Context(), "CLUSTER", "MYID").Val().(string) }
	set(to, "IMPORTING", id(from))
	set(from, "MIGRATING", id(to))
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Errorf("ASK: got %+v", out)
	}
	set(to, "NODE", id(to))
	set(from, "NODE", id(to))
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 8 {
		t.Errorf("MOVED: got %+v", out)
	}
}

// A key whose master is dead is a fault until another serves it.
func masterDies(t *testing.T, cluster *engine.RedisCluster, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 10)}, Cost: 1}
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Fatalf("got %+v", out)
	}
	master, err := client.MasterForKey(t.Context(), charge.Buckets[0].Type().Tagged("", "tag", "k"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.KillMaster(t, master.Options().Addr)
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		out, err := store.Take(t.Context(), charge)
		if err == nil {
			t.Logf("served again %v after another took over: %d left", time.Since(begun), out.Verdicts[0].Remaining)
			return
		}
		if _, ok := errors.AsType[*ratelimit.FaultError](err); !ok {
			t.Errorf("got %v", err)
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal(err)
		}
	}
}
