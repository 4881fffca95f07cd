package integration

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// leasedOf1000 gives nothing back within a test.
const leasedOf1000 = `version: 1
policies:
  - name: shared
    on_store_failure: fail_closed
    mode: leased
    max_overshoot: 60
    limits:
      - {name: all, key: [app], algorithm: token_bucket, rate: 1/h, burst: 1000}
`

const leasedApp = `{"policy":"shared","descriptors":{"app":"x"}`

// A lessor is a service that leases.
type lessor struct {
	*service
	spent, leased int64 // units that it let pass, decisions by leases
}

// check asks for a unit, and reports whether it passed.
func (l *lessor) check() bool {
	l.t.Helper()
	a, err := l.try("POST", "/v1/ratelimit/check", l.key, leasedApp+`}`)
	if err != nil || a.status != 200 && a.status != 429 {
		l.t.Fatalf("got %d %s, %v", a.status, a.raw, err)
	}
	if a.text("source") == "token_lease" {
		l.leased++
		if a.number("max_overshoot") != 60 {
			l.t.Errorf("the bound is missing: %s", a.raw)
		}
	}
	if a.status == 200 {
		l.spent++
	}
	return a.status == 200
}

// used is how many units Redis has charged.
func (l *lessor) used() int64 {
	l.t.Helper()
	a := l.call(200, "POST", "/v1/ratelimit/peek", leasedApp+`}`)
	limit := a.body["limits"].([]any)[0].(map[string]any)
	return 1000 - answer{body: limit}.number("remaining")
}

// metric is the value of a metric of the policy.
func (l *lessor) metric(name string) int64 {
	l.t.Helper()
	resp, err := http.Get(l.ops + "/metrics")
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\d+)$`).FindSubmatch(page)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(found[1]), 10, 64)
	return n
}

// Two services share a limit of 1,000 by leases, and another process leases by the route.
// What a service holds when it ends goes back; what one holds that is killed is lost, and
// no more: in the end 1,000 have been spent or lost.
func TestServicesLease(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	env = append(env, "COORD_REDIS_URL="+engine.Redis(t).URL(), "COORD_REDIS_PREFIX="+engine.FreshPrefix(), "COORD_REDIS_BUDGET_MS=1000", "COORD_POLICY_PATH="+writeFile(t, leasedOf1000))
	first, second := &lessor{service: start(t, env...)}, &lessor{service: start(t, env...)}
	first.key, second.key = key, key
	for first.leased < 20 || second.leased < 20 {
		if !first.check() || !second.check() {
			t.Fatalf("refused after %d and %d, %d and %d of them by leases", first.spent, second.spent, first.leased, second.leased)
		}
	}
	if bound, taken := first.metric(`coordsvc_ratelimit_lease_max_overshoot_units{policy="shared"}`), first.metric(`coordsvc_ratelimit_lease_units_total{policy="shared",result="taken"}`); bound != 60 || taken < first.leased {
		t.Errorf("the metrics say that the bound is %d and %d were taken", bound, taken)
	}
	granted := first.call(200, "POST", "/v1/ratelimit/token-leases", leasedApp+`,"want":5,"holder":"h"}`).number("granted")
	if granted > 0 {
		second.call(204, "POST", "/v1/ratelimit/token-leases/return", fmt.Sprintf(`%s,"unspent":%d,"holder":"h"}`, leasedApp, granted))
	}

	for range 20 {
		first.check()
	}
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-first.ended
	time.Sleep(500 * time.Millisecond) // by then the other has returned what it does not use, too
	if held := second.metric(`coordsvc_ratelimit_lease_held_units{policy="shared"}`); second.used() != first.spent+second.spent+held {
		t.Errorf("%d are used; %d and %d were spent, and the other holds %d", second.used(), first.spent, second.spent, held)
	}

	for range 20 {
		second.check()
	}
	second.kill()
	second.restart()
	lost := second.used() - first.spent - second.spent
	if lost < 0 || lost > 60 {
		t.Errorf("%d were lost", lost)
	}
	for begun := time.Now(); first.spent+second.spent+lost < 1000 && time.Since(begun) < 30*time.Second; {
		second.check()
	}
	for range 100 {
		second.check()
	}
	if spent := first.spent + second.spent; spent+lost != 1000 {
		t.Errorf("%d were spent and %d lost", spent, lost)
	}
}
