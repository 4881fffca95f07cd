package telemetry_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// decider is the API over limits in Redis, with its metrics or without, and a request for it.
func decider(t testing.TB, server *engine.RedisNode, prefix string, measured bool) func() {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	keys := auth.New(auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), auth.Options{})
	secret, _, err := keys.Create(t.Context(), "default", nil, auth.NewKey{Name: "n", Scopes: auth.AllScopes()})
	if err != nil {
		t.Fatal(err)
	}
	deps, options := httpapi.Deps{Auth: keys}, ratelimit.Options{}
	if measured {
		m := telemetry.New()
		client.AddHook(m.RedisHook(prefix))
		deps.Observe, deps.Meter = m.Observe, m
		options.Decided = func(d ratelimit.Decision) { m.LimitDecided(d.Policy, string(d.Stage), "allowed", string(d.Source)) }
	}
	limits, err := ratelimit.New(redislimit.New(client, redislimit.Options{Prefix: prefix}), []ratelimit.Policy{ratelimit.DefaultPolicy()}, options)
	if err != nil {
		t.Fatal(err)
	}
	deps.Limits = limits
	api := httpapi.New(deps)
	return func() {
		r := httptest.NewRequest(http.MethodPost, "/v1/ratelimit/check", strings.NewReader(`{"policy":"default","descriptors":{"tenant":"t","user":"u"}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+secret.Reveal())
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

// cpu is what this process has used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// What the metrics cost of a decision's CPU: blocks with and without them take turns,
// and each pair gives a ratio. -benchtime 60x makes 60 pairs.
func BenchmarkMetricsCost(b *testing.B) {
	const decisions = 2000 // of a block
	server, prefix := engine.Redis(b), engine.FreshPrefix()
	with, without := decider(b, server, prefix+"a:", true), decider(b, server, prefix+"b:", false)
	block := func(decide func()) float64 {
		before := cpu(b)
		for range decisions {
			decide()
		}
		return float64(cpu(b) - before)
	}
	block(with)
	block(without)
	var n, sum, squares float64
	for b.Loop() {
		var on, off float64
		if int(n)%2 == 0 { // neither is always the first
			on, off = block(with), block(without)
		} else {
			off, on = block(without), block(with)
		}
		n, sum, squares = n+1, sum+on/off, squares+on/off*on/off
	}
	mean := sum / n
	interval := 1.96 * math.Sqrt(max(squares/n-mean*mean, 0)/max(n-1, 1))
	b.ReportMetric(100*(mean-1), "%-more-CPU")
	b.ReportMetric(100*interval, "%-either-way") // of 95 in 100 such runs
}
