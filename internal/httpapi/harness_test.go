package httpapi

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

// A clock is set by the test.
type clock struct{ at atomic.Int64 } // Unix milliseconds

func (c *clock) now() time.Time          { return time.UnixMilli(c.at.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.at.Add(d.Milliseconds()) }

// A service is the whole surface over memory stores behind a real listener.
type service struct {
	t       *testing.T
	url     string
	durable *kv.Memory
	buckets *kv.Memory
	keys    *auth.Manager
	key     string // of the tenant "default", with every scope
	events  *kv.Memory
	clock   *clock
	log     *logBuffer
}

// startService starts it at 2026-01-02T15:04:05.000Z; change may alter what it is made of.
func startService(t *testing.T, change ...func(*Deps)) *service {
	t.Helper()
	s := &service{t: t, durable: kv.NewMemory(kv.MemoryOptions{}), buckets: kv.NewMemory(kv.MemoryOptions{}), events: kv.NewMemory(kv.MemoryOptions{}), clock: &clock{}, log: &logBuffer{}}
	s.clock.at.Store(time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC).UnixMilli())
	s.keys = auth.New(auth.NewLocal(s.durable), auth.Options{Now: s.clock.now})
	limits, err := ratelimit.New(ratelimit.NewLocal(s.buckets), []ratelimit.Policy{ratelimit.DefaultPolicy(), twoLimits, oneOfEach, warned, leased}, ratelimit.Options{Now: s.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.New([][]byte{make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	sessions := session.NewLocal(s.durable)
	deps := Deps{
		Auth: s.keys,
		Sessions: session.New(sessions, session.Options{
			RouteKey: make([]byte, 32), Now: s.clock.now, Tenants: session.NewTenants(sessions, session.TenantsOptions{Now: s.clock.now}), Cursors: sealer,
		}),
		Limits: limits,
		Leases: lease.New(lease.NewLocal(s.durable), lease.Options{Now: s.clock.now, Cursors: sealer}),
		Fences: fencing.New(fencing.NewLocal(s.durable)),
		Audit:  audit.New(audit.NewLocal(s.events), sealer, audit.Options{Now: s.clock.now}),
		Quotas: quota.New(quota.NewLocal(s.durable), quota.Options{Now: s.clock.now}),

		Locks:       lock.New(lock.NewLocal(s.buckets), lock.Options{Now: s.clock.now}),
		Idempotency: idempotency.New(idempotency.NewLocal(s.durable), idempotency.Options{Space: "claims", Now: s.clock.now}),
		Receipts:    idempotency.New(idempotency.NewLocal(s.durable), idempotency.Options{Space: "receipts", Now: s.clock.now}),
		Sealer:      sealer,
		Log:         slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Now:         s.clock.now,
	}
	for _, c := range change {
		c(&deps)
	}
	s.key = s.newKey("default", auth.AllScopes()...)
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(New(deps))
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// twoLimits refuses by either of two limits.
var twoLimits = ratelimit.Policy{
	Name: "two", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce,
	Limits: []ratelimit.Limit{
		{Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 1500 * time.Millisecond}, Burst: 2}},
		{Name: "all", Key: []string{"app"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1000, Per: time.Minute}, Burst: 1000}},
	},
}

// oneOfEach has an algorithm of each kind.
var oneOfEach = ratelimit.Policy{
	Name: "each", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Owner: "search-team",
	Limits: []ratelimit.Limit{
		{Name: "fixed", Key: []string{"user"}, Algorithm: ratelimit.FixedWindow, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 100, Per: time.Minute}}, Overrides: []ratelimit.Override{
			{Match: map[string]string{"user": "big-*"}, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 500, Per: time.Minute}}},
		}},
		{Name: "mail", Key: []string{"user"}, Algorithm: ratelimit.LeakyBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 5, Per: time.Second}, Queue: 50}},
		{Name: "exports", Key: []string{"user"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 3, SlotTTL: 5 * time.Minute}},
	},
}

