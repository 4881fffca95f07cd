package telemetry

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// expectLines looks for lines of the page, and for what must be nowhere on it.
func expectLines(t *testing.T, m *Metrics, lines []string, nowhere ...string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range lines {
		if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, text := range nowhere {
		if strings.Contains(w.Body.String(), text) {
			t.Errorf("the page holds %q", text)
		}
	}
	if t.Failed() {
		t.Log(w.Body.String())
	}
}

func TestDecisionsAreCounted(t *testing.T) {
	m := New()
	m.Problem("/v1/leases/:resource/acquire", "POST", "lease_held")
	m.LimitDecided("p", "enforce", "refused", "redis")
	m.BreakerOpen(true)
	m.Verified("revoked", "cache", true)
	m.Unpropagated()
	m.Unrecorded()
	m.WatchReady(func() bool { return false })
	expectLines(t, m, []string{
		`coordsvc_http_problems_total{code="lease_held",method="POST",route="/v1/leases/:resource/acquire"} 1`,
		`coordsvc_ratelimit_decisions_total{outcome="refused",policy="p",source="redis",stage="enforce"} 1`,
		`coordsvc_ratelimit_breaker_open 1`,
		`coordsvc_session_verdicts_total{degraded="true",outcome="revoked",source="cache"} 1`,
		`coordsvc_session_cache_propagation_failures_total 1`,
		`coordsvc_audit_unrecorded_events_total 1`,
		`coordsvc_ready 0`,
	})
	m.BreakerOpen(false)
	expectLines(t, m, []string{`coordsvc_ratelimit_breaker_open 0`})
}

// Transactions of the file count for the bucket that they touch first; a refusal of
// the domain's is an answer, and what did not run is a fault.
func TestFileIsWatched(t *testing.T) {
	m := New()
	memory := kv.NewMemory(kv.MemoryOptions{})
	store := m.WatchFile(memory, nil)
	refusal := errors.New("refused")
	key := keytype.Lease.Key("tenant-a", "resource-a")
	err := store.Update(t.Context(), func(tx kv.Tx) error {
		if tx.Get(keytype.Lease.Bucket(), key) != nil {
			t.Error("is there already")
		}
		tx.Put(keytype.Lease.Bucket(), key, []byte("1"), time.Time{})
		tx.Put(keytype.Fence.Bucket(), key, []byte("1"), time.Time{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.View(t.Context(), func(tx kv.Tx) error {
		tx.Scan(keytype.Fence.Bucket(), "", "", func(string, []byte) bool { return true })
		return refusal
	}); !errors.Is(err, refusal) {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Update(t.Context(), func(tx kv.Tx) error { tx.Delete("x", "y"); return nil }); err == nil {
		t.Fatal("a closed store took an update")
	}
	expectLines(t, m, []string{
		`coordsvc_store_tries_total{operation="update",outcome="ok",store="file",type="lease"} 1`,
		`coordsvc_store_tries_total{operation="view",outcome="ok",store="file",type="fence"} 1`,
		`coordsvc_store_tries_total{operation="update",outcome="failed",store="file",type="none"} 1`,
		`coordsvc_store_try_duration_seconds_count{store="file",type="lease"} 1`,
	}, "tenant-a", "resource-a")
}

func TestRedisIsWatched(t *testing.T) {
	m, server, prefix := New(), engine.StartRedis(t), "x:"
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: 200 * time.Millisecond, DisableIdentity: true})
	defer client.Close()
	client.AddHook(m.RedisHook(prefix))
	ctx := context.Background()
	bucket := keytype.RateBucket.Tagged(prefix, "tag", keytype.RateBucket.Key("tenant-a", "p", "l", "c", "d"))
	client.Eval(ctx, "return 1", []string{bucket})
	client.EvalSha(ctx, "no such script", []string{bucket})
	client.Do(ctx, "evalsha", "no such script", 1, &bucket)
	client.Get(ctx, keytype.StoreMarker.CacheKey(prefix))
	client.EvalRO(ctx, "return 1", []string{keytype.UserEpoch.CacheKey(prefix, "tag"), keytype.Session.CacheKey(prefix, "tag", "id-a")})
	client.Incr(ctx, "foreign")
	if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, keytype.Session.CacheKey(prefix, "tag", "id-a"))
		p.LPush(ctx, "foreign", "of another kind than the number that it holds")
		return nil
	}); err == nil {
		t.Error("a list was pushed to a number")
	}
	server.Pause(t)
	client.Ping(ctx)
	server.Resume(t)
	expectLines(t, m, []string{
		`coordsvc_store_tries_total{operation="eval",outcome="ok",store="redis",type="rate_bucket"} 1`,
		`coordsvc_store_tries_total{operation="evalsha",outcome="ok",store="redis",type="rate_bucket"} 2`,
		`coordsvc_store_tries_total{operation="get",outcome="ok",store="redis",type="store_marker"} 1`,
		`coordsvc_store_tries_total{operation="eval_ro",outcome="ok",store="redis",type="user_epoch"} 1`,
		`coordsvc_store_tries_total{operation="get",outcome="ok",store="redis",type="session"} 1`,
		`coordsvc_store_tries_total{operation="incr",outcome="ok",store="redis",type="none"} 1`,
		`coordsvc_store_tries_total{operation="lpush",outcome="failed",store="redis",type="none"} 1`,
		`coordsvc_store_tries_total{operation="ping",outcome="timeout",store="redis",type="none"} 1`,
	}, "tenant-a", "id-a", "foreign")
}
