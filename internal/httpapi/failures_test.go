package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

const storeText = "ProvisionedThroughputExceededException at 10.0.0.7"

// A failing store fails every transaction in the way it is told.
type failing struct {
	kv.Store
	with atomic.Pointer[error]
}

func (f *failing) fail(err error) { f.with.Store(&err) }

func (f *failing) now() error {
	if err := f.with.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *failing) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if err := f.now(); err != nil {
		return err
	}
	return f.Store.Update(ctx, fn)
}

func (f *failing) View(ctx context.Context, fn func(kv.Tx) error) error {
	if err := f.now(); err != nil {
		return err
	}
	return f.Store.View(ctx, fn)
}

// startFailing starts a service whose managers, but for that of the keys, stand on one failing store.
func startFailing(t *testing.T, change ...func(*Deps)) (*service, *failing) {
	store := &failing{Store: kv.NewMemory(kv.MemoryOptions{})}
	limits, err := ratelimit.New(ratelimit.NewLocal(store), []ratelimit.Policy{ratelimit.DefaultPolicy(), oneOfEach, leased}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stand := func(d *Deps) {
		local := session.NewLocal(store)
		d.Sessions = session.New(local, session.Options{RouteKey: make([]byte, 32), Tenants: session.NewTenants(local, session.TenantsOptions{})})
		d.Leases = lease.New(lease.NewLocal(store), lease.Options{})
		d.Fences = fencing.New(fencing.NewLocal(store))
		d.Quotas = quota.New(quota.NewLocal(store), quota.Options{})
		d.Locks = lock.New(lock.NewLocal(store), lock.Options{})
		d.Idempotency = idempotency.New(idempotency.NewLocal(store), idempotency.Options{})
		d.Limits = limits
	}
	return startService(t, append([]func(*Deps){stand}, change...)...), store
}

// needsStore are the samples that a failing store makes fail.
func needsStore(r sample) bool {
	return r.feature != "" && r.feature != "audit" && !strings.HasPrefix(r.path, "/v1/ratelimit/policies")
}

// R26: a failing store is a 503, never the caller's fault, and its text stays inside.
func TestR26FailingStore(t *testing.T) {
	s, store := startFailing(t)
	all := samples(s)
	for _, c := range []struct {
		err              error
		onRead, onEffect string
	}{
		{fmt.Errorf("query: %w: %s", keytype.ErrUnavailable, storeText), "store_unavailable", "store_unavailable"},
		{fmt.Errorf("query: %w: %s", keytype.ErrOutcomeUnknown, storeText), "store_unavailable", "outcome_unknown"},
		{fmt.Errorf("query: %w: %s", context.DeadlineExceeded, storeText), "store_unavailable", "outcome_unknown"},
		{fmt.Errorf("query: %w: %w: %s", keytype.ErrUnavailable, context.DeadlineExceeded, storeText), "store_unavailable", "store_unavailable"},
		{fmt.Errorf("query: %w: %w: %s", keytype.ErrUnavailable, keytype.ErrOutcomeUnknown, storeText), "store_unavailable", "outcome_unknown"},
	} {
		store.fail(c.err)
		for _, r := range all {
			if !needsStore(r) {
				continue
			}
			want := c.onRead
			if strings.Contains(fmt.Sprint(theContract.operation(r.method, r.path).at("responses", "503")["description"]), "outcome_unknown") {
				want = c.onEffect
			}
			a := s.do(r.request())
			a.refused(t, 503, want)
			if strings.Contains(a.body, "Provisioned") || strings.Contains(a.body, "keytype") {
				t.Errorf("%s %s tells the store's text: %s", r.method, r.path, a.body)
			}
			if retry := want == "store_unavailable"; a.field("retryable") != fmt.Sprint(retry) || (a.header.Get("Retry-After") == "1") != retry {
				t.Errorf("%s %s: retryable and Retry-After do not fit: %v %s", r.method, r.path, a.header, a.body)
			}
		}
	}
	if !strings.Contains(s.log.String(), storeText) {
		t.Error("the store's text is not in the log")
	}
}

// A store that fails before the key is known is a 503, not a 401.
func TestFailingStoreOfKeys(t *testing.T) {
	store := &failing{Store: kv.NewMemory(kv.MemoryOptions{})}
	s := startService(t, func(d *Deps) { d.Auth = auth.New(auth.NewLocal(store), auth.Options{}) })
	for _, err := range []error{keytype.ErrUnavailable, keytype.ErrOutcomeUnknown, context.DeadlineExceeded} {
		store.fail(err)
		for _, path := range []string{"/v1/leases/x/acquire", "/v1/no/such"} {
			s.post(path, `{"owner":"w","ttl_ms":1000}`).refusedStatus(t, 503)
		}
		s.post("/v1/leases/x/acquire", `{"owner":"w","ttl_ms":1000}`).refused(t, 503, "store_unavailable")
	}
}

// What nobody thought of is a 500 that tells nothing, and its cause is in the log.
func TestDefects(t *testing.T) {
	s, store := startFailing(t)
	all := samples(s)
	store.fail(errors.New("corrupt item: " + storeText))
	for _, r := range all {
		if !needsStore(r) || r.feature == "limits" { // to the limiter any failure of its store is one
			continue
		}
		a := s.do(r.named("find-me"))
		a.is(t, 500, `{"code":"internal","detail":"the defect is logged under this request id","request_id":"find-me","retryable":false,"status":500,"title":"the service has a defect","type":"urn:coordsvc:problem:internal"}`)
	}
	if log := s.log.String(); !strings.Contains(log, storeText) || !strings.Contains(log, `"request_id":"find-me"`) {
		t.Errorf("the log does not tell: %s", log)
	}
}

type panicking struct{ kv.Store }

func (panicking) View(context.Context, func(kv.Tx) error) error { panic("a nil map: " + storeText) }

func TestPanics(t *testing.T) {
	s := startService(t, func(d *Deps) { d.Leases = lease.New(lease.NewLocal(panicking{}), lease.Options{}) })
	for range 3 { // the process and the connection live on
		a := s.get("/v1/leases/job")
		a.refused(t, 500, "internal")
		if strings.Contains(a.body, "nil map") {
			t.Errorf("the panic is told: %s", a.body)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "a nil map") || !strings.Contains(log, "failures_test.go") {
		t.Errorf("the log does not tell: %s", log)
	}
	s.must(200, s.get("/v1/key-types"))
}

// A store that hangs is given up at the deadline of the request.
type hanging struct{ kv.Store }

func (hanging) Update(ctx context.Context, _ func(kv.Tx) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hanging) View(ctx context.Context, _ func(kv.Tx) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestHangingStore(t *testing.T) {
	s := startService(t, func(d *Deps) {
		d.Timeout = 50 * time.Millisecond
		d.Leases = lease.New(lease.NewLocal(hanging{}), lease.Options{})
	})
	s.get("/v1/leases/job").refused(t, 503, "store_unavailable")
	s.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":1000}`).refused(t, 503, "outcome_unknown")
}

// Every error that a manager names has a status, wrapped or not.
func TestEveryRefusalHasAStatus(t *testing.T) {
	s := &server{}
	for _, c := range []struct {
		err    error
		status int64
		code   api.ProblemCode
	}{
		{auth.ErrUnauthenticated, 401, "unauthenticated"},
		{&scopeError{auth.LeasesUse}, 403, "forbidden_scope"},
		{auth.ErrNotFound, 404, "not_found"},
		{session.ErrNotFound, 404, "not_found"},
		{session.ErrUserDisabled, 403, "user_disabled"},
		{session.ErrEpochMismatch, 412, "epoch_mismatch"},
		{session.ErrNotActive, 409, "session_not_active"},
		{ratelimit.ErrUnknownPolicy, 404, "not_found"},
		{&ratelimit.CostError{LimitName: "l", Capacity: 3}, 422, "cost_exceeds_capacity"},
		{&limitedError{}, 429, "rate_limited"},
		{lease.ErrNotFound, 404, "not_found"},
		{lease.ErrLost, 409, "lease_lost"},
		{lease.ErrExpired, 410, "lease_expired"},
		{lease.ErrRequestExpired, 409, "request_expired"},
		{&lease.HeldError{HeldUntil: time.Now(), RetryAfter: time.Second}, 409, "lease_held"},
		{fencing.ErrNotFound, 404, "not_found"},
		{fencing.ErrNotGranted, 422, "invalid_value"},
		{fencing.ErrSequenceReused, 422, "sequence_reused"},
		{fencing.ErrModeFixed, 422, "invalid_value"},
		{fencing.ErrExhausted, 422, "invalid_value"},
		{&fencing.StaleError{}, 409, "stale_fencing_token"},
		{&keytype.ValueError{Field: "f", Reason: "is odd"}, 422, "invalid_value"},
		{keytype.ErrUnavailable, 503, "store_unavailable"},
		{keytype.ErrOutcomeUnknown, 503, "store_unavailable"},
		{context.Canceled, 503, "store_unavailable"},
		{&http.MaxBytesError{}, 413, "body_too_large"},
		{echo.ErrNotFound, 404, "not_found"},
		{echo.ErrMethodNotAllowed, 405, "method_not_allowed"},
		{echo.ErrTeapot, 500, "internal"},
		{errors.New("anything"), 500, "internal"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("acquire %q: %w", storeText, c.err)} {
			ctx := echo.New().NewContext(httptest.NewRequest("POST", "/", nil), httptest.NewRecorder())
			p := s.problemOf(err, ctx)
			if p.Status != c.status || p.Code != c.code || p.Title == "" || p.Detail == "" || strings.Contains(p.Detail, "Provisioned") {
				t.Errorf("%v became %+v, want %d %s", err, p, c.status, c.code)
			}
		}
	}
}

// S38: no secret shows up in the log, whatever its level.
func TestS38SecretsAreNotLogged(t *testing.T) {
	s := startService(t)
	var secrets []string
	for _, r := range samples(s) {
		a := s.do(r.request())
		for _, name := range []string{"token", "key", "lease_id"} {
			secrets = append(secrets, a.field(name))
		}
		s.do(request{method: r.method, path: r.path, body: `{"` + s.key + `":"` + s.key + `"}`})
		s.do(r.named("Bearer " + s.key))
	}
	log := s.log.String()
	if !strings.Contains(log, `"route":"/v1/leases/:resource/acquire","method":"POST","status":200`) {
		t.Errorf("the requests are not logged: %s", log)
	}
	for _, secret := range append(secrets, s.key) {
		if secret != "" && strings.Contains(log, secret) {
			t.Errorf("the log holds %s", secret)
		}
	}
}

// A body's text does not come back in a problem.
func TestProblemsDoNotRepeatSecrets(t *testing.T) {
	s := startService(t)
	secret := s.key
	for _, body := range []string{
		`{"token":["` + secret + `"]}`, `{"` + secret + `":1}`, `{"token":"x","` + secret + `":{}}`, `{"token":"` + secret + `","token":"` + secret + `"}`,
		`{"token":"` + strings.Repeat(secret, 9) + `"}`, `{"token":"` + secret + `\u0000"}`, secret, `"` + secret + `"`, `{"token":"` + secret,
	} {
		if a := s.post("/v1/sessions/revoke", body); a.status < 400 || strings.Contains(a.body, secret) {
			t.Errorf("%s answered %d %s", body, a.status, a.body)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	s := startService(t)
	seen := map[string]bool{}
	for _, c := range []struct {
		sent string
		kept bool
	}{
		{"", false},
		{"r-1", true},
		{"01J:a.b_C-9", true},
		{strings.Repeat("x", 128), true},
		{strings.Repeat("x", 129), false},
		{"a b", false},
		{`"quoted"`, false},
		{"é", false},
		{"a;b", false},
	} {
		a := s.do(request{method: "GET", path: "/v1/leases/none", header: map[string]string{"X-Request-Id": c.sent}})
		id := a.header.Get("X-Request-Id")
		if (id == c.sent) != c.kept || a.field("request_id") != id {
			t.Errorf("sent %q, answered %q and %s", c.sent, id, a.body)
		}
		if seen[id] {
			t.Errorf("%q was answered twice", id)
		}
		seen[id] = true
	}
}
