package integration

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// amplified has a limit that all users share in a slot of its own.
const amplified = `version: 1
policies:
  - name: amplified
    on_store_failure: fail_closed
    limits:
      - {name: route, key: [route], algorithm: token_bucket, rate: 20/s, burst: 50000}
      - {name: user, key: [user], algorithm: token_bucket, rate: 1/h, burst: 1, overrides: [{match: {user: many}, burst: 40000}]}
`

// On a Cluster of six, each of which stops for 20 ms again and again, one user after the
// other asks 16 times at once for a single unit. Many of the requests find it there, and
// all but one give back what they took of the route: that keeps what allowed requests
// did not use.
func TestR47LateClusterKeepsASharedLimit(t *testing.T) {
	t.Parallel()
	cluster := engine.StartCluster(t)
	url := "redis://" + cluster.Addrs[0] + "?addr=" + strings.Join(cluster.Addrs[1:], "&addr=")
	node := limitNodes(t, 1, url, amplified, "COORD_REDIS_BUDGET_MS=1000")[0]
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, addr := range cluster.Addrs {
		late := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = late.Close() })
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				if err := late.Do(t.Context(), "CLIENT", "PAUSE", 20, "ALL").Err(); err != nil {
					t.Errorf("%s: %v", addr, err)
					return
				}
			}
		})
	}
	body := func(user string) string {
		return fmt.Sprintf(`{"policy":"amplified","descriptors":{"route":"/x","user":%q}}`, user)
	}
	if a, err := limitCall(node, "check", strings.Replace(body("many"), "{", `{"cost":40000,`, 1)); err != nil || !a.Allowed {
		t.Fatalf("got %d %s, %v", a.status, a.raw, err) // so that there is always something to come back
	}
	before := byRedis(node, body("nobody"))
	var allowed, degraded atomic.Int64
	const callers = 16
	rounds := atDepth(30, 400)
	for round := range rounds {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				switch a, err := limitCall(node, "check", body(fmt.Sprint("user ", round))); {
				case err != nil:
					t.Errorf("no answer: %v %s", err, a.raw)
				case a.Degraded:
					degraded.Add(1)
				case a.Allowed:
					allowed.Add(1)
				}
			})
		}
		all.Wait()
	}
	close(stop)
	all.Wait()
	after := byRedis(node, body("nobody"))
	leftovers, err := strconv.ParseInt(node.metric(leftoversMetric), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	gained := after.Limits[0].Remaining - before.Limits[0].Remaining
	took := after.begun.Sub(before.ended)
	least := int64(20*took.Seconds()) - 1 - allowed.Load() - degraded.Load() - leftovers
	t.Logf("%d of %d passed and %d got no decision, in %v; the route had %d more at the end, %d leftovers", allowed.Load(), rounds*callers, degraded.Load(), took.Round(time.Millisecond), gained, leftovers)
	if allowed.Load() > int64(rounds) || gained < least {
		t.Errorf("%d users had %d requests passed, and the route gained %d, want at least %d", rounds, allowed.Load(), gained, least)
	}
}
