package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// nested has all its limits in one slot. Nothing comes back within a test.
const nested = `version: 1
policies:
  - name: nested
    on_store_failure: fail_closed
    slot: [route]
    limits:
      - {name: user, key: [route, tenant, user], algorithm: token_bucket, rate: 1/h, burst: 12}
      - {name: tenant, key: [route, tenant], algorithm: token_bucket, rate: 1/h, burst: 40}
      - {name: route, key: [route], algorithm: token_bucket, rate: 1/h, burst: 100}
`

// Three processes with 64 callers each go through route ⊃ tenant ⊃ user: no level lets
// more pass than its limit, and at every level exactly what passed is charged, so that
// what was refused charged nothing.
func TestR22ThreeProcessesThroughAHierarchy(t *testing.T) {
	t.Parallel()
	nodes := limitNodes(t, 3, engine.Redis(t).URL(), nested, "COORD_REDIS_BUDGET_MS=1000")
	for round := range atDepth(1, 30) {
		var passed [3][4]atomic.Int64 // by tenant and user
		body := func(tenant, user int) string {
			return fmt.Sprintf(`{"policy":"nested","descriptors":{"route":"r%d","tenant":"t%d","user":"u%d"}}`, round, tenant, user)
		}
		var callers sync.WaitGroup
		for i := range 3 * 64 {
			callers.Go(func() {
				tenant, user := i%3, i/3%4
				for range 6 {
					a, err := limitCall(nodes[i%len(nodes)], "check", body(tenant, user))
					if err != nil || !a.byStore() || a.Allowed != (a.status == 200) {
						t.Errorf("got %d %s, %v", a.status, a.raw, err)
					}
					if a.Allowed {
						passed[tenant][user].Add(1)
					}
				}
			})
		}
		callers.Wait()
		byRoute, charged := int64(0), [3]int64{} // by level
		for tenant := range passed {
			byTenant := int64(0)
			var left limitAnswer
			for user := range passed[tenant] {
				n := passed[tenant][user].Load()
				left = byRedis(nodes[round%3], body(tenant, user))
				charged[0] += 12 - left.Limits[0].Remaining
				if n > 12 || 12-left.Limits[0].Remaining != n {
					t.Errorf("tenant %d, user %d: %d passed, %+v", tenant, user, n, left.Limits)
				}
				byTenant += n
			}
			charged[1] += 40 - left.Limits[1].Remaining
			charged[2] = 100 - left.Limits[2].Remaining
			if byTenant > 40 || 40-left.Limits[1].Remaining != byTenant {
				t.Errorf("tenant %d: %d passed, %+v", tenant, byTenant, left.Limits)
			}
			byRoute += byTenant
		}
		t.Logf("round %d: %d of %d passed; charged by user, tenant and route: %d", round, byRoute, 3*64*6, charged)
		if byRoute != 100 || charged != [3]int64{100, 100, 100} {
			t.Errorf("round %d: %d passed and %d are charged, want exactly 100 at every level", round, byRoute, charged)
		}
	}
}

// apart has a limit that lies in another slot of a Cluster. Its windows outlast every
// test, and give back exactly what they are given.
const apart = `version: 1
policies:
  - name: apart
    on_store_failure: fail_closed
    slot: [tenant]
    limits:
      - {name: user, key: [tenant, user], algorithm: fixed_window, rate: 20/366d}
      - {name: tenant, key: [tenant], algorithm: fixed_window, rate: 60/366d}
      - {name: region, key: [region], algorithm: fixed_window, rate: 50/366d}
  - name: wide
    on_store_failure: fail_closed
    slot: [tenant]
    limits:
      - {name: tenant, key: [tenant], algorithm: fixed_window, rate: 1000000/366d}
      - {name: region, key: [region], algorithm: fixed_window, rate: 1000000/366d}
`

// On a Cluster of six, where a limit lies in another slot, no limit is passed and what
// is refused takes nothing. Only a process that dies between two slots leaves charges,
// no more than it had requests.
func TestR47LimitsApartOnACluster(t *testing.T) {
	t.Parallel()
	cluster := engine.StartCluster(t)
	url := "redis://" + cluster.Addrs[0] + "?addr=" + strings.Join(cluster.Addrs[1:], "&addr=")
	nodes := limitNodes(t, 3, url, apart, "COORD_REDIS_BUDGET_MS=1000")
	for round := range atDepth(1, 20) {
		refundsComplete(t, nodes, round)
	}
	leftoversOfKills(t, nodes)
}

