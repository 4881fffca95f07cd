package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// A browser keeps cookies and follows redirects.
type browser struct {
	t      *testing.T
	client http.Client
	url    string
	path   string // of the latest page, after redirects
}

func newBrowser(t *testing.T, server *place) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, client: http.Client{Transport: server.Client().Transport, Jar: jar}, url: server.URL}
}

func (b *browser) do(r *http.Request, err error) (status int, page string) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	b.path = res.Request.URL.Path
	return res.StatusCode, string(body)
}

func (b *browser) get(path string) (status int, page string) {
	b.t.Helper()
	return b.do(http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil))
}

func (b *browser) post(path, origin string, form url.Values) (status int, page string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+path, strings.NewReader(form.Encode()))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", origin)
	}
	return b.do(r, err)
}

func (b *browser) login(user, password string) (status int, page string) {
	b.t.Helper()
	return b.post("/login", b.url, url.Values{"user": {user}, "password": {password}})
}

func (b *browser) cookie() string {
	b.t.Helper()
	site, err := url.Parse(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range b.client.Jar.Cookies(site) {
		return c.Value
	}
	return ""
}

// expect checks whom the start page greets, nobody where empty.
func (b *browser) expect(why, user string) {
	b.t.Helper()
	status, page := b.get("/")
	if status != http.StatusOK || strings.Contains(page, "log in</button>") != (user == "") || !strings.Contains(page, user) {
		b.t.Errorf("%s: %d %s", why, status, page)
	}
}

// A place is the site behind TLS, and what it stands on.
type place struct {
	*httptest.Server
	store *kv.Memory
	log   bytes.Buffer
	ahead atomic.Int64 // of the clock, time.Duration
}

func start(t *testing.T) *place {
	t.Helper()
	p := &place{store: embedded.Memory()}
	now := func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }
	p.Server = httptest.NewTLSServer(newSite(session.NewLocal(p.store), slog.New(slog.NewTextHandler(&p.log, nil)), now))
	t.Cleanup(p.Close)
	return p
}

func TestLoginAndLogout(t *testing.T) {
	server := start(t)
	here, there, bob := newBrowser(t, server), newBrowser(t, server), newBrowser(t, server)
	here.expect("before the login", "")
	for _, wrong := range [][2]string{{"ann", "x"}, {"nobody", ""}, {"", ""}} {
		if status, _ := here.login(wrong[0], wrong[1]); status != http.StatusForbidden {
			t.Errorf("login as %q: %d", wrong[0], status)
		}
	}
	here.expect("after wrong passwords", "")
	for b, user := range map[*browser]string{here: "ann", there: "ann", bob: "bob"} {
		b.login(user, "demo")
		b.expect("after the login", user)
	}
	here.post("/logout-others", here.url, nil)
	here.expect("the session that is kept", "ann")
	there.expect("another of hers", "")
	bob.expect("somebody else's", "bob")
	here.post("/logout", here.url, nil)
	if here.cookie() != "" {
		t.Error("the cookie outlived the logout")
	}
	here.expect("after the logout", "")
}

// A second login in the same browser ends the session of the first.
func TestLoginEndsTheSessionBefore(t *testing.T) {
	server := start(t)
	here, thief := newBrowser(t, server), newBrowser(t, server)
	here.login("ann", "demo")
	site, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	thief.client.Jar.SetCookies(site, here.client.Jar.Cookies(site))
	thief.expect("with a copy of the cookie", "ann")
	here.login("bob", "demo")
	here.expect("after another login", "bob")
	thief.expect("with the cookie from before", "")
}

// What could lock the user out needs the password again after a while.
func TestConfirm(t *testing.T) {
	server := start(t)
	here, there := newBrowser(t, server), newBrowser(t, server)
	here.login("ann", "demo")
	there.login("ann", "demo")
	server.ahead.Store(int64(6 * time.Minute))
	if _, page := here.post("/logout-others", here.url, nil); here.path != "/confirm" || !strings.Contains(page, "password") {
		t.Errorf("asked for no password at %s: %s", here.path, page)
	}
	there.expect("nobody confirmed", "ann")
	before := here.cookie()
	for _, wrong := range [][2]string{{"ann", "x"}, {"bob", "demo"}} {
		if status, _ := here.post("/confirm", here.url, url.Values{"user": {wrong[0]}, "password": {wrong[1]}}); status != http.StatusForbidden || here.cookie() != before {
			t.Errorf("confirmed as %s: %d", wrong[0], status)
		}
	}
	here.post("/confirm", here.url, url.Values{"user": {"ann"}, "password": {"demo"}})
	if here.cookie() == before {
		t.Error("the token was not replaced")
	}
	here.post("/logout-others", here.url, nil)
	here.expect("confirmed", "ann")
	there.expect("confirmed by the other", "")
}

