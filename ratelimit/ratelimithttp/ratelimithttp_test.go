package ratelimithttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// A site is a guard over a limiter; behind it a handler that counts.
type site struct {
	t       *testing.T
	store   *kv.Memory
	limits  *ratelimit.Limiter
	now     time.Time
	guard   *ratelimithttp.Guard
	through int
	handle  func(w http.ResponseWriter, r *http.Request)
}

var bucket = ratelimit.Limit{
	Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket,
	Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 3},
}

func policyOf(limits ...ratelimit.Limit) ratelimit.Policy {
	return ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: limits}
}

// byUser describes a request by the header Test-User.
func byUser(r *http.Request) (ratelimithttp.Subject, error) {
	subject := ratelimithttp.Subject{Tenant: "acme", Descriptors: map[string]string{}}
	if user := r.Header.Get("Test-User"); user != "" {
		subject.Descriptors["user"] = user
	}
	return subject, nil
}

func newSite(t *testing.T, p ratelimit.Policy, opts ratelimithttp.Options) *site {
	t.Helper()
	s := &site{t: t, store: kv.NewMemory(kv.MemoryOptions{}), now: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)}
	s.use(ratelimit.NewLocal(s.store), p, ratelimit.Options{Now: func() time.Time { return s.now }})
	s.guard = ratelimithttp.New(s.limits, p.Name, byUser, opts)
	return s
}

func (s *site) use(store ratelimit.Store, p ratelimit.Policy, opts ratelimit.Options) {
	s.t.Helper()
	var err error
	if s.limits, err = ratelimit.New(store, []ratelimit.Policy{p}, opts); err != nil {
		s.t.Fatal(err)
	}
}

// ask sends a request of a user.
func (s *site) ask(user string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Test-User", user)
	return s.send(r)
}

func (s *site) send(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.through++
		if s.handle != nil {
			s.handle(w, r)
		}
	})).ServeHTTP(w, r)
	return w
}

// problemOf reads a problem, and what of it does not depend on its code.
func problemOf(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if w.Header().Get("Content-Type") != "application/problem+json" || p["status"] != float64(w.Code) || p["type"] != "urn:coordsvc:problem:"+fmt.Sprint(p["code"]) || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	return p
}

func TestGuardLetsThroughWhatThePolicyAllows(t *testing.T) {
	s := newSite(t, policyOf(bucket), ratelimithttp.Options{Fields: ratelimithttp.Fields{Older: ratelimithttp.Delta}})
	s.handle = func(_ http.ResponseWriter, r *http.Request) {
		if d, ok := ratelimithttp.FromContext(r.Context()); !ok || !d.Allowed || d.Policy != "p" {
			t.Errorf("the handler finds %+v, %t", d, ok)
		}
	}
	for i := range 3 {
		w := s.ask("ann")
		if want := fmt.Sprintf(`"user";r=%d;t=%d`, 2-i, i+1); w.Code != 200 || w.Header().Get("RateLimit") != want || w.Header().Get("RateLimit-Policy") != `"user";q=3;w=3` || w.Header().Get("X-RateLimit-Reset") != fmt.Sprint(i+1) {
			t.Errorf("request %d: %d %v", i+1, w.Code, w.Header())
		}
	}
	w := s.ask("ann")
	p := problemOf(t, w)
	if w.Code != 429 || p["code"] != "rate_limited" || p["retryable"] != true || p["policy"] != "p" || p["limiting"] != "user" || p["retry_after_ms"] != 1000.0 || p["source"] != "memory" {
		t.Errorf("refused: %d %s", w.Code, w.Body)
	}
	if w.Header().Get("Retry-After") != "1" || w.Header().Get("RateLimit") != `"user";r=0;t=1` {
		t.Errorf("refused: %v", w.Header())
	}
	if s.ask("bob").Code != 200 {
		t.Error("another user is refused")
	}
	s.now = s.now.Add(time.Second)
	if s.ask("ann").Code != 200 {
		t.Error("refused after Retry-After")
	}
	if s.through != 5 {
		t.Errorf("%d requests reached the handler", s.through)
	}
}