func refundsComplete(t *testing.T, nodes []*service, round int) {
	t.Helper()
	var passed [2][3]atomic.Int64 // by tenant and user
	body := func(tenant, user int) string {
		return fmt.Sprintf(`{"policy":"apart","descriptors":{"tenant":"t%d-%d","user":"u%d","region":"r%d"}}`, round, tenant, user, round)
	}
	var callers sync.WaitGroup
	for i := range 3 * 64 {
		callers.Go(func() {
			tenant, user := i%2, i%3
			for range 3 {
				a, err := limitCall(nodes[i/6%len(nodes)], "check", body(tenant, user))
				if err != nil || !a.byStore() || a.Allowed != (a.status == 200) {
					t.Errorf("got %d %s, %v", a.status, a.raw, err)
				}
				if a.Allowed {
					passed[tenant][user].Add(1)
				}
			}
		})
	}
	callers.Wait()
	all, charged := int64(0), [3]int64{} // by level
	for tenant := range passed {
		var left limitAnswer
		byTenant := int64(0)
		for user := range passed[tenant] {
			n := passed[tenant][user].Load()
			left = byRedis(nodes[round%3], body(tenant, user))
			charged[0] += 20 - left.Limits[0].Remaining
			if 20-left.Limits[0].Remaining != n {
				t.Errorf("tenant %d, user %d: %d passed, %+v", tenant, user, n, left.Limits)
			}
			byTenant += n
		}
		charged[1] += 60 - left.Limits[1].Remaining
		charged[2] = 50 - left.Limits[2].Remaining
		if 60-left.Limits[1].Remaining != byTenant {
			t.Errorf("tenant %d: %d passed, %+v", tenant, byTenant, left.Limits)
		}
		all += byTenant
	}
	t.Logf("round %d: %d passed; charged by user, tenant and region, which lies apart: %d", round, all, charged)
	// Fewer than 50 may pass: a charge that is on its way back may refuse somebody.
	if all == 0 || all > 50 || charged != [3]int64{all, all, all} {
		t.Errorf("round %d: %d passed, %d are charged", round, all, charged)
	}
}

// leftoversMetric counts the charges that a node could not give back.
const leftoversMetric = "coordsvc_ratelimit_leftover_charges_total"

// leftoversOfKills kills a node while everybody passes, and so charges one slot after
// the other, until a kill has met a request in between.
func leftoversOfKills(t *testing.T, nodes []*service) {
	t.Helper()
	kills, left, most := 0, int64(0), atDepth(1, 10)
	for begun := time.Now(); kills < most || left == 0; kills++ {
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("no kill of %d met a request between its two slots", kills)
		}
		body := fmt.Sprintf(`{"policy":"wide","descriptors":{"tenant":"t%d","region":"r%d"}}`, kills, kills)
		passed, cut := underKill(t, nodes, body)
		a := byRedis(nodes[0], body)
		near, far := 1_000_000-a.Limits[0].Remaining, 1_000_000-a.Limits[1].Remaining
		left += near - far
		t.Logf("kill %d: %d passed, %d requests were cut off; charged: %d by tenant, %d by region; %d leftovers in all", kills+1, passed, cut, near, far, left)
		if passed > far || far > near || near > passed+cut {
			t.Errorf("kill %d: %d passed, %d were cut off, %d and %d are charged", kills+1, passed, cut, near, far)
		}
		nodes[len(nodes)-1].restart()
	}
	for i, s := range nodes[:len(nodes)-1] {
		if n := s.metric(leftoversMetric); n != "0" {
			t.Errorf("node %d, which was not killed, has %q leftovers", i, n)
		}
	}
}

// underKill sends checks to all nodes, kills the last one, and returns how many passed
// and how many got no answer for that.
func underKill(t *testing.T, nodes []*service, body string) (passed, unanswered int64) {
	t.Helper()
	var allowed, cut atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i, s := range nodes {
		for range 16 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					a, err := limitCall(s, "check", body)
					switch {
					case err != nil && i == len(nodes)-1:
						cut.Add(1)
						return
					case err != nil || !a.byStore() || a.Allowed != (a.status == 200):
						t.Errorf("node %d: got %d %s, %v", i, a.status, a.raw, err)
						return
					case a.Allowed:
						allowed.Add(1)
					}
				}
			})
		}
	}
	time.Sleep(100*time.Millisecond + rand.N(50*time.Millisecond))
	nodes[len(nodes)-1].kill()
	time.Sleep(50 * time.Millisecond)
	close(stop)
	callers.Wait()
	return allowed.Load(), cut.Load()
}
