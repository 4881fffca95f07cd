package sessionhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

const both = sessionhttp.Cookie | sessionhttp.Bearer

// Each kind of cookie with each kind of bearer header, in front of each kind of guard.
func TestCookieAndBearer(t *testing.T) {
	for _, from := range []sessionhttp.Source{0, sessionhttp.Cookie, sessionhttp.Bearer, both} {
		s := newSite(t, sessionhttp.Options{From: from})
		ann, _ := s.login("ann")
		bob, _ := s.login("bob")
		shown := map[string]string{"none": "-", "ann": ann.Reveal(), "bob": bob.Reveal(), "dead": s.dead(), "junk": "junk", "empty": ""}
		for cookie, cookieToken := range shown {
			for bearer, bearerToken := range shown {
				header := "Bearer " + bearerToken
				if bearer == "none" {
					header = "-"
				}
				var tokens []string // those that the guard has to look at
				looksAtCookie := cookie != "none" && from != sessionhttp.Bearer
				looksAtBearer := bearer != "none" && from != sessionhttp.Cookie
				if looksAtCookie {
					tokens = append(tokens, cookie)
				}
				if looksAtBearer && !slices.Contains(tokens, bearer) && (bearer != "empty" || !looksAtCookie) {
					tokens = append(tokens, bearer)
				}
				status, challenge, clears := http.StatusUnauthorized, "Bearer", false
				switch {
				case len(tokens) == 2:
					status, challenge = http.StatusBadRequest, `Bearer error="invalid_request"`
				case len(tokens) == 1 && (tokens[0] == "ann" || tokens[0] == "bob"):
					status, challenge = http.StatusOK, ""
				case looksAtBearer:
					challenge, clears = `Bearer error="invalid_token"`, looksAtCookie
				case looksAtCookie:
					clears = true
				}
				if from == sessionhttp.Cookie {
					challenge = ""
				}

				why := fmt.Sprintf("from %d, cookie %s, bearer %s", from, cookie, bearer)
				s.through = 0
				got := s.ask(get(cookieToken, header))
				if got.StatusCode != status || (s.through == 1) != (status == http.StatusOK) {
					t.Errorf("%s: %d, %d through, want %d", why, got.StatusCode, s.through, status)
				}
				if s.through == 1 && s.seen.Session.UserID != tokens[0] {
					t.Errorf("%s: through as %s", why, s.seen.Session.UserID)
				}
				if got.Header.Get("WWW-Authenticate") != challenge || got.clears(t) != clears {
					t.Errorf("%s: challenge %q, Set-Cookie %q", why, got.Header.Get("WWW-Authenticate"), got.Header["Set-Cookie"])
				}
				if status != http.StatusOK && (got.problem(t)["retryable"] != false || got.Header.Get("Cache-Control") != "no-store") {
					t.Errorf("%s: %s %s", why, got.Header.Get("Cache-Control"), got.body)
				}
			}
		}
	}
}