func TestCostOfARequest(t *testing.T) {
	s := newSite(t, policyOf(bucket), ratelimithttp.Options{Cost: func(r *http.Request) int64 { return int64(len(r.URL.RawQuery)) }})
	ask := func(query string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/?"+query, nil)
		r.Header.Set("Test-User", "ann")
		return s.send(r)
	}
	if w := ask("xx"); w.Code != 200 || w.Header().Get("RateLimit") != `"user";r=1;t=2` {
		t.Errorf("2 of 3: %d %v", w.Code, w.Header())
	}
	if w := ask("xx"); w.Code != 429 {
		t.Errorf("4 of 3: %d", w.Code)
	}
	w := ask("xxxx")
	if p := problemOf(t, w); w.Code != 422 || p["code"] != "cost_exceeds_capacity" || p["limit"] != 3.0 || p["retryable"] != false || w.Header().Get("Retry-After") != "" {
		t.Errorf("4 at once: %d %s", w.Code, w.Body)
	}
	if w := ask(""); w.Code != 500 {
		t.Errorf("a cost of 0 is a defect: %d", w.Code)
	}
}

func TestR61NobodySharesABucketForWantOfAnIdentity(t *testing.T) {
	var faults []error
	opts := ratelimithttp.Options{Fault: func(w http.ResponseWriter, r *http.Request, err error) {
		faults = append(faults, err)
		ratelimithttp.Unavailable(w, r, err)
	}}
	s := newSite(t, policyOf(bucket), opts)
	w := s.ask("")
	if p := problemOf(t, w); w.Code != 500 || p["code"] != "internal" || strings.Contains(w.Body.String(), "user") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, ok := errors.AsType[*keytype.ValueError](faults[0]); !ok {
		t.Errorf("the log has %v", faults[0])
	}
	unknown := errors.New("who is it?")
	s.guard = ratelimithttp.New(s.limits, "p", func(*http.Request) (ratelimithttp.Subject, error) { return ratelimithttp.Subject{}, unknown }, opts)
	if w := s.ask("ann"); w.Code != 500 || !errors.Is(faults[1], unknown) {
		t.Errorf("%d %v", w.Code, faults)
	}
	s.guard = ratelimithttp.New(s.limits, "q", byUser, opts)
	if w := s.ask("ann"); w.Code != 500 || !errors.Is(faults[2], ratelimit.ErrUnknownPolicy) {
		t.Errorf("%d %v", w.Code, faults)
	}
	if s.through != 0 {
		t.Errorf("%d requests reached the handler", s.through)
	}
}

