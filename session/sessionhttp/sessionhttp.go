package sessionhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// verifier is a [session.Manager], or a client that asks one.
type verifier interface {
	Verify(ctx context.Context, tenant, token string, req session.VerifyRequest) (session.Verdict, error)
}

// Options of a guard; the zero value takes cookies and bearer headers, demands no
// more than an active session and answers with problem+json.
type Options struct {
	From       Source        // where tokens may come from, 0 = Cookie | Bearer
	MinAAL     int           // 1 to session.MaxAAL, 0 = any
	MaxAuthAge time.Duration // 1 ms to session.MaxTTL since the user authenticated, 0 = any
	NoTouch    bool          // requests do not count as a use, as for pages that poll
	SameSite   http.SameSite // of the cookie: Lax, Strict or None, 0 = Lax

	// NoSession answers a request without a good session, [Refusal.ServeHTTP] where
	// nil. A dead cookie is cleared by then. Without a status of its own net/http
	// would answer 200.
	NoSession func(w http.ResponseWriter, r *http.Request, why Refusal)
	// Fault answers a request whose session could not be looked at, [Unavailable]
	// where nil. It is the place to log the error, which never holds a token. It
	// must not send the user to log in: the session may be as good as ever.
	Fault func(w http.ResponseWriter, r *http.Request, err error)

	Now func() time.Time // for the age of cookies; time.Now where nil
}

// A Guard lets requests through that come with a good session. Routes that demand
// more of it than others have a guard of their own.
type Guard struct {
	sessions verifier
	tenant   func(*http.Request) string
	demand   session.VerifyRequest
	opts     Options
}

// FixedTenant is the tenant of all requests of a service that has only one.
func FixedTenant(tenant string) func(*http.Request) string {
	return func(*http.Request) string { return tenant }
}

// New makes a guard. It panics without a tenant function, and where an option is
// out of its range.
//
// The tenant of a request must follow from its host, as its cookie does: a cookie
// that is good in one tenant is dead in the others, and is cleared there. A request
// whose tenant is "" has no session.
func New(sessions verifier, tenant func(*http.Request) string, opts Options) *Guard {
	if opts.From == 0 {
		opts.From = Cookie | Bearer
	}
	if opts.SameSite == 0 {
		opts.SameSite = http.SameSiteLaxMode
	}
	if opts.NoSession == nil {
		opts.NoSession = func(w http.ResponseWriter, r *http.Request, why Refusal) { why.ServeHTTP(w, r) }
	}
	if opts.Fault == nil {
		opts.Fault = Unavailable
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.check()
	if tenant == nil {
		panic("sessionhttp: no tenant function")
	}
	return &Guard{
		sessions: sessions,
		tenant:   tenant,
		demand:   session.VerifyRequest{NoTouch: opts.NoTouch, MinAAL: opts.MinAAL, MaxAuthAge: opts.MaxAuthAge},
		opts:     opts,
	}
}

func (o Options) check() {
	switch {
	case o.From&^(Cookie|Bearer) != 0:
		panic(fmt.Sprintf("sessionhttp: no source has the number %d", o.From))
	case o.MinAAL < 0 || o.MinAAL > session.MaxAAL:
		panic(fmt.Sprintf("sessionhttp: the level %d is not one of 1 to %d", o.MinAAL, session.MaxAAL))
	case o.MaxAuthAge != 0 && (o.MaxAuthAge < time.Millisecond || o.MaxAuthAge > session.MaxTTL):
		panic(fmt.Sprintf("sessionhttp: the age %s is not between 1 ms and %s", o.MaxAuthAge, session.MaxTTL))
	case o.SameSite < http.SameSiteLaxMode || o.SameSite > http.SameSiteNoneMode:
		panic("sessionhttp: SameSite must be Lax, Strict or None")
	}
}

// Handler lets requests with a good session through to next.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r, ok := g.Check(w, r); ok {
			next.ServeHTTP(w, r)
		}
	})
}

// Check is what [Guard.Handler] does, for routers with handlers of another form.
// Where it returns true, the request it returns has the verdict in its context and
// goes on; where false, the request has been answered.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	w.Header().Add("Vary", g.opts.From.headers()) // no cache may serve one user's page to another
	shown := g.opts.From.read(r)
	v, err := g.verify(r, shown)
	switch {
	case err != nil:
		w.Header().Set("Cache-Control", "no-store")
		g.opts.Fault(w, r, err)
	case !v.Active:
		g.refuse(w, r, shown, v.Reason)
	default:
		return r.WithContext(context.WithValue(r.Context(), contextKey{}, v)), true
	}
	return r, false
}

// Token returns the token that the request comes with, good or not, for the calls
// that need one: to keep this session in a logout-all, to rotate it. It is false
// where the guard would not look at any.
func (g *Guard) Token(r *http.Request) (string, bool) {
	shown := g.opts.From.read(r)
	return shown.token, shown.usable()
}

// verify asks about the one token that was shown, if there is one.
func (g *Guard) verify(r *http.Request, shown presented) (session.Verdict, error) {
	tenant := g.tenant(r)
	if tenant == "" || !shown.usable() {
		return session.Verdict{Reason: session.Unknown}, nil
	}
	return g.sessions.Verify(r.Context(), tenant, shown.token, g.demand)
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, shown presented, reason session.Reason) {
	why := Refusal{Kind: kindOf(shown, reason), from: g.opts.From, bearer: shown.bearer, demand: g.demand}
	if shown.usable() {
		why.Reason = reason
	}
	w.Header().Set("Cache-Control", "no-store")
	if why.Kind == Dead && shown.cookie && !inBackground(r) {
		g.ClearCookie(w)
	}
	g.opts.NoSession(w, r, why)
}

// inBackground reports whether a browser says that a page's script or a part of
// the page made the request. Its answer may arrive when the user has logged in
// again meanwhile, and would clear the new cookie; a dead one is only clutter.
func inBackground(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return mode != "" && mode != "navigate"
}

type contextKey struct{}

// FromContext returns the verdict on the session of a request that a guard let
// through: the session, and whether its permissions are stale. It is false, with
// a verdict that is not active, where no guard did.
func FromContext(ctx context.Context) (session.Verdict, bool) {
	v, ok := ctx.Value(contextKey{}).(session.Verdict)
	return v, ok
}
