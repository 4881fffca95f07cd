// Package httpapi decides what a request means and how an answer looks on the
// wire: it binds, calls a manager and writes. What is right or wrong is the
// managers' business, the contract is api/openapi.yaml.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/deadline"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
	"github.com/coordsvc/coordsvc/session"
)

// Observe is told of every answer: the route's pattern ("unmatched" where there
// is none), the method, the status and the time it took. No argument holds an id.
type Observe func(route, method string, status int, took time.Duration)

// A Meter is told what became of requests. No argument holds an id.
type Meter interface {
	Problem(route, method, code string)             // an answer is a problem
	Verified(outcome, source string, degraded bool) // verify answered: active, or the reason why not
	Unpropagated()                                  // a durable change did not reach the session cache
	Unrecorded()                                    // an event was not stored
}

// noMeter is told nothing.
type noMeter struct{}

func (noMeter) Problem(string, string, string) {}
func (noMeter) Verified(string, string, bool)  {}
func (noMeter) Unpropagated()                  {}
func (noMeter) Unrecorded()                    {}

// Deps are what the handlers call. A nil manager means that this mode lacks the
// feature: its routes answer 503 feature_unavailable. Auth is required.
type Deps struct {
	Auth     *auth.Manager
	Sessions *session.Manager
	Limits   *ratelimit.Limiter
	Leases   *lease.Manager
	Fences   *fencing.Manager
	Quotas   *quota.Manager

	RateLimitFields ratelimithttp.Fields // of the answers of checks

	Locks       *lock.Manager
	Idempotency *idempotency.Manager // of the keys that callers claim
	Receipts    *idempotency.Manager // of the header Idempotency-Key
	Sealer      Sealer               // of stored answers; required where Receipts are there
	Audit       *audit.Manager       // nothing is recorded where nil

	Mode    keytype.Mode
	Log     *slog.Logger // nothing is logged where nil
	Observe Observe      // nobody is told where nil
	Meter   Meter        // nobody is told where nil
	Trace   Tracer       // nothing is traced where nil
	// TraceIDs finds the trace of a request for the log, "" where there is none; nil finds none.
	TraceIDs func(ctx context.Context, header http.Header) (traceID, spanID string)

	Now     func() time.Time // time.Now where nil
	Timeout time.Duration    // a request's time with the stores, 0 = 8 s
}

type server struct{ Deps }

// New builds the handler of the API.
func New(deps Deps) http.Handler {
	s := &server{deps}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Observe == nil {
		s.Observe = func(string, string, int, time.Duration) {}
	}
	if s.Meter == nil {
		s.Meter = noMeter{}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Timeout == 0 {
		s.Timeout = 8 * time.Second
	}
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.HTTPErrorHandler = s.fail
	e.Use(s.edge, s.authenticate)
	s.register(e, s.traced(s.repeatable(s.routes())))
	return s.withDeadline(e)
}

// withDeadline bounds the request's time, and has the router see the path as it
// was sent: echo routes the decoded path where the encoded one is the default
// form, so that an id would be decoded never, once or twice depending on its characters.
func (s *server) withDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := &requestContext{Context: deadline.Context{Context: r.Context(), At: time.Now().Add(s.Timeout)}}
		defer ctx.End()
		r = r.WithContext(ctx) //nolint:contextcheck // it is made of the request's own
		if sent := r.URL.EscapedPath(); sent != r.URL.Path && r.URL.RawPath == "" {
			u := *r.URL
			u.RawPath = sent
			r.URL = &u
		}
		next.ServeHTTP(w, r)
	})
}

// patient is the request's context with so much more time, for a caller who asked to
// wait. The connection's deadline for the answer moves with it; the one for reading is
// over with the body, which was read before.
func (s *server) patient(c echo.Context, wait time.Duration) (context.Context, context.CancelFunc, error) {
	if wait <= 0 {
		return c.Request().Context(), func() {}, nil
	}
	until := time.Now().Add(wait + s.Timeout)
	err := http.NewResponseController(c.Response()).SetWriteDeadline(until.Add(writeTime))
	if err != nil && !errors.Is(err, http.ErrNotSupported) { // then nobody has set it
		return nil, nil, fmt.Errorf("move the connection's deadline: %w", err)
	}
	gone := requestOf(c.Request().Context()).Outer()
	if s.Trace != nil {
		gone = carried{gone, c.Request().Context()}
	}
	ctx, cancel := context.WithDeadline(gone, until)
	return ctx, cancel, nil
}

// A handler answers an authenticated caller.
type handler func(c echo.Context, key auth.Key) error

// A route is one method of one path.
type route struct {
	method, path string
	scope        auth.Scope // anyKey asks for none
	on           bool       // this mode has what the route needs
	handle       handler
	effect       bool     // when the outcome is unknown, something may have happened that matters
	query        []string // the query parameters it takes
}

// anyKey is the scope of routes that every key may use.
const anyKey auth.Scope = ""

