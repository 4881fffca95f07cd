package sessionhttp

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// CookieName is the name of the cookie that holds the token.
const CookieName = "__Host-session"

// SetCookie hands the session's token to the browser, for as long as the session
// can live: Max-Age is what is left until its absolute expiry, in seconds, rounded
// up. A session that is over, or the zero Token, clears the cookie. It must come before the answer's
// status and body, and keeps the answer out of caches.
func (g *Guard) SetCookie(w http.ResponseWriter, token session.Token, s session.Session) {
	left := s.ExpiresAt.Sub(g.opts.Now())
	if left <= 0 || token.Reveal() == "" {
		g.ClearCookie(w)
		return
	}
	seconds := (left + time.Second - 1) / time.Second // never 0, which would mean: until the browser closes
	g.put(w, token.Reveal(), int(seconds))
}

// ClearCookie takes the token off the browser. The session itself lives on until
// it is revoked, so revoke it first, and keep the cookie where that failed: the
// user could not try again without it.
func (g *Guard) ClearCookie(w http.ResponseWriter) { g.put(w, "", -1) }

// put replaces what the answer said about the cookie before: one that names a
// cookie twice leaves it to the browser which counts (RFC 6265, 4.1.1).
func (g *Guard) put(w http.ResponseWriter, value string, maxAge int) {
	h := w.Header()
	h["Set-Cookie"] = slices.DeleteFunc(h["Set-Cookie"], func(line string) bool {
		return strings.HasPrefix(line, CookieName+"=")
	})
	h.Set("Cache-Control", "no-store")
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // SameSite is not a constant; Options.check lets no unset one through
		Name: CookieName, Value: value, MaxAge: maxAge,
		Path: "/", Secure: true, HttpOnly: true, SameSite: g.opts.SameSite,
	})
}
