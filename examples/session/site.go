package main

import (
	"crypto/subtle"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

const tenant = "demo"

// passwords stands for what checks them: never keep passwords like this.
var passwords = map[string]string{"ann": "demo", "bob": "demo"}

type site struct {
	sessions *session.Manager
	guard    *sessionhttp.Guard
	log      *slog.Logger
}

func newSite(store session.Store, log *slog.Logger, now func() time.Time) http.Handler {
	s := &site{sessions: session.New(store, session.Options{RouteKey: newRouteKey(), Now: now}), log: log}
	s.guard = s.newGuard(0, now)
	recent := s.newGuard(5*time.Minute, now) // whoever finds a browser open cannot log its user out elsewhere

	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", form)
	mux.HandleFunc("POST /login", s.login)
	mux.Handle("GET /{$}", s.guard.Handler(http.HandlerFunc(home)))
	mux.HandleFunc("GET /confirm", form)
	mux.Handle("POST /confirm", s.guard.Handler(http.HandlerFunc(s.confirm)))
	mux.Handle("POST /logout", s.guard.Handler(http.HandlerFunc(s.logout)))
	mux.Handle("POST /logout-others", recent.Handler(http.HandlerFunc(s.logoutOthers)))
	return http.NewCrossOriginProtection().Handler(mux) // around all of it, the login too
}

func (s *site) newGuard(maxAuthAge time.Duration, now func() time.Time) *sessionhttp.Guard {
	return sessionhttp.New(s.sessions, sessionhttp.FixedTenant(tenant), sessionhttp.Options{
		From:       sessionhttp.Cookie,
		MaxAuthAge: maxAuthAge,
		NoSession: func(w http.ResponseWriter, r *http.Request, why sessionhttp.Refusal) {
			if why.Kind == sessionhttp.StepUp {
				http.Redirect(w, r, "/confirm", http.StatusSeeOther)
				return
			}
			http.Redirect(w, r, "/login", http.StatusSeeOther)
		},
		Fault: s.fault,
		Now:   now,
	})
}

// fault answers where the store failed. Nobody is logged out by that.
func (s *site) fault(w http.ResponseWriter, r *http.Request, err error) {
	s.log.ErrorContext(r.Context(), "sessions", "error", err)
	sessionhttp.Unavailable(w, r, err)
}

// authenticate reads the form and reports whether its password is the user's.
func authenticate(w http.ResponseWriter, r *http.Request) (user string, ok bool) {
	r.Body = http.MaxBytesReader(w, r.Body, 4096)
	user = r.PostFormValue("user")
	want, known := passwords[user]
	right := subtle.ConstantTimeCompare([]byte(r.PostFormValue("password")), []byte(want)) == 1
	if !known || !right {
		http.Error(w, "wrong user or password", http.StatusForbidden)
		return "", false
	}
	return user, true
}

func (s *site) login(w http.ResponseWriter, r *http.Request) {
	user, ok := authenticate(w, r)
	if !ok {
		return
	}
	if old, ok := s.guard.Token(r); ok { // whoever was logged in here before, or put a token here: first, or a failure left two sessions
		if _, err := s.sessions.Revoke(r.Context(), tenant, old); err != nil {
			s.fault(w, r, err)
			return
		}
	}
	token, made, err := s.sessions.Create(r.Context(), tenant, session.CreateRequest{UserID: user, AMR: []string{"pwd"}})
	switch {
	case errors.Is(err, session.ErrUserDisabled):
		http.Error(w, "the account is disabled", http.StatusForbidden)
		return
	case err != nil:
		s.fault(w, r, err)
		return
	}
	s.guard.SetCookie(w, token, made)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// confirm takes the password again: the session stays, under a new token.
func (s *site) confirm(w http.ResponseWriter, r *http.Request) {
	user, ok := authenticate(w, r)
	if !ok {
		return
	}
	v, _ := sessionhttp.FromContext(r.Context())
	if user != v.Session.UserID {
		http.Error(w, "somebody else is logged in", http.StatusForbidden)
		return
	}
	token, _ := s.guard.Token(r)
	rotated, err := s.sessions.Rotate(r.Context(), tenant, token, session.RotateRequest{AMR: []string{"pwd"}})
	switch {
	case errors.Is(err, session.ErrNotActive): // ended or rotated meanwhile
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	case err != nil:
		s.fault(w, r, err)
		return
	}
	s.guard.SetCookie(w, rotated.Token, rotated.Session)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logout keeps the cookie where the session could not be ended: without it the
// user could not try again.
func (s *site) logout(w http.ResponseWriter, r *http.Request) {
	v, _ := sessionhttp.FromContext(r.Context())
	_, err := s.sessions.RevokeHandle(r.Context(), tenant, v.Session.Handle)
	if err != nil && !errors.Is(err, session.ErrNotFound) {
		s.fault(w, r, err)
		return
	}
	s.guard.ClearCookie(w)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// logoutOthers ends all sessions of the user but this one, which must not have
// ended meanwhile.
func (s *site) logoutOthers(w http.ResponseWriter, r *http.Request) {
	v, _ := sessionhttp.FromContext(r.Context())
	this, _ := s.guard.Token(r)
	_, err := s.sessions.LogoutAll(r.Context(), tenant, v.Session.UserID, this)
	switch {
	case errors.Is(err, session.ErrNotActive): // ended or rotated meanwhile: nobody was logged out
		http.Error(w, "nobody was logged out: reload, and try again", http.StatusConflict)
		return
	case err != nil:
		s.fault(w, r, err)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

var page = template.Must(template.New("page").Parse(`<!doctype html><title>sessions</title>
{{if .Active -}}
<p>Hello {{.Session.UserID}}, you are logged in until {{.Session.ExpiresAt.Format "15:04 MST"}}.</p>
<form method="post"><button formaction="/logout">log out</button> <button formaction="/logout-others">log out elsewhere</button></form>
{{- else -}}
<form method="post"><input name="user" autofocus> <input name="password" type="password"> <button>log in</button></form>
{{- end}}
`))

func form(w http.ResponseWriter, _ *http.Request) { show(w, session.Verdict{}) }

func home(w http.ResponseWriter, r *http.Request) {
	v, _ := sessionhttp.FromContext(r.Context())
	show(w, v)
}

func show(w http.ResponseWriter, v session.Verdict) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, v) // fails where the client is gone
}
