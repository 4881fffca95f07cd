package sessionhttp_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

func TestCookieAttributes(t *testing.T) {
	for _, c := range []struct {
		why      string
		sameSite http.SameSite
		left     time.Duration
		want     string // after the token
	}{
		{"an hour", 0, time.Hour, "; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Lax"},
		{"never shorter than the session", 0, 1001 * time.Millisecond, "; Path=/; Max-Age=2; HttpOnly; Secure; SameSite=Lax"},
		{"never without Max-Age", 0, time.Millisecond, "; Path=/; Max-Age=1; HttpOnly; Secure; SameSite=Lax"},
		{"Lax", http.SameSiteLaxMode, time.Second, "; Path=/; Max-Age=1; HttpOnly; Secure; SameSite=Lax"},
		{"Strict", http.SameSiteStrictMode, time.Second, "; Path=/; Max-Age=1; HttpOnly; Secure; SameSite=Strict"},
		{"None", http.SameSiteNoneMode, time.Second, "; Path=/; Max-Age=1; HttpOnly; Secure; SameSite=None"},
	} {
		s := newSite(t, sessionhttp.Options{SameSite: c.sameSite})
		token, made := s.login("ann")
		s.now = made.ExpiresAt.Add(-c.left)
		w := httptest.NewRecorder()
		s.guard.SetCookie(w, token, made)
		if got := w.Header()["Set-Cookie"]; len(got) != 1 || got[0] != "__Host-session="+token.Reveal()+c.want {
			t.Errorf("%s: %q", c.why, got)
		}
		if w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: the token may be cached", c.why)
		}
	}
}

func TestCookieOfASessionThatIsOver(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, made := s.login("ann")
	s.now = made.ExpiresAt
	live := made
	live.ExpiresAt = made.ExpiresAt.Add(time.Hour)
	for why, over := range map[string]session.Session{"expired": made, "none": {}, "no token": live} {
		w := httptest.NewRecorder()
		if why == "no token" {
			token = session.Token{}
		}
		s.guard.SetCookie(w, token, over)
		if !(answer{Response: w.Result()}).clears(t) {
			t.Errorf("%s: %q", why, w.Header()["Set-Cookie"])
		}
	}
}

// The last word about the cookie is the only one.
func TestCookieIsNamedOnce(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, made := s.login("ann")
	w := httptest.NewRecorder()
	http.SetCookie(w, &http.Cookie{Name: "theme", Value: "dark"})
	s.guard.ClearCookie(w)
	s.guard.SetCookie(w, token, made)
	got := w.Header()["Set-Cookie"]
	if len(got) != 2 || got[0] != "theme=dark" || !strings.HasPrefix(got[1], "__Host-session=cst_") {
		t.Errorf("set last: %q", got)
	}
	s.guard.ClearCookie(w)
	if got := w.Header()["Set-Cookie"]; len(got) != 2 || got[1] != cleared {
		t.Errorf("cleared last: %q", got)
	}
}

// A client with a cookie jar logs in, is known, logs in again, and is logged out.
func TestS23LoginReplacesTheCookie(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	s.now = time.Now() // the jar has a clock of its own
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		token, made, err := s.sessions.Create(r.Context(), "acme", session.CreateRequest{UserID: "ann"})
		if err != nil {
			t.Error(err)
		}
		s.guard.SetCookie(w, token, made)
	})
	mux.Handle("GET /", s.guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, _ := sessionhttp.FromContext(r.Context())
		_, _ = w.Write([]byte(v.Session.Handle))
	})))
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	client := server.Client()
	jar, err := cookiejar.New(nil)
	s.must(err)
	client.Jar = jar
	send := func(method, path string) answer {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		s.must(err)
		res, err := client.Do(r)
		s.must(err)
		return read(t, res)
	}

	if got := send(http.MethodGet, "/"); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("before the login: %d", got.StatusCode)
	}
	send(http.MethodPost, "/login")
	first := send(http.MethodGet, "/")
	if first.StatusCode != http.StatusOK {
		t.Fatalf("after the login: %d %s", first.StatusCode, first.body)
	}
	send(http.MethodPost, "/login")
	second := send(http.MethodGet, "/")
	if second.StatusCode != http.StatusOK || second.body == first.body {
		t.Errorf("after another login: %d, session %s as before", second.StatusCode, second.body)
	}
	if _, err := s.sessions.RevokeHandle(t.Context(), "acme", second.body); err != nil {
		t.Fatal(err)
	}
	if got := send(http.MethodGet, "/"); got.StatusCode != http.StatusUnauthorized || len(got.Cookies()) != 1 {
		t.Errorf("after the end: %d %v", got.StatusCode, got.Cookies())
	}
	if got := send(http.MethodGet, "/"); got.StatusCode != http.StatusUnauthorized || len(got.Cookies()) != 0 {
		t.Errorf("the jar kept the dead cookie: %d %v", got.StatusCode, got.Cookies())
	}
}