// contract is the path of the one route that needs no key.
const contract = "/openapi.yaml"

// routes are all there are.
func (s *server) routes() []route {
	sessions, limits, leases, fences := s.Sessions != nil, s.Limits != nil, s.Leases != nil, s.Fences != nil
	return []route{
		{"POST", "/v1/sessions", auth.SessionsCreate, sessions, s.createSession, true, nil},
		{"POST", "/v1/sessions/verify", auth.SessionsVerify, sessions, s.verifySession, false, nil},
		{"POST", "/v1/sessions/rotate", auth.SessionsCreate, sessions, s.rotateSession, true, nil},
		{"POST", "/v1/sessions/revoke", auth.SessionsRevoke, sessions, s.revokeSession, true, nil},
		{"GET", "/v1/sessions/:handle", auth.SessionsRead, sessions, s.getSession, false, nil},
		{"DELETE", "/v1/sessions/:handle", auth.SessionsRevoke, sessions, s.deleteSession, true, nil},
		{"GET", "/v1/sessions/:handle/data", auth.SessionsData, sessions, s.getSessionData, false, nil},
		{"PUT", "/v1/sessions/:handle/data", auth.SessionsData, sessions, s.putSessionData, true, nil},
		{"GET", "/v1/users/:user_id/sessions", auth.SessionsRead, sessions, s.listSessions, false, []string{"cursor", "limit"}},
		{"POST", "/v1/users/:user_id/logout-all", auth.UsersRevoke, sessions, s.logoutAll, true, nil},
		{"POST", "/v1/users/:user_id/permission-epoch", auth.UsersPermissions, sessions, s.bumpPermissions, true, nil},
		{"POST", "/v1/users/:user_id/disable", auth.UsersDisable, sessions, s.disableUser, true, nil},
		{"POST", "/v1/users/:user_id/enable", auth.UsersDisable, sessions, s.enableUser, true, nil},
		{"POST", "/v1/tenant/logout-all", auth.UsersRevoke, sessions, s.logoutTenant, true, nil},
		{"DELETE", "/v1/users/:user_id", auth.UsersRevoke, sessions, s.eraseUser, true, nil},
		{"GET", "/v1/users/:user_id/epochs", auth.SessionsRead, sessions, s.getEpochs, false, nil},

		{"POST", "/v1/ratelimit/check", auth.RatelimitCheck, limits, s.check, false, nil},
		{"POST", "/v1/ratelimit/peek", auth.RatelimitCheck, limits, s.peek, false, nil},
		{"POST", "/v1/ratelimit/refund", auth.RatelimitCheck, limits, s.refund, true, nil},
		{"POST", "/v1/ratelimit/release", auth.RatelimitCheck, limits, s.releaseSlot, true, nil},
		{"POST", "/v1/ratelimit/reset", auth.RatelimitAdmin, limits, s.resetLimits, true, nil},
		{"POST", "/v1/ratelimit/token-leases", auth.RatelimitCheck, limits, s.leaseTokens, false, nil},
		{"POST", "/v1/ratelimit/token-leases/return", auth.RatelimitCheck, limits, s.returnTokens, true, nil},
		{"GET", "/v1/ratelimit/policies", auth.RatelimitCheck, limits, s.listPolicies, false, nil},
		{"GET", "/v1/ratelimit/policies/:name", auth.RatelimitCheck, limits, s.getPolicy, false, nil},

		{"GET", "/v1/leases", auth.LeasesRead, leases, s.listLeases, false, []string{"owner", "cursor", "limit"}},
		{"GET", "/v1/leases/:resource", auth.LeasesRead, leases, s.getLease, false, nil},
		{"POST", "/v1/leases/:resource/acquire", auth.LeasesUse, leases, s.acquireLease, true, nil},
		{"POST", "/v1/leases/:resource/renew", auth.LeasesUse, leases, s.renewLease, true, nil},
		{"POST", "/v1/leases/:resource/release", auth.LeasesUse, leases, s.releaseLease, true, nil},
		{"POST", "/v1/leases/acquire-set", auth.LeasesUse, leases, s.acquireLeaseSet, true, nil},
		{"POST", "/v1/leases/renew-set", auth.LeasesUse, leases, s.renewLeaseSet, true, nil},
		{"POST", "/v1/leases/release-set", auth.LeasesUse, leases, s.releaseLeaseSet, true, nil},
		{"POST", "/v1/leases/:resource/force-release", auth.LeasesForce, leases, s.forceReleaseLease, true, nil},

		{"GET", "/v1/fences/:resource", auth.FencingRead, fences, s.getFence, false, nil},
		{"POST", "/v1/fences/:resource/admit", auth.FencingWrite, fences, s.admit, true, nil},
		{"POST", "/v1/fences/:resource/reset", auth.LeasesForce, fences, s.resetFence, true, nil},
		{"GET", "/v1/protected/:resource/:key", auth.FencingRead, fences, s.getProtected, false, nil},
		{"PUT", "/v1/protected/:resource/:key", auth.FencingWrite, fences, s.putProtected, true, nil},

		{"GET", "/v1/quotas/:name/:subject", auth.QuotasUse, s.Quotas != nil, s.getQuota, false, nil},
		{"PUT", "/v1/quotas/:name/:subject", auth.QuotasAdmin, s.Quotas != nil, s.setQuota, true, nil},
		{"POST", "/v1/quotas/:name/:subject/consume", auth.QuotasUse, s.Quotas != nil, s.consumeQuota, true, nil},
		{"POST", "/v1/quotas/:name/:subject/reserve", auth.QuotasUse, s.Quotas != nil, s.reserveQuota, true, nil},
		{"POST", "/v1/quotas/:name/:subject/reservations/:id/commit", auth.QuotasUse, s.Quotas != nil, s.commitQuota, true, nil},
		{"POST", "/v1/quotas/:name/:subject/reservations/:id/cancel", auth.QuotasUse, s.Quotas != nil, s.cancelQuota, true, nil},

		{"GET", "/v1/events", auth.AuditRead, s.Audit != nil, s.listEvents, false, []string{"cursor", "limit"}},
		{"POST", "/v1/idempotency/:key/claim", auth.IdempotencyUse, s.Idempotency != nil, s.claimKey, true, nil},
		{"POST", "/v1/idempotency/:key/extend", auth.IdempotencyUse, s.Idempotency != nil, s.extendClaim, true, nil},
		{"POST", "/v1/idempotency/:key/complete", auth.IdempotencyUse, s.Idempotency != nil, s.completeClaim, true, nil},
		{"POST", "/v1/idempotency/:key/abandon", auth.IdempotencyUse, s.Idempotency != nil, s.abandonClaim, true, nil},

		{"POST", "/v1/locks/:name/acquire", auth.LocksUse, s.Locks != nil, s.acquireLock, true, nil},
		{"POST", "/v1/locks/:name/renew", auth.LocksUse, s.Locks != nil, s.renewLock, true, nil},
		{"POST", "/v1/locks/:name/release", auth.LocksUse, s.Locks != nil, s.releaseLock, true, nil},

		{"GET", "/v1/key-types", anyKey, true, s.listKeyTypes, false, nil},
		{"GET", "/v1/api-keys", auth.KeysAdmin, true, s.listAPIKeys, false, nil},
		{"POST", "/v1/api-keys", auth.KeysAdmin, true, s.createAPIKey, true, nil},
		{"DELETE", "/v1/api-keys/:id", auth.KeysAdmin, true, s.deleteAPIKey, true, nil},
		{"GET", contract, anyKey, true, s.getContract, false, nil},
	}
}