// leased lets nodes take units in batches.
var leased = ratelimit.Policy{
	Name: "leased", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Mode: ratelimit.Leased, MaxOvershoot: 40,
	Limits: []ratelimit.Limit{{Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 100}}},
}

// warned is not enforced yet.
var warned = ratelimit.Policy{
	Name: "warned", Posture: ratelimit.FailOpen, Stage: ratelimit.Warn, EnforceFrom: time.Date(2027, 1, 15, 0, 0, 0, 0, time.UTC),
	Limits: []ratelimit.Limit{{Name: "user", Key: []string{"user"}, Algorithm: ratelimit.FixedWindow, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 8, Per: time.Minute}}}},
}

func (s *service) newKey(tenant string, scopes ...auth.Scope) string {
	s.t.Helper()
	secret, _, err := s.keys.Create(s.t.Context(), tenant, nil, auth.NewKey{Name: "test", Scopes: scopes})
	if err != nil {
		s.t.Fatal(err)
	}
	return secret.Reveal()
}

// A request has the service's own key and a JSON body's type unless header says otherwise; "" takes a header away.
type request struct {
	method, path, body string
	header             map[string]string
	chunked            bool
}

// An answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends the request and holds the answer against the contract.
func (s *service) do(r request) answer {
	s.t.Helper()
	var body io.Reader = strings.NewReader(r.body)
	if r.chunked {
		body = io.MultiReader(body) // of unknown length
	}
	req, err := http.NewRequestWithContext(s.t.Context(), r.method, s.url+r.path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
		if value == "" {
			req.Header.Del(name)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	a := answer{resp.StatusCode, resp.Header, string(text)}
	for _, breach := range theContract.breaches(r.method, r.path, a) {
		s.t.Errorf("%s %s answered %d %s: breach of the contract: %s", r.method, r.path, a.status, a.body, breach)
	}
	return a
}

func (s *service) as(key string) *service {
	other := *s
	other.key = key
	return &other
}

func (s *service) get(path string) answer {
	s.t.Helper()
	return s.do(request{method: "GET", path: path})
}

func (s *service) post(path, body string) answer {
	s.t.Helper()
	return s.do(request{method: "POST", path: path, body: body})
}

func (s *service) put(path, body string) answer {
	s.t.Helper()
	return s.do(request{method: "PUT", path: path, body: body})
}

func (s *service) delete(path string) answer {
	s.t.Helper()
	return s.do(request{method: "DELETE", path: path})
}

// must sends and fails the test unless the status is as wanted.
func (s *service) must(status int, a answer) answer {
	s.t.Helper()
	if a.status != status {
		s.t.Fatalf("answered %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// field reads one top-level field of the answer as JSON text, without the quotes of a string.
func (a answer) field(name string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(a.body), &fields) != nil {
		return ""
	}
	return strings.Trim(string(fields[name]), `"`)
}

// sub is the object in a field, as an answer of its own.
func (a answer) sub(name string) answer {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal([]byte(a.body), &fields)
	return answer{body: string(fields[name])}
}

// items are the durable and the ephemeral ones, by bucket and key.
func (s *service) items() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for _, store := range []*kv.Memory{s.durable, s.buckets} {
		if err := store.Walk(s.t.Context(), func(bucket, key string, value []byte) bool {
			all[bucket+"/"+key] = string(value)
			return true
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	return all
}

// unchanged fails the test when the items are others than before.
func (s *service) unchanged(before map[string]string) {
	s.t.Helper()
	if after := s.items(); !maps.Equal(before, after) {
		s.t.Errorf("the stores changed:\n before %q\n after  %q", before, after)
	}
}

// refused fails the test unless the answer is a problem of this status and code.
func (a answer) refused(t *testing.T, status int, code string) {
	t.Helper()
	if a.status != status || a.field("code") != code {
		t.Errorf("answered %d %s, want %d %s", a.status, a.body, status, code)
	}
}

func unmarshalString(text string, into *string) error { return json.Unmarshal([]byte(text), into) }
