package sessionhttp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

// A site is a guard over a memory store; behind it a handler that counts.
type site struct {
	t        *testing.T
	store    *kv.Memory
	sessions *session.Manager
	now      time.Time
	guard    *sessionhttp.Guard
	through  int             // requests that passed
	seen     session.Verdict // by the latest of them
}

func newSite(t *testing.T, opts sessionhttp.Options) *site {
	t.Helper()
	s := &site{t: t, store: kv.NewMemory(kv.MemoryOptions{}), now: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)}
	now := func() time.Time { return s.now }
	s.sessions = session.New(session.NewLocal(s.store), session.Options{RouteKey: make([]byte, 32), Now: now})
	opts.Now = now
	s.guard = sessionhttp.New(s.sessions, sessionhttp.FixedTenant("acme"), opts)
	return s
}

// login makes a session that ends in an hour, or after ten minutes without use.
func (s *site) login(user string) (session.Token, session.Session) {
	s.t.Helper()
	token, made, err := s.sessions.Create(s.t.Context(), "acme", session.CreateRequest{UserID: user, AbsoluteTTL: time.Hour, IdleTTL: 10 * time.Minute})
	if err != nil {
		s.t.Fatal(err)
	}
	return token, made
}

// dead is the token of a session that was revoked.
func (s *site) dead() string {
	s.t.Helper()
	token, _ := s.login("dead")
	s.must(second(s.sessions.Revoke(s.t.Context(), "acme", token.Reveal())))
	return token.Reveal()
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// An answer is what came back, the body read.
type answer struct {
	*http.Response
	body string
}

// ask sends the request through the guard.
func (s *site) ask(r *http.Request) answer {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.through++
		v, ok := sessionhttp.FromContext(r.Context())
		if !ok || !v.Active {
			s.t.Errorf("a request got through with the verdict %+v %v", v, ok)
		}
		s.seen = v
	})).ServeHTTP(w, r)
	return read(s.t, w.Result())
}

func read(t *testing.T, res *http.Response) answer {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return answer{res, string(body)}
}

// problem checks the form of a problem+json answer and returns its members.
func (a answer) problem(t *testing.T) map[string]any {
	t.Helper()
	members := map[string]any{}
	if err := json.Unmarshal([]byte(a.body), &members); err != nil {
		t.Fatalf("%d %q: %v", a.StatusCode, a.body, err)
	}
	if a.Header.Get("Content-Type") != "application/problem+json" || members["status"] != float64(a.StatusCode) ||
		members["type"] != fmt.Sprint("urn:coordsvc:problem:", members["code"]) || members["title"] == "" || members["detail"] == "" {
		t.Errorf("not a problem: %d %s %s", a.StatusCode, a.Header.Get("Content-Type"), a.body)
	}
	return members
}

const cleared = "__Host-session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"

// clears reports whether the answer takes the cookie off the browser; anything
// else that it says about cookies is an error.
func (a answer) clears(t *testing.T) bool {
	t.Helper()
	switch got := a.Header["Set-Cookie"]; {
	case len(got) == 0:
		return false
	case len(got) != 1 || got[0] != cleared:
		t.Errorf("Set-Cookie: %q", got)
	case a.Header.Get("Cache-Control") != "no-store":
		t.Error("an answer that clears the cookie may be cached")
	}
	return true
}

// get is a GET with a cookie and an Authorization header, none where "-".
func get(cookie, authorization string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if cookie != "-" {
		r.Header.Set("Cookie", "theme=dark; "+sessionhttp.CookieName+"="+cookie)
	}
	if authorization != "-" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

// A journal logs everything that can be printed of what an application gets.
type journal struct {
	bytes.Buffer
	log *slog.Logger
}

func newJournal() *journal {
	j := &journal{}
	j.log = slog.New(slog.NewJSONHandler(j, nil))
	return j
}

func (j *journal) note(r *http.Request, what string, value any) {
	v, _ := sessionhttp.FromContext(r.Context())
	j.log.Error(what, "value", value, "text", fmt.Sprintf("%v %+v %#v", value, value, value), "verdict", fmt.Sprintf("%+v", v), "context", fmt.Sprint(r.Context()))
}

// secretOf is the part of a token that nobody else may learn.
func secretOf(token string) string { return strings.TrimPrefix(token, "cst_")[44:][:43] }

func second[T any](_ T, err error) error { return err }
