package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// followed notes the spans that it is asked for, each as "parent > name status code".
type followed struct {
	mu    sync.Mutex
	spans []string // guarded by mu
}

type spanName struct{}

func (f *followed) Request(ctx context.Context, _ http.Header, method, route string) (context.Context, func(int, string)) {
	return f.Step(ctx, method+" "+route)
}

func (f *followed) Step(ctx context.Context, name string) (context.Context, func(int, string)) {
	parent, _ := ctx.Value(spanName{}).(string)
	return context.WithValue(ctx, spanName{}, name), func(status int, code string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.spans = append(f.spans, strings.TrimPrefix(parent+" > ", " > ")+name+" "+http.StatusText(status)+" "+code)
	}
}

// A context that waits for a lease, and an event's, belong to the request's trace as well.
func TestSpansOfRequests(t *testing.T) {
	f := &followed{}
	var waits []string
	s := startService(t, func(d *Deps) {
		d.Trace = f
		d.Leases = lease.New(seen{lease.NewLocal(kv.NewMemory(kv.MemoryOptions{})), &waits}, lease.Options{Now: d.Now})
	})
	for _, c := range []struct {
		method, path, key, body string
		spans                   []string
	}{
		{"POST", "/v1/leases/r/acquire", s.key, `{"owner":"o","ttl_ms":60000,"wait_ms":1}`, []string{
			"POST /v1/leases/:resource/acquire > auth authenticate OK ",
			"leases acquire > auth authenticate OK ", // whoever waits is looked at again, once or more
			"POST /v1/leases/:resource/acquire > leases acquire OK ",
			"POST /v1/leases/:resource/acquire OK ",
		}},
		{"POST", "/v1/leases/r/acquire", s.key, `{"owner":"p","ttl_ms":60000}`, []string{
			"POST /v1/leases/:resource/acquire > auth authenticate OK ",
			"POST /v1/leases/:resource/acquire > leases acquire Conflict lease_held",
			"POST /v1/leases/:resource/acquire Conflict lease_held",
		}},
		{"POST", "/v1/users/u/disable", s.key, `{"reason":"r"}`, []string{
			"POST /v1/users/:user_id/disable > auth authenticate OK ",
			"users disable > audit record OK ",
			"POST /v1/users/:user_id/disable > users disable OK ",
			"POST /v1/users/:user_id/disable OK ",
		}},
		{"GET", "/v1/key-types", "csk_wrong", "", []string{
			"GET /v1/key-types > auth authenticate Unauthorized unauthenticated",
			"GET /v1/key-types Unauthorized unauthenticated",
		}},
		{"GET", "/none", s.key, "", []string{"GET unmatched > auth authenticate OK ", "GET unmatched Not Found not_found"}},
	} {
		f.spans = nil
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if !waitFor(f, c.spans) {
			t.Errorf("%s %s: %q", c.method, c.path, f.spans)
		}
	}
	if len(waits) != 2 || waits[0] != "leases acquire" || waits[1] != "leases acquire" {
		t.Errorf("the store was called within %q", waits)
	}
}

// waitFor: the last span may end after the answer is read.
func waitFor(f *followed, spans []string) bool {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		same := slices.Equal(slices.Compact(slices.Clone(f.spans)), spans)
		f.mu.Unlock()
		if same || time.Now().After(end) {
			return same
		}
	}
}

// seen notes within which span acquires reach the store.
type seen struct {
	lease.Store
	within *[]string
}

func (s seen) Acquire(ctx context.Context, tenant, resource string, req lease.Acquire) (lease.Outcome, error) {
	name, _ := ctx.Value(spanName{}).(string)
	*s.within = append(*s.within, name)
	return s.Store.Acquire(ctx, tenant, resource, req)
}

// Every route's operation is a word or two, without what a caller chose, and no other route's.
func TestOperationsAreNamed(t *testing.T) {
	for _, c := range [][3]string{
		{"POST", "/v1/leases/:resource/acquire", "leases acquire"},
		{"GET", "/v1/leases/:resource", "leases get"},
		{"POST", "/v1/quotas/:name/:subject/reservations/:id/commit", "quotas commit"},
		{"POST", "/v1/sessions", "sessions post"},
		{"GET", contract, "openapi.yaml get"},
	} {
		if got := operation(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: %s", c[0], c[1], got)
		}
	}
	for _, r := range (&server{}).routes() {
		if name := operation(r.method, r.path); strings.ContainsAny(name, ":/") || len(strings.Fields(name)) != 2 {
			t.Errorf("%s %s: %q", r.method, r.path, name)
		}
	}
}

// Without a tracer a request allocates nothing for one.
func TestNoTracerCostsNothing(t *testing.T) {
	s := &server{}
	ctx, c := t.Context(), echo.New().NewContext(httptest.NewRequest("GET", "/", nil), httptest.NewRecorder())
	if n := testing.AllocsPerRun(1000, func() {
		_, ended := s.step(ctx, c, "auth authenticate")
		ended(nil)
	}); n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
	routes := []route{{method: "GET", path: "/v1/x"}}
	if s.traced(routes)[0].handle != nil {
		t.Error("a handler was wrapped")
	}
}

// Every line about a request names it and its trace, those of faults among them.
func TestLinesNameTheRequest(t *testing.T) {
	s := startService(t, func(d *Deps) {
		d.TraceIDs = func(_ context.Context, h http.Header) (string, string) { return h.Get("Traceparent"), "the-span" }
		d.Audit = audit.New(brokenEvents{}, d.Sealer.(*seal.Sealer), audit.Options{Now: d.Now})
		d.Leases = lease.New(brokenLeases{}, lease.Options{Now: d.Now})
	})
	for _, c := range []struct {
		method, path, body, message string
		status                      int
	}{
		{"POST", "/v1/leases/r/acquire", `{"owner":"o","ttl_ms":60000}`, "store failed", 503},
		{"GET", "/v1/leases/r", "", "defect", 500},
		{"POST", "/v1/users/u/disable", `{"reason":"r"}`, "an event was not stored", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + s.key, "Content-Type": "application/json", "X-Request-Id": "id-of-" + c.message[:2], "Traceparent": "the-trace"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d", c.path, resp.StatusCode)
		}
		found := false
		for raw := range strings.Lines(s.log.String()) {
			var line map[string]any
			if json.Unmarshal([]byte(raw), &line) == nil && line["msg"] == c.message {
				found = line["request_id"] == "id-of-"+c.message[:2] && line["trace_id"] == "the-trace" && line["span_id"] == "the-span"
			}
		}
		if !found {
			t.Errorf("no line %q names the request:\n%s", c.message, s.log)
		}
	}
}

type brokenEvents struct{ audit.Store }

func (brokenEvents) Append(context.Context, audit.Event) error { return keytype.ErrUnavailable }

type brokenLeases struct{ lease.Store }

func (brokenLeases) Acquire(context.Context, string, string, lease.Acquire) (lease.Outcome, error) {
	return lease.Outcome{}, keytype.ErrUnavailable
}

func (brokenLeases) Get(context.Context, string, string) (lease.State, error) {
	return lease.State{}, errors.New("a defect")
}