func TestSkip(t *testing.T) {
	s := newSite(t, policyOf(bucket), ratelimithttp.Options{})
	s.handle = func(_ http.ResponseWriter, r *http.Request) {
		if _, ok := ratelimithttp.FromContext(r.Context()); ok {
			t.Error("there is a decision")
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for range 5 {
		if w := s.send(r.WithContext(ratelimithttp.Skip(r.Context()))); w.Code != 200 || len(w.Header()) != 0 {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	s.handle = nil
	if w := s.ask("ann"); w.Header().Get("RateLimit") != `"user";r=2;t=1` {
		t.Errorf("what was skipped was charged: %v", w.Header())
	}
}

// A failing store decides nothing.
type failing struct{ ratelimit.Store }

func (failing) Take(context.Context, ratelimit.Take) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, &ratelimit.FaultError{Reason: "readonly", Err: keytype.ErrUnavailable}
}

func TestR26PosturesBehindTheGuard(t *testing.T) {
	for _, c := range []struct {
		posture  ratelimit.Posture
		statuses [4]int
		source   string
	}{
		{ratelimit.FailOpen, [4]int{200, 200, 200, 200}, ""},
		{ratelimit.FailClosed, [4]int{503, 503, 503, 503}, "fail_closed"},
		{ratelimit.Local, [4]int{200, 200, 200, 429}, "local"},
	} {
		p := policyOf(bucket)
		p.Posture = c.posture
		s := newSite(t, p, ratelimithttp.Options{})
		s.use(failing{}, p, ratelimit.Options{Fallback: ratelimit.NewLocal(s.store), Now: func() time.Time { return s.now }})
		s.guard = ratelimithttp.New(s.limits, "p", byUser, ratelimithttp.Options{})
		for i, want := range c.statuses {
			w := s.ask("ann")
			if w.Code != want || w.Header().Get("X-RateLimit-Degraded") != "true" {
				t.Errorf("%s, request %d: %d %v", c.posture, i+1, w.Code, w.Header())
			}
			if want == 200 {
				continue
			}
			if p := problemOf(t, w); p["source"] != c.source || p["degraded"] != true || p["degraded_reason"] != "readonly" || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s, request %d: %v %s", c.posture, i+1, w.Header(), w.Body)
			}
		}
	}
	// Without a fallback a failure is no posture's business.
	s := newSite(t, policyOf(bucket), ratelimithttp.Options{})
	_ = s.store.Close()
	w := s.ask("ann")
	if p := problemOf(t, w); w.Code != 503 || p["code"] != "store_unavailable" || p["degraded"] != nil || w.Header().Get("Retry-After") != "1" || w.Header().Get("X-RateLimit-Degraded") != "" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestASlotIsHeldWhileTheHandlerRuns(t *testing.T) {
	slots := ratelimit.Limit{Name: "exports", Key: []string{"user"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 1, SlotTTL: time.Hour}}
	var lost []error
	s := newSite(t, policyOf(slots), ratelimithttp.Options{NotReleased: func(_ *http.Request, err error) { lost = append(lost, err) }})
	free := func(want int) {
		t.Helper()
		if w := s.ask("ann"); w.Code != want {
			t.Errorf("a second request: %d, want %d", w.Code, want)
		}
	}
	s.handle = func(http.ResponseWriter, *http.Request) {
		s.handle = nil
		free(429)
	}
	free(200)
	free(200)

	// Also where the handler panics, or its client leaves.
	s.handle = func(http.ResponseWriter, *http.Request) {
		s.handle = nil
		panic(http.ErrAbortHandler)
	}
	func() {
		defer func() { _ = recover() }()
		s.ask("ann")
	}()
	free(200)
	ctx, leave := context.WithCancel(t.Context())
	s.handle = func(http.ResponseWriter, *http.Request) { s.handle = nil; leave() }
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header.Set("Test-User", "ann")
	s.send(r)
	free(200)
	if lost != nil {
		t.Errorf("not released: %v", lost)
	}
	s.handle = func(http.ResponseWriter, *http.Request) { _ = s.store.Close() }
	s.ask("ann")
	if len(lost) != 1 || !errors.Is(lost[0], keytype.ErrUnavailable) {
		t.Errorf("a slot that is lost is told as %v", lost)
	}
}

func TestALeakyBucketMakesRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := ratelimit.Limit{Name: "mail", Key: []string{"user"}, Algorithm: ratelimit.LeakyBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Queue: 2}}
		s := newSite(t, policyOf(queue), ratelimithttp.Options{})
		begun := time.Now()
		for i, want := range []struct {
			status int
			after  time.Duration
		}{{200, 0}, {200, time.Second}, {429, time.Second}} {
			if w := s.ask("ann"); w.Code != want.status || time.Since(begun) != want.after {
				t.Errorf("request %d: %d after %v", i+1, w.Code, time.Since(begun))
			}
		}
		s.now = s.now.Add(time.Second) // one has gone
		ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer leave()
		r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
		r.Header.Set("Test-User", "ann")
		if w := s.send(r); w.Code != 503 || time.Since(begun) != 1300*time.Millisecond || s.through != 2 {
			t.Errorf("who leaves before their turn: %d after %v, %d handled", w.Code, time.Since(begun), s.through)
		}
	})
}

func TestAnswersOfOnesOwn(t *testing.T) {
	s := newSite(t, policyOf(bucket), ratelimithttp.Options{Refused: func(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
		http.Error(w, "slower, "+d.Limiting, http.StatusTooManyRequests)
	}})
	for range 3 {
		s.ask("ann")
	}
	if w := s.ask("ann"); w.Code != 429 || w.Body.String() != "slower, user\n" || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
}

func TestAGuardNeedsItsParts(t *testing.T) {
	for why, wrong := range map[string]func(){
		"nobody to count for": func() { ratelimithttp.New(nil, "p", nil, ratelimithttp.Options{}) },
		"fields of no form": func() {
			ratelimithttp.New(nil, "p", byUser, ratelimithttp.Options{Fields: ratelimithttp.Fields{Draft: 3}})
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", why)
				}
			}()
			wrong()
		}()
	}
}
