package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// bucketOf100 gives nothing back within a test.
const bucketOf100 = `version: 1
policies:
  - name: shared
    on_store_failure: fail_closed
    limits:
      - {name: all, key: [app], algorithm: token_bucket, rate: 1/h, burst: 100}
`

// Two processes draw on one bucket of 100 in Redis, 250 checks each at once:
// exactly 100 pass, and every answer is that of Redis.
func TestTwoServicesShareOneBucket(t *testing.T) {
	redis, db := engine.Redis(t), engine.DynamoDB(t)
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(bucketOf100), 0o600); err != nil {
		t.Fatal(err)
	}
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	env = append(env, "COORD_REDIS_URL="+redis.URL(), "COORD_REDIS_PREFIX="+engine.FreshPrefix(), "COORD_REDIS_BUDGET_MS=1000", "COORD_POLICY_PATH="+path)
	services := []*service{start(t, env...), start(t, env...)}
	for round := range atDepth(1, 20) {
		shareOneBucket(t, services, key, fmt.Sprintf(`{"policy":"shared","descriptors":{"app":"x%d"}}`, round))
	}
}

func shareOneBucket(t *testing.T, services []*service, key, body string) {
	t.Helper()
	var allowed, refused atomic.Int64
	var callers sync.WaitGroup
	begin := make(chan struct{})
	for _, s := range services {
		for range 250 {
			callers.Go(func() {
				<-begin
				a, err := s.try("POST", "/v1/ratelimit/check", key, body)
				switch {
				case err != nil || a.text("source") != "redis" && (a.status != 429 || a.text("source") != "deny_cache"):
					t.Errorf("got %d %s, %v", a.status, a.raw, err)
				case a.status == 200:
					allowed.Add(1)
				case a.status == 429:
					refused.Add(1)
				}
			})
		}
	}
	close(begin)
	callers.Wait()
	t.Logf("%d allowed, %d refused", allowed.Load(), refused.Load())
	if allowed.Load() != 100 || refused.Load() != 400 {
		t.Errorf("%d passed and %d did not, want exactly 100 and 400", allowed.Load(), refused.Load())
	}
	for i, s := range services {
		s.key = key
		a := s.call(200, "POST", "/v1/ratelimit/peek", body)
		if a.body["allowed"] != false || a.text("source") != "redis" || a.header.Get("X-RateLimit-Degraded") != "" {
			t.Errorf("service %d says %s", i, a.raw)
		}
	}
}
