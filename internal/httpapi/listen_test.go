package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestOps(t *testing.T) {
	reason := errors.New("starting")
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "counted") })
	ops := Ops(func() error { return reason }, metrics)
	for _, c := range []struct {
		method, path string
		ready        error
		status       int
		body         string
	}{
		{"GET", "/healthz", reason, 200, "ok\n"},
		{"GET", "/readyz", reason, 503, "not ready: starting\n"},
		{"GET", "/readyz", nil, 200, "ready\n"},
		{"GET", "/metrics", nil, 200, "counted"},
		{"GET", "/v1/key-types", nil, 404, "404 page not found\n"},
		{"POST", "/readyz", nil, 405, "Method Not Allowed\n"},
	} {
		reason = c.ready
		w := httptest.NewRecorder()
		ops.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%s %s answered %d %q", c.method, c.path, w.Code, w.Body)
		}
	}
}

func TestServerBoundsConnections(t *testing.T) {
	s := NewServer(nil)
	for name, d := range map[string]time.Duration{"ReadHeaderTimeout": s.ReadHeaderTimeout, "ReadTimeout": s.ReadTimeout, "WriteTimeout": s.WriteTimeout, "IdleTimeout": s.IdleTimeout} {
		if d <= 0 || d > 5*time.Minute {
			t.Errorf("%s is %v", name, d)
		}
	}
	if s.WriteTimeout <= s.ReadTimeout {
		t.Error("an answer to a slow request cannot be written")
	}
}

// Every answer is observed once, under the route's pattern.
func TestObserve(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{} // guarded by mu
	s := startService(t, func(d *Deps) {
		d.Observe = func(route, method string, status int, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprint(method, " ", route, " ", status)]++
		}
	})
	s.get("/v1/leases/a%2Fb")
	s.post("/v1/leases/x/acquire", `{"owner":"w","ttl_ms":1000}`)
	s.post("/v1/leases/x/acquire", `{`)
	s.do(request{method: "PATCH", path: "/v1/leases/x"})
	s.get("/v1/sessions/a/b")
	s.get("/v1/no/such")
	s.do(request{method: "GET", path: "/v1/api-keys", header: map[string]string{"Authorization": ""}})
	want := map[string]int{
		"GET /v1/leases/:resource 404":          1,
		"POST /v1/leases/:resource/acquire 200": 1,
		"POST /v1/leases/:resource/acquire 400": 1,
		"PATCH /v1/leases/:resource 405":        1,
		"GET unmatched 404":                     2,
		"GET /v1/api-keys 401":                  1,
	}
	mu.Lock()
	defer mu.Unlock()
	if !maps.Equal(seen, want) {
		t.Errorf("observed %v", slices.Sorted(maps.Keys(seen)))
	}
}

// Answers hold secrets and instants: nobody may keep them.
func TestAnswersAreNotCached(t *testing.T) {
	s := startService(t)
	for _, path := range []string{"/v1/key-types", "/v1/leases/none"} {
		if got := s.get(path).header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control: %s", path, got)
		}
	}
}
