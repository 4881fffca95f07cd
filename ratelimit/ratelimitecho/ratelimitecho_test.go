package ratelimitecho_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimitecho"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

var limits = []ratelimit.Limit{
	{Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 2}},
	{Name: "slots", Key: []string{"user"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 1, SlotTTL: time.Hour}},
}

// A guarded site: a guard over a store that can be closed.
func newGuard(t *testing.T) (*ratelimithttp.Guard, *kv.Memory) {
	t.Helper()
	store := kv.NewMemory(kv.MemoryOptions{})
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: limits}
	l, err := ratelimit.New(ratelimit.NewLocal(store), []ratelimit.Policy{policy}, ratelimit.Options{Now: func() time.Time { return time.Unix(1_767_366_245, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	return ratelimithttp.New(l, "p", func(r *http.Request) (ratelimithttp.Subject, error) {
		user := r.Header.Get("Test-User")
		if user == "" {
			return ratelimithttp.Subject{}, errors.New("nobody")
		}
		return ratelimithttp.Subject{Tenant: "acme", Descriptors: map[string]string{"user": user}}, nil
	}, ratelimithttp.Options{Fields: ratelimithttp.Fields{Older: ratelimithttp.Delta}}), store
}

// Behind echo a request gets the very answer that it gets behind net/http.
func TestSameAnswersAsNetHTTP(t *testing.T) {
	plain, plainStore := newGuard(t)
	guard, store := newGuard(t)
	statuses := map[int]int{}
	for i, user := range []string{"ann", "ann", "ann", "bob", "", "-", "ann"} {
		if user == "-" {
			_, _ = plainStore.Close(), store.Close()
		}
		request := func() *http.Request {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Test-User", user)
			return r
		}
		want, got := behindHTTP(plain, request()), behindEcho(guard, request())
		if got.Code != want.Code || got.Body.String() != want.Body.String() || !reflect.DeepEqual(got.Header(), want.Header()) {
			t.Errorf("request %d: %d %v %s, behind net/http %d %v %s", i+1, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
		}
		statuses[got.Code]++
	}
	if want := map[int]int{200: 3, 429: 1, 500: 1, 503: 2}; !reflect.DeepEqual(statuses, want) {
		t.Errorf("these answers were compared: %v, want %v", statuses, want)
	}
}

func behindHTTP(guard *ratelimithttp.Guard, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := ratelimithttp.FromContext(r.Context())
		w.Header().Set("Content-Type", echo.MIMETextPlainCharsetUTF8)
		_, _ = fmt.Fprint(w, d.Limits[0].Remaining)
	})).ServeHTTP(w, r)
	return w
}

func behindEcho(guard *ratelimithttp.Guard, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e := echo.New()
	e.GET("/", func(c echo.Context) error {
		d, _ := ratelimitecho.FromContext(c)
		return c.String(http.StatusOK, fmt.Sprint(d.Limits[0].Remaining))
	}, ratelimitecho.Middleware(guard))
	e.ServeHTTP(w, r)
	return w
}

// A refusal is an answer like any other to the middleware around it, and no error; the
// handler's error goes on, and its slot is given back.
func TestPlaceAmongOtherMiddleware(t *testing.T) {
	guard, _ := newGuard(t)
	var status int
	var failed error
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		failed = err
		_ = c.NoContent(http.StatusTeapot)
	}
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			status = c.Response().Status
			return err
		}
	})
	broken := errors.New("broken")
	e.GET("/", func(echo.Context) error { return broken }, ratelimitecho.Middleware(guard))
	ask := func() {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Test-User", "ann")
		e.ServeHTTP(httptest.NewRecorder(), r)
	}
	for range 2 {
		failed = nil
		if ask(); !errors.Is(failed, broken) {
			t.Errorf("got %v: the slot was not given back, or the error was kept", failed)
		}
	}
	failed = nil
	if ask(); failed != nil || status != http.StatusTooManyRequests {
		t.Errorf("refused: %d, %v", status, failed)
	}
}

func TestWithoutAGuardThereIsNoDecision(t *testing.T) {
	c := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	if d, ok := ratelimitecho.FromContext(c); ok {
		t.Errorf("%+v", d)
	}
}