// register hands the routes to the router. What lies below a last parameter is
// named unknown, or echo would take it for the rest of the parameter's value.
func (s *server) register(e *echo.Echo, routes []route) {
	for _, r := range routes {
		e.Add(r.method, r.path, s.audited(r))
		below := func(other route) bool { return strings.HasPrefix(other.path, r.path+"/") }
		if last := path.Base(r.path); last[0] == ':' && !slices.ContainsFunc(routes, below) {
			e.RouteNotFound(r.path+"/*", echo.NotFoundHandler)
		}
	}
}

// serve checks what is the same for all routes, then handles the request.
func (r route) serve(c echo.Context) error {
	of := requestOf(c.Request().Context())
	key := of.caller // absent on the one open route
	if r.scope != anyKey && !key.Allows(r.scope) {
		return &scopeError{r.scope}
	}
	if !r.on {
		return &refusal{code: api.CodeFeatureUnavailable, detail: "this mode does not have what the route needs, see GET /v1/key-types"}
	}
	if err := checkHead(c, r); err != nil {
		return err
	}
	if !r.hasBody() {
		if err := bindOptional(c, &struct{}{}); err != nil {
			return err
		}
	}
	of.effect = r.effect
	return r.handle(c, key)
}

// hasBody: a GET takes no field, nor does a DELETE but that of a user, which says why.
func (r route) hasBody() bool {
	return r.method != http.MethodGet && (r.method != http.MethodDelete || r.path == "/v1/users/:user_id")
}

// checkHead decodes the ids in the path, exactly once, and refuses what the route would ignore.
func checkHead(c echo.Context, r route) error {
	values := c.ParamValues()
	for i, raw := range values {
		name := c.ParamNames()[i]
		id, err := url.PathUnescape(raw)
		if err != nil {
			return malformed(name, "has an invalid percent escape")
		}
		if err := keytype.CheckID(name, id); err != nil {
			return err
		}
		values[i] = id
	}
	c.SetParamValues(values...)
	if len(c.Request().Header.Values(keyHeader)) > 0 && !r.takesKey() {
		return malformed(keyHeader, "is a header that the route does not take")
	}
	return checkQuery(c.Request().URL.RawQuery, r.query)
}
