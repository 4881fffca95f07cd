package sessionecho_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionecho"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

// Behind echo a request gets the very answer that it gets behind net/http.
func TestSameAnswersAsNetHTTP(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	fault := func(w http.ResponseWriter, r *http.Request, err error) {
		logger.Warn("session", "error", err)
		sessionhttp.Unavailable(w, r, err)
	}
	toLogin := func(w http.ResponseWriter, r *http.Request, _ sessionhttp.Refusal) {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
	}
	for _, opts := range []sessionhttp.Options{
		{Fault: fault},
		{From: sessionhttp.Cookie},
		{From: sessionhttp.Bearer},
		{MinAAL: 2},
		{NoSession: toLogin},
	} {
		store := kv.NewMemory(kv.MemoryOptions{})
		sessions := session.New(session.NewLocal(store), session.Options{RouteKey: make([]byte, 32)})
		guard := sessionhttp.New(sessions, sessionhttp.FixedTenant("acme"), opts)
		good, dead := create(t, sessions, "ann"), create(t, sessions, "bob")
		if _, err := sessions.Revoke(t.Context(), "acme", dead); err != nil {
			t.Fatal(err)
		}
		statuses := map[int]int{}
		for _, down := range []bool{false, true} {
			if down {
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
			}
			for _, cookie := range []string{"", good, dead, "junk"} {
				for _, bearer := range []string{"", good, dead, "junk"} {
					request := func() *http.Request {
						r := httptest.NewRequest(http.MethodGet, "/", nil)
						if cookie != "" {
							r.AddCookie(&http.Cookie{Name: sessionhttp.CookieName, Value: cookie})
						}
						if bearer != "" {
							r.Header.Set("Authorization", "Bearer "+bearer)
						}
						return r
					}
					want, got := behindHTTP(guard, request()), behindEcho(guard, request())
					if got.Code != want.Code || got.Body.String() != want.Body.String() || !reflect.DeepEqual(got.Header(), want.Header()) {
						t.Errorf("%+v: %d %v %s, behind net/http %d %v %s", request().Header, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
					}
					said := fmt.Sprint(got.Header(), got.Body, log.String())
					if strings.Contains(said, good) || strings.Contains(said, dead) {
						t.Errorf("a token was told: %s", said)
					}
					statuses[got.Code]++
				}
			}
		}
		if len(statuses) < 3 {
			t.Errorf("%+v: only these answers were compared: %v", opts, statuses)
		}
	}
}

func create(t *testing.T, sessions *session.Manager, user string) string {
	t.Helper()
	token, _, err := sessions.Create(t.Context(), "acme", session.CreateRequest{UserID: user})
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

func behindHTTP(guard *sessionhttp.Guard, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, _ := sessionhttp.FromContext(r.Context())
		w.Header().Set("Content-Type", echo.MIMETextPlainCharsetUTF8)
		_, _ = fmt.Fprint(w, v.Session.UserID)
	})).ServeHTTP(w, r)
	return w
}

func behindEcho(guard *sessionhttp.Guard, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e := echo.New()
	e.GET("/", func(c echo.Context) error {
		v, _ := sessionecho.FromContext(c)
		return c.String(http.StatusOK, v.Session.UserID)
	}, sessionecho.Middleware(guard))
	e.ServeHTTP(w, r)
	return w
}

// The middleware around it sees the answer, the one inside and the handler the session.
func TestPlaceAmongOtherMiddleware(t *testing.T) {
	sessions := session.New(session.NewLocal(kv.NewMemory(kv.MemoryOptions{})), session.Options{RouteKey: make([]byte, 32)})
	guard := sessionhttp.New(sessions, sessionhttp.FixedTenant("acme"), sessionhttp.Options{})
	var status int
	var hooks, inside, handled string
	e := echo.New()
	e.HTTPErrorHandler = func(err error, _ echo.Context) { t.Errorf("echo's error handler got %v", err) }
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Before(func() { hooks += "x" })
			err := next(c)
			status = c.Response().Status
			return err
		}
	})
	e.Use(sessionecho.Middleware(guard), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			v, _ := sessionecho.FromContext(c)
			inside = v.Session.UserID
			return next(c)
		}
	})
	e.GET("/", func(c echo.Context) error {
		v, ok := sessionecho.FromContext(c)
		if !ok || !v.Active {
			t.Errorf("%+v %v", v, ok)
		}
		handled = v.Session.UserID
		return c.NoContent(http.StatusAccepted)
	})

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	e.ServeHTTP(httptest.NewRecorder(), r)
	if status != http.StatusUnauthorized || hooks != "x" || inside != "" || handled != "" {
		t.Errorf("refused: status %d, hooks %q, inside %q, handled for %q", status, hooks, inside, handled)
	}
	r.Header.Set("Authorization", "Bearer "+create(t, sessions, "ann"))
	e.ServeHTTP(httptest.NewRecorder(), r)
	if status != http.StatusAccepted || hooks != "xx" || inside != "ann" || handled != "ann" {
		t.Errorf("let through: status %d, hooks %q, inside %q, handled for %q", status, hooks, inside, handled)
	}
}

func TestWithoutAGuardThereIsNoSession(t *testing.T) {
	c := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	if v, ok := sessionecho.FromContext(c); ok || v.Active {
		t.Errorf("%+v %v", v, ok)
	}
}