func TestHowTokensAreRead(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	annToken, _ := s.login("ann")
	bobToken, _ := s.login("bob")
	ann, bob := annToken.Reveal(), bobToken.Reveal()
	const cookie, header = "Cookie", "Authorization"
	for _, c := range []struct {
		why     string
		headers http.Header
		status  int
	}{
		{"the scheme in other letters", http.Header{header: {"bEARER " + ann}}, 200},
		{"more spaces", http.Header{header: {"Bearer   " + ann + "  "}}, 200},
		{"no space", http.Header{header: {"Bearer" + ann}}, 401},
		{"a tab for a space", http.Header{header: {"Bearer\t" + ann}}, 401},
		{"no scheme", http.Header{header: {ann}}, 401},
		{"only the scheme", http.Header{header: {"Bearer"}}, 401},
		{"another scheme", http.Header{header: {"Basic " + ann}}, 401},
		{"another scheme beside a cookie", http.Header{header: {"Basic " + bob}, cookie: {"__Host-session=" + ann}}, 200},
		{"the same header twice", http.Header{header: {"Bearer " + ann, "Bearer " + ann}}, 200},
		{"two headers", http.Header{header: {"Bearer " + ann, "Bearer " + bob}}, 400},
		{"two in one header", http.Header{header: {"Bearer " + ann + ", Bearer " + ann}}, 401},
		{"more after the token", http.Header{header: {"Bearer " + ann + " " + ann}}, 401},
		{"only the scheme, beside a cookie", http.Header{header: {"Bearer"}, cookie: {"__Host-session=" + ann}}, 200},
		{"a cookie in quotes", http.Header{cookie: {`__Host-session="` + ann + `"`}}, 200},
		{"the same cookie twice", http.Header{cookie: {"__Host-session=" + ann + "; __Host-session=" + ann}}, 200},
		{"two cookies", http.Header{cookie: {"__Host-session=" + ann + "; __Host-session=" + bob}}, 400},
		{"two cookies, the later empty", http.Header{cookie: {"__Host-session=" + ann + "; __Host-session="}}, 400},
		{"two cookies in two headers", http.Header{cookie: {"__Host-session=" + ann, "__Host-session=" + bob}}, 400},
		{"the cookie without its prefix", http.Header{cookie: {"session=" + ann}}, 401},
		{"the cookie with a weaker prefix", http.Header{cookie: {"__Secure-session=" + ann}}, 401},
		{"the cookie in other letters", http.Header{cookie: {"__host-session=" + ann}}, 401},
		{"a space that is not ASCII before the name", http.Header{cookie: {"\u2000__Host-session=" + ann}}, 401},
		{"$Version before it", http.Header{cookie: {"$Version=1,__Host-session=" + ann}}, 401},
		{"thousands of other cookies", http.Header{cookie: {strings.Repeat("a=b; ", 4000) + "__Host-session=" + ann}}, 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = c.headers
		s.through = 0
		if got := s.ask(r); got.StatusCode != c.status || (s.through == 1) != (c.status == 200) {
			t.Errorf("%s: %d, %d through, want %d", c.why, got.StatusCode, s.through, c.status)
		} else if s.through == 1 && s.seen.Session.UserID != "ann" {
			t.Errorf("%s: through as %s", c.why, s.seen.Session.UserID)
		}
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the guard read the body")
	return 0, io.EOF
}

// A session is never taken from where somebody else can put it.
func TestS22ForeignID(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, made := s.login("ann")
	text := token.Reveal()
	names := []string{"__Host-session", "session", "session_id", "sid", "token", "access_token", "authorization", "JSESSIONID"}
	query, form := url.Values{}, url.Values{}
	for _, name := range names {
		query.Set(name, text)
		form.Set(name, text)
	}
	for _, c := range []struct {
		why string
		r   *http.Request
	}{
		{"in the query", httptest.NewRequest(http.MethodGet, "/?"+query.Encode(), nil)},
		{"in the path", httptest.NewRequest(http.MethodGet, "/"+text+"/;jsessionid="+text, nil)},
		{"in a form", httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))},
		{"in JSON", httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"token":"`+text+`"}`))},
		{"in any body", httptest.NewRequest(http.MethodPost, "/", unread{t})},
		{"as user information", httptest.NewRequest(http.MethodGet, "http://"+text+":"+text+"@example.com/", nil)},
	} {
		c.r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, name := range names[1:] {
			c.r.Header.Set("X-"+name, text)
			c.r.AddCookie(&http.Cookie{Name: name, Value: text})
		}
		if got := s.ask(c.r); got.StatusCode != http.StatusUnauthorized || s.through != 0 {
			t.Errorf("%s: %d", c.why, got.StatusCode)
		}
	}
	for _, text := range []string{made.Handle, "chosen-by-somebody-else"} {
		if got := s.ask(get(text, "-")); got.StatusCode != http.StatusUnauthorized || !got.clears(t) {
			t.Errorf("%s as a token: %d", text, got.StatusCode)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/", unread{t})
	r.Header.Set("Cookie", "__Host-session="+text)
	if got := s.ask(r); got.StatusCode != http.StatusOK {
		t.Errorf("with a cookie: %d", got.StatusCode)
	}
}

func TestWhatEndsASession(t *testing.T) {
	second := func(_ any, err error) error { return err }
	for _, c := range []struct {
		why    string
		end    func(s *site, token string) error
		kind   sessionhttp.Kind
		reason session.Reason
	}{
		{"revoked", func(s *site, token string) error { return second(s.sessions.Revoke(t.Context(), "acme", token)) }, sessionhttp.Dead, session.Revoked},
		{"logged out", func(s *site, _ string) error { return second(s.sessions.LogoutAll(t.Context(), "acme", "ann", "")) }, sessionhttp.Dead, session.Epoch},
		{"disabled", func(s *site, _ string) error { return second(s.sessions.Disable(t.Context(), "acme", "ann")) }, sessionhttp.Dead, session.Disabled},
		{"rotated", func(s *site, token string) error {
			_, err := s.sessions.Rotate(t.Context(), "acme", token, session.RotateRequest{})
			s.now = s.now.Add(session.Grace)
			return err
		}, sessionhttp.Dead, session.Rotated},
		{"too old", func(s *site, _ string) error { s.now = s.now.Add(time.Hour); return nil }, sessionhttp.Dead, session.Expired},
		{"idle", func(s *site, _ string) error { s.now = s.now.Add(15 * time.Minute); return nil }, sessionhttp.Dead, session.IdleExpired},
		{"authenticated too long ago", func(s *site, _ string) error { s.now = s.now.Add(5*time.Minute + time.Millisecond); return nil }, sessionhttp.StepUp, session.AuthAge},
	} {
		var why sessionhttp.Refusal
		s := newSite(t, sessionhttp.Options{MaxAuthAge: 5 * time.Minute, NoSession: func(w http.ResponseWriter, r *http.Request, refusal sessionhttp.Refusal) {
			why = refusal
			refusal.ServeHTTP(w, r)
		}})
		token, _ := s.login("ann")
		if got := s.ask(get(token.Reveal(), "-")); got.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d before", c.why, got.StatusCode)
		}
		s.must(c.end(s, token.Reveal()))
		got := s.ask(get(token.Reveal(), "-"))
		if got.StatusCode != http.StatusUnauthorized || s.through != 1 || why.Kind != c.kind || why.Reason != c.reason {
			t.Errorf("%s: %d, %d through, %+v", c.why, got.StatusCode, s.through, why)
		}
		if got.clears(t) != (c.kind == sessionhttp.Dead) {
			t.Errorf("%s: Set-Cookie %q", c.why, got.Header["Set-Cookie"])
		}
		if c.kind == sessionhttp.Dead && (got.problem(t)["code"] != "unauthenticated" || strings.Contains(got.body, string(c.reason))) {
			t.Errorf("%s: the answer tells %s", c.why, got.body)
		}
	}
}

// A session that is good but not good enough is kept, and the client told what is missing.
func TestStepUp(t *testing.T) {
	for _, c := range []struct {
		why        string
		opts       sessionhttp.Options
		wait       time.Duration
		challenge  string
		aal, maxMS any
	}{
		{"a second factor", sessionhttp.Options{MinAAL: 2}, 0, `Bearer error="insufficient_user_authentication"`, 2.0, nil},
		{"a recent login", sessionhttp.Options{MaxAuthAge: time.Minute}, time.Minute + time.Millisecond, `Bearer error="insufficient_user_authentication", max_age="60"`, nil, 60000.0},
		{"both", sessionhttp.Options{MinAAL: 3, MaxAuthAge: time.Minute}, 0, `Bearer error="insufficient_user_authentication", max_age="60"`, 3.0, 60000.0},
	} {
		s := newSite(t, c.opts)
		token, _ := s.login("ann")
		s.now = s.now.Add(c.wait)
		for _, r := range []*http.Request{get(token.Reveal(), "-"), get("-", "Bearer "+token.Reveal())} {
			challenge := c.challenge
			if r.Header.Get("Authorization") == "" {
				challenge = "Bearer"
			}
			got := s.ask(r)
			members := got.problem(t)
			if got.StatusCode != http.StatusUnauthorized || s.through != 0 || got.clears(t) || got.Header.Get("WWW-Authenticate") != challenge {
				t.Errorf("%s: %d %v", c.why, got.StatusCode, got.Header)
			}
			if members["code"] != "insufficient_user_authentication" || members["min_aal"] != c.aal || members["max_auth_age_ms"] != c.maxMS {
				t.Errorf("%s: %s", c.why, got.body)
			}
		}
	}
	s := newSite(t, sessionhttp.Options{MinAAL: 2, MaxAuthAge: time.Minute})
	if got := s.ask(get("-", "Bearer "+s.dead())).Header.Get("WWW-Authenticate"); got != `Bearer error="invalid_token"` {
		t.Errorf("a dead token: %s", got)
	}
	token, _, err := s.sessions.Create(t.Context(), "acme", session.CreateRequest{UserID: "ann", AAL: 2})
	s.must(err)
	s.now = s.now.Add(time.Minute)
	if got := s.ask(get(token.Reveal(), "-")); got.StatusCode != http.StatusOK {
		t.Errorf("exactly what is demanded: %d", got.StatusCode)
	}
}

// A request that was under way while its session was stepped up comes with the old
// token: it is no stronger for that, and must not cost the user the new cookie.
func TestS24OldTokenStaysWeak(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, made := s.login("ann")
	s.now = s.now.Add(10 * time.Minute)
	rotated, err := s.sessions.Rotate(t.Context(), "acme", token.Reveal(), session.RotateRequest{AAL: 2})
	s.must(err)
	w := httptest.NewRecorder()
	s.guard.SetCookie(w, rotated.Token, rotated.Session)
	if got := w.Header().Get("Set-Cookie"); !strings.Contains(got, "; Max-Age=3000;") || !rotated.ExpiresAt.Equal(made.ExpiresAt) {
		t.Errorf("the new cookie of a session that ends in 50 minutes: %s", got)
	}
	if got := s.ask(get(token.Reveal(), "-")); got.StatusCode != http.StatusOK || !s.seen.OldToken {
		t.Errorf("the old token: %d %+v", got.StatusCode, s.seen)
	}
	s.guard = sessionhttp.New(s.sessions, sessionhttp.FixedTenant("acme"), sessionhttp.Options{MinAAL: 2})
	if got := s.ask(get(token.Reveal(), "-")); got.StatusCode != http.StatusUnauthorized || got.clears(t) {
		t.Errorf("the old token at the new level: %d %q", got.StatusCode, got.Header["Set-Cookie"])
	}
	if got := s.ask(get(rotated.Token.Reveal(), "-")); got.StatusCode != http.StatusOK {
		t.Errorf("the new token: %d", got.StatusCode)
	}
}

// A store that fails says nothing about the session: not through, but not logged out either.
func TestStoreFault(t *testing.T) {
	var told error
	own := func(w http.ResponseWriter, _ *http.Request, err error) {
		told = err
		w.WriteHeader(http.StatusTeapot)
	}
	never := func(http.ResponseWriter, *http.Request, sessionhttp.Refusal) {
		t.Error("a fault was taken for a refusal")
	}
	for _, c := range []struct {
		why    string
		opts   sessionhttp.Options
		status int
	}{
		{"by default", sessionhttp.Options{NoSession: never}, http.StatusServiceUnavailable},
		{"cookies alone", sessionhttp.Options{NoSession: never, From: sessionhttp.Cookie}, http.StatusServiceUnavailable},
		{"bearers alone", sessionhttp.Options{NoSession: never, From: sessionhttp.Bearer}, http.StatusServiceUnavailable},
		{"its own answer", sessionhttp.Options{NoSession: never, Fault: own}, http.StatusTeapot},
	} {
		s := newSite(t, c.opts)
		token, _ := s.login("ann")
		s.must(s.store.Close())
		got := s.ask(get(token.Reveal(), "Bearer "+token.Reveal()))
		if got.StatusCode != c.status || s.through != 0 || got.clears(t) || got.Header.Get("WWW-Authenticate") != "" || got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d, %d through, %v", c.why, got.StatusCode, s.through, got.Header)
		}
		if c.status == http.StatusTeapot {
			continue
		}
		if members := got.problem(t); members["code"] != "store_unavailable" || members["retryable"] != true || got.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %v %s", c.why, got.Header, got.body)
		}
	}
	if !errors.Is(told, keytype.ErrUnavailable) {
		t.Errorf("the application was told %v", told)
	}
}

// The answer to a client that left early, or a deadline, is no verdict either.
func TestEndOfTheRequestIsNoVerdict(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, _ := s.login("ann")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := s.ask(get(token.Reveal(), "-").WithContext(ctx))
	if got.StatusCode != http.StatusServiceUnavailable || s.through != 0 || got.clears(t) {
		t.Errorf("%d, %d through", got.StatusCode, s.through)
	}
}

// What is no token at all costs no read, so it is refused also while the store is down.
func TestNoTokenCostsNoRead(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	s.must(s.store.Close())
	for _, r := range []*http.Request{get("-", "-"), get("junk", "-"), get("-", "Bearer junk"), get("junk", "Bearer other")} {
		if got := s.ask(r); got.StatusCode >= 500 {
			t.Errorf("%v: %d", r.Header, got.StatusCode)
		}
	}
}

func TestOwnAnswer(t *testing.T) {
	s := newSite(t, sessionhttp.Options{NoSession: func(w http.ResponseWriter, r *http.Request, why sessionhttp.Refusal) {
		if why.Kind == sessionhttp.Ambiguous {
			why.ServeHTTP(w, r)
			return
		}
		http.Redirect(w, r, "/login", http.StatusSeeOther)
	}})
	for _, c := range []struct {
		why    string
		r      *http.Request
		status int
		clears bool
	}{
		{"nothing", get("-", "-"), http.StatusSeeOther, false},
		{"a dead cookie", get(s.dead(), "-"), http.StatusSeeOther, true},
		{"the default for some", get("a", "Bearer b"), http.StatusBadRequest, false},
	} {
		got := s.ask(c.r)
		if got.StatusCode != c.status || got.clears(t) != c.clears || got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", c.why, got.StatusCode, got.Header)
		}
		if redirected := got.StatusCode == http.StatusSeeOther; redirected != (got.Header.Get("Location") == "/login") || redirected == (got.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: %v", c.why, got.Header)
		}
	}
}

// An answer to a page's script may come after the user has logged in again: it
// must not clear the cookie of that login.
func TestLateAnswerClearsNoNewCookie(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	dead := s.dead()
	for mode, clears := range map[string]bool{"": true, "navigate": true, "cors": false, "same-origin": false, "no-cors": false, "websocket": false} {
		r := get(dead, "-")
		if mode != "" {
			r.Header.Set("Sec-Fetch-Mode", mode)
		}
		if got := s.ask(r); got.StatusCode != http.StatusUnauthorized || got.clears(t) != clears {
			t.Errorf("%q: %d %q", mode, got.StatusCode, got.Header["Set-Cookie"])
		}
	}
}

func TestAnswersVaryByWhatWasLookedAt(t *testing.T) {
	for from, want := range map[sessionhttp.Source]string{0: "Cookie, Authorization", sessionhttp.Cookie: "Cookie", sessionhttp.Bearer: "Authorization"} {
		s := newSite(t, sessionhttp.Options{From: from})
		token, _ := s.login("ann")
		for _, r := range []*http.Request{get(token.Reveal(), "Bearer "+token.Reveal()), get("-", "-")} {
			if got := s.ask(r).Header.Get("Vary"); got != want {
				t.Errorf("from %d: Vary %q, want %q", from, got, want)
			}
		}
	}
}

func TestUse(t *testing.T) {
	for _, polls := range []bool{false, true} {
		s := newSite(t, sessionhttp.Options{NoTouch: polls})
		token, _ := s.login("ann")
		for range 4 {
			s.now = s.now.Add(4 * time.Minute)
			s.ask(get(token.Reveal(), "-"))
		}
		if stays := s.through == 4; stays == polls {
			t.Errorf("NoTouch %v: through %d times in 16 minutes, idle after 10", polls, s.through)
		}
	}
}

func TestPermissionsStale(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, _ := s.login("ann")
	_, err := s.sessions.BumpPermissions(t.Context(), "acme", "ann")
	s.must(err)
	if s.ask(get(token.Reveal(), "-")); !s.seen.PermissionsStale {
		t.Errorf("the handler sees %+v", s.seen)
	}
}

// A token is good in its own tenant alone, however the request names one.
func TestS42TenantsNeverMeet(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, _ := s.login("ann")
	_, _, err := s.sessions.Create(t.Context(), "globex", session.CreateRequest{UserID: "ann"})
	s.must(err)
	tenants := map[string]string{"acme.example": "acme", "globex.example": "globex"}
	s.guard = sessionhttp.New(s.sessions, func(r *http.Request) string { return tenants[r.Host] }, sessionhttp.Options{})
	for host, status := range map[string]int{"acme.example": 200, "globex.example": 401, "nobody.example": 401} {
		r := get(token.Reveal(), "-")
		r.Host = host
		if got := s.ask(r); got.StatusCode != status {
			t.Errorf("%s: %d, want %d", host, got.StatusCode, status)
		}
	}
	s.must(s.store.Close())
	r := get(token.Reveal(), "-")
	r.Host = "nobody.example"
	if got := s.ask(r); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("the store was asked about no tenant: %d", got.StatusCode)
	}
}

func TestTokenOfTheRequest(t *testing.T) {
	s := newSite(t, sessionhttp.Options{})
	token, _ := s.login("ann")
	text := token.Reveal()
	for _, c := range []struct {
		why  string
		r    *http.Request
		want string
	}{
		{"a cookie", get(text, "-"), text},
		{"a bearer", get("-", "Bearer "+text), text},
		{"both", get(text, "Bearer "+text), text},
		{"not judged", get("junk", "-"), "junk"},
	} {
		if got, ok := s.guard.Token(c.r); !ok || got != c.want {
			t.Errorf("%s: %v", c.why, ok)
		}
	}
	for why, r := range map[string]*http.Request{"none": get("-", "-"), "two": get(text, "Bearer junk")} {
		if _, ok := s.guard.Token(r); ok {
			t.Errorf("%s: a token was chosen", why)
		}
	}
	keep, _ := s.guard.Token(get(text, "-"))
	_, err := s.sessions.LogoutAll(t.Context(), "acme", "ann", keep)
	s.must(err)
	if got := s.ask(get(text, "-")); got.StatusCode != http.StatusOK {
		t.Errorf("the kept session: %d", got.StatusCode)
	}
}

func TestWithoutAGuardThereIsNoSession(t *testing.T) {
	if v, ok := sessionhttp.FromContext(t.Context()); ok || v.Active {
		t.Errorf("%+v %v", v, ok)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	sessions := newSite(t, sessionhttp.Options{}).sessions
	acme := sessionhttp.FixedTenant("acme")
	for _, c := range []struct {
		why    string
		tenant func(*http.Request) string
		opts   sessionhttp.Options
	}{
		{"no tenant", nil, sessionhttp.Options{}},
		{"a source that there is not", acme, sessionhttp.Options{From: 4}},
		{"a level below 0", acme, sessionhttp.Options{MinAAL: -1}},
		{"a level that no session has", acme, sessionhttp.Options{MinAAL: session.MaxAAL + 1}},
		{"an age below 0", acme, sessionhttp.Options{MaxAuthAge: -1}},
		{"an age below 1 ms", acme, sessionhttp.Options{MaxAuthAge: time.Microsecond}},
		{"an age of over a year", acme, sessionhttp.Options{MaxAuthAge: session.MaxTTL + 1}},
		{"whatever SameSite the browser likes", acme, sessionhttp.Options{SameSite: http.SameSiteDefaultMode}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was taken", c.why)
				}
			}()
			sessionhttp.New(sessions, c.tenant, c.opts)
		}()
	}
	// What New takes, the manager takes: else every request would be a fault.
	for _, opts := range []sessionhttp.Options{{MinAAL: session.MaxAAL}, {MaxAuthAge: time.Millisecond}, {MaxAuthAge: session.MaxTTL}} {
		s := newSite(t, opts)
		token, _ := s.login("ann")
		if got := s.ask(get(token.Reveal(), "-")); got.StatusCode >= 500 {
			t.Errorf("%+v: %d", opts, got.StatusCode)
		}
	}
}

// A token is in no answer but the one that hands it out, and in nothing that an
// application can log without asking for it.
func TestS38CanaryIsNowhere(t *testing.T) {
	for _, closed := range []bool{false, true} {
		j := newJournal()
		s := newSite(t, sessionhttp.Options{
			MinAAL: 2,
			NoSession: func(w http.ResponseWriter, r *http.Request, why sessionhttp.Refusal) {
				j.note(r, "refused", why)
				why.ServeHTTP(w, r)
			},
			Fault: func(w http.ResponseWriter, r *http.Request, err error) {
				j.note(r, "fault", err)
				sessionhttp.Unavailable(w, r, err)
			},
		})
		weak, _ := s.login("ann")
		good, _, err := s.sessions.Create(t.Context(), "acme", session.CreateRequest{UserID: "bob", AAL: 2})
		s.must(err)
		tokens := []string{weak.Reveal(), good.Reveal(), s.dead()}
		if closed {
			s.must(s.store.Close())
		}
		for _, first := range append(tokens, "-") {
			for _, second := range append(tokens, "-") {
				w := httptest.NewRecorder()
				header := "Bearer " + second
				if second == "-" {
					header = "-"
				}
				s.guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					j.note(r, "through", s.guard)
				})).ServeHTTP(w, get(first, header))
				for _, token := range tokens {
					if said := fmt.Sprint(w.Header(), w.Body); strings.Contains(said, secretOf(token)) {
						t.Errorf("an answer tells the token: %s", said)
					}
				}
			}
		}
		for _, token := range tokens {
			if strings.Contains(j.String(), secretOf(token)) {
				t.Errorf("the log has the token: %s", j)
			}
		}
		if said := j.String(); !strings.Contains(said, "refused") || strings.Contains(said, "fault") != closed || strings.Contains(said, "through") == closed {
			t.Errorf("the log does not have everything, so this shows nothing: %s", said)
		}
	}
}
