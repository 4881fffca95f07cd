package integration

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

const mails = "/v1/quotas/mails/ada"

func TestAQuotaOnTheEmbeddedStoreSurvivesKill9(t *testing.T) {
	s := start(t)
	s.call(200, "PUT", mails, `{"limit":10,"window":"month","zone":"Europe/Berlin"}`)
	consumed := s.call(200, "POST", mails+"/consume", `{"amount":3,"request_id":"q1"}`)
	kept := s.call(200, "POST", mails+"/reserve", `{"amount":4,"request_id":"q2","ttl_ms":600000}`)
	s.call(200, "POST", mails+"/reserve", `{"amount":2,"request_id":"q3","ttl_ms":100}`)
	s.kill()
	s.restart()
	awaitAvailable(t, s, 3)
	if again := s.call(200, "POST", mails+"/consume", `{"amount":3,"request_id":"q1"}`); again.raw != consumed.raw {
		t.Errorf("a repeated request got %s, first it got %s", again.raw, consumed.raw)
	}
	s.call(200, "POST", mails+"/reservations/"+kept.text("reservation_id")+"/commit", `{"amount":1}`)
	if q := s.call(200, "GET", mails, ""); q.number("available") != 6 || q.number("reserved") != 0 || q.number("used") != 4 {
		t.Errorf("in the end there is %s", q.raw)
	}
}

// No unit is used twice through two nodes, and a reservation that one node granted
// is committed on the other, or returned by whichever sweeps first.
func TestTwoNodesShareAQuota(t *testing.T) {
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	nodes := []*service{start(t, env...), start(t, env...)}
	for _, n := range nodes {
		n.key = key
	}
	nodes[0].call(200, "PUT", mails, `{"limit":20,"window":"none"}`)
	var granted, refused atomic.Int64
	var wg sync.WaitGroup
	for c := range 32 {
		wg.Go(func() {
			a, err := nodes[c%2].try("POST", mails+"/consume", key, fmt.Sprintf(`{"amount":1,"request_id":"c%d"}`, c))
			switch {
			case err == nil && a.status == 200:
				granted.Add(1)
			case err == nil && a.status == 429 && a.text("code") == "quota_exceeded":
				refused.Add(1)
			default:
				t.Errorf("%v %d %s", err, a.status, a.raw)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 20 || refused.Load() != 12 {
		t.Errorf("%d of 20 units were used, %d requests refused", granted.Load(), refused.Load())
	}
	nodes[1].call(200, "PUT", mails, `{"limit":30,"window":"none"}`)
	r := nodes[0].call(200, "POST", mails+"/reserve", `{"amount":5,"request_id":"r1","ttl_ms":60000}`)
	nodes[0].call(200, "POST", mails+"/reserve", `{"amount":5,"request_id":"r2","ttl_ms":100}`)
	nodes[1].call(200, "POST", mails+"/reservations/"+r.text("reservation_id")+"/commit", `{"amount":2}`)
	awaitAvailable(t, nodes[1], 8)
}

// awaitAvailable asks until the sweeper has returned what expired.
func awaitAvailable(t *testing.T, s *service, want int64) {
	t.Helper()
	var q answer
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if q = s.call(200, "GET", mails, ""); q.number("available") == want {
			return
		}
	}
	t.Errorf("%d units should be available: %s", want, q.raw)
}