// Whoever logs out the others with a token that was replaced meanwhile is told that nobody was.
func TestLogoutOthersByAnOldToken(t *testing.T) {
	server := start(t)
	here, there, late := newBrowser(t, server), newBrowser(t, server), newBrowser(t, server)
	here.login("ann", "demo")
	there.login("ann", "demo")
	site, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	late.client.Jar.SetCookies(site, here.client.Jar.Cookies(site))
	here.post("/confirm", here.url, url.Values{"user": {"ann"}, "password": {"demo"}})
	if status, _ := late.post("/logout-others", late.url, nil); status != http.StatusConflict {
		t.Errorf("answered %d at %s", status, late.path)
	}
	there.expect("not logged out", "ann")
}

// An unrevoking store counts logins and ends no session.
type unrevoking struct {
	session.Store
	logins atomic.Int64
}

func (u *unrevoking) Create(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	u.logins.Add(1)
	return u.Store.Create(ctx, op)
}

func (*unrevoking) Revoke(context.Context, session.RevokeOp) (session.Propagation, session.Outcome, error) {
	return session.Propagation{}, 0, keytype.ErrUnavailable
}

// A login that cannot end the session before it starts none.
func TestLoginThatCannotEndTheSessionBefore(t *testing.T) {
	store := &unrevoking{Store: session.NewLocal(embedded.Memory())}
	server := &place{Server: httptest.NewTLSServer(newSite(store, slog.New(slog.DiscardHandler), time.Now))}
	defer server.Close()
	b := newBrowser(t, server)
	b.login("ann", "demo")
	before := b.cookie()
	if status, _ := b.login("bob", "demo"); status != http.StatusServiceUnavailable || b.cookie() != before || store.logins.Load() != 1 {
		t.Errorf("answered %d after %d logins", status, store.logins.Load())
	}
	b.expect("as before", "ann")
}

func TestOtherOriginsAreRefused(t *testing.T) {
	server := start(t)
	b := newBrowser(t, server)
	b.login("ann", "demo")
	for _, origin := range []string{"https://evil.example", "https://sibling.127.0.0.1", "null"} {
		for _, path := range []string{"/logout", "/logout-others", "/login"} {
			if status, _ := b.post(path, origin, url.Values{"user": {"bob"}, "password": {"demo"}}); status != http.StatusForbidden {
				t.Errorf("%s to %s: %d", origin, path, status)
			}
		}
	}
	b.expect("after all that", "ann")
}

func TestStoreFault(t *testing.T) {
	server := start(t)
	b := newBrowser(t, server)
	b.login("ann", "demo")
	if err := server.store.Close(); err != nil {
		t.Fatal(err)
	}
	for path, ask := range map[string]func() (int, string){
		"/":       func() (int, string) { return b.get("/") },
		"/logout": func() (int, string) { return b.post("/logout", b.url, nil) },
		"/login":  func() (int, string) { return b.login("ann", "demo") },
	} {
		if status, _ := ask(); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", path, status)
		}
	}
	if b.cookie() == "" {
		t.Error("the user lost the cookie")
	}
	if said := server.log.String(); !strings.Contains(said, "store is closed") || strings.Contains(said, "cst_") {
		t.Errorf("logged: %s", said)
	}
}

func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-addr", "127.0.0.1:0"}, in, io.Discard) }()
	said := make([]byte, 200)
	n, err := out.Read(said)
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(string(said[:n]), " ")
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Request.URL.Path != "/login" {
		t.Errorf("%d at %s", res.StatusCode, res.Request.URL)
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not stop")
	}
	if err := run(t.Context(), []string{"-addr", "nowhere"}, io.Discard, io.Discard); err == nil {
		t.Error("it listens nowhere")
	}
}
