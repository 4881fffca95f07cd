package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

// A kind is what every problem of one code has in common.
type kind struct {
	status    int
	title     string
	retryable bool
}

var kinds = map[api.ProblemCode]kind{
	api.CodeInvalidRequest:       {http.StatusBadRequest, "the request is malformed", false},
	api.CodeUnauthenticated:      {http.StatusUnauthorized, "a valid API key is required", false},
	api.CodeForbiddenScope:       {http.StatusForbidden, "the key lacks the scope", false},
	api.CodeUserDisabled:         {http.StatusForbidden, "the user is disabled", false},
	api.CodeNotFound:             {http.StatusNotFound, "there is no such thing", false},
	api.CodeMethodNotAllowed:     {http.StatusMethodNotAllowed, "the route does not take this method", false},
	api.CodeLeaseHeld:            {http.StatusConflict, "the resource is held", true},
	api.CodeRequestExpired:       {http.StatusConflict, "the request has expired", false},
	api.CodeLeaseLost:            {http.StatusConflict, "the lease is lost", false},
	api.CodeStaleFencingToken:    {http.StatusConflict, "the fencing token is stale", false},
	api.CodeSessionLimit:         {http.StatusConflict, "the user has too many sessions", false},
	api.CodeSessionNotActive:     {http.StatusConflict, "the session is not active", false},
	api.CodeReservationExpired:   {http.StatusConflict, "the reservation has expired", false},
	api.CodeIdempotencyInFlight:  {http.StatusConflict, "the request is being carried out", true},
	api.CodeLockHeld:             {http.StatusConflict, "the lock is held", true},
	api.CodeLockLost:             {http.StatusConflict, "the lock is lost", false},
	api.CodeClaimLost:            {http.StatusConflict, "the claim is lost", false},
	api.CodeLeaseExpired:         {http.StatusGone, "the lease has expired", false},
	api.CodeEpochMismatch:        {http.StatusPreconditionFailed, "the user's session version is another", false},
	api.CodeVersionMismatch:      {http.StatusPreconditionFailed, "the version is another", false},
	api.CodeBodyTooLarge:         {http.StatusRequestEntityTooLarge, "the body is too large", false},
	api.CodeUnsupportedMediaType: {http.StatusUnsupportedMediaType, "the body is not JSON in UTF-8", false},
	api.CodeInvalidValue:         {http.StatusUnprocessableEntity, "a value is not allowed", false},
	api.CodeCostExceedsCapacity:  {http.StatusUnprocessableEntity, "the cost can never pass", false},
	api.CodeSequenceReused:       {http.StatusUnprocessableEntity, "the sequence was used for another value", false},
	api.CodePreconditionRequired: {http.StatusPreconditionRequired, "the request must name a version", false},
	api.CodeIdempotencyMismatch:  {http.StatusUnprocessableEntity, "the request had another first result", false},
	api.CodeQuotaExceeded:        {http.StatusTooManyRequests, "the quota is exceeded", true},
	api.CodeRateLimited:          {http.StatusTooManyRequests, "the rate limit is reached", true},
	api.CodeInternal:             {http.StatusInternalServerError, "the service has a defect", false},
	api.CodeClockSkew:            {http.StatusServiceUnavailable, "the node's clock is too far off", true},
	api.CodeStoreUnavailable:     {http.StatusServiceUnavailable, "the store is unavailable", true},
	api.CodeOutcomeUnknown:       {http.StatusServiceUnavailable, "the outcome is unknown", false},
	api.CodeFeatureUnavailable:   {http.StatusServiceUnavailable, "the feature is not available in this mode", false},
}

// refusals are errors that always mean the same to the caller.
var refusals = []struct {
	err    error
	code   api.ProblemCode
	detail string
	field  string
}{
	{auth.ErrUnauthenticated, api.CodeUnauthenticated, "send Authorization: Bearer csk_… with a key that is known, not expired and not revoked", ""},
	{auth.ErrNotFound, api.CodeNotFound, "no such API key", ""},
	{session.ErrNotFound, api.CodeNotFound, "no such session", ""},
	{session.ErrUserDisabled, api.CodeUserDisabled, "the user must be enabled first", ""},
	{session.ErrEpochMismatch, api.CodeEpochMismatch, "the user has to authenticate again", ""},
	{session.ErrNotActive, api.CodeSessionNotActive, "the session is dead, or this is not its current token; nothing has changed", ""},
	{session.ErrLimit, api.CodeSessionLimit, "the user has max_sessions live sessions; nobody was logged out", ""},
	{session.ErrDataVersion, api.CodeVersionMismatch, "If-Match names another version; read again", ""},
	{ratelimit.ErrUnknownPolicy, api.CodeNotFound, "no such policy", ""},
	{ratelimit.ErrMismatch, api.CodeIdempotencyMismatch, "the request_id came with another policy, other descriptors or another cost before; nothing was done", "request_id"},
	{ratelimit.ErrNoSlots, api.CodeInvalidValue, "policy has no limit with slots", "policy"},
	{lease.ErrNotFound, api.CodeNotFound, "the resource was never leased", ""},
	{lease.ErrLost, api.CodeLeaseLost, "another grant than the named one, or none, is the latest", ""},
	{lease.ErrExpired, api.CodeLeaseExpired, "the grant has expired: acquire the resource again", ""},
	{lease.ErrRequestExpired, api.CodeRequestExpired, "the grant of this request id has ended, or not_after is past; nothing has changed", ""},
	{lease.ErrMismatch, api.CodeIdempotencyMismatch, "the request_id was granted one of the resources before, in another set or by itself", ""},
	{lease.ErrClockSkew, api.CodeClockSkew, "this node cannot tell whether the lease has expired: ask another node, or later", ""},
	{fencing.ErrNotFound, api.CodeNotFound, "nothing was written here", ""},
	{fencing.ErrSequenceReused, api.CodeSequenceReused, "this token and sequence already wrote another value", ""},
	{fencing.ErrNotGranted, api.CodeInvalidValue, "fencing_token is larger than any that was granted", "fencing_token"},
	{fencing.ErrModeFixed, api.CodeInvalidValue, "mode is not the one that the record's first write fixed", "mode"},
	{fencing.ErrExhausted, api.CodeInvalidValue, "resource has no fencing token left: it is never granted again", "resource"},
	{quota.ErrUnset, api.CodeNotFound, "the quota was never set", ""},
	{quota.ErrNoReservation, api.CodeNotFound, "no such reservation", ""},
	{quota.ErrExpired, api.CodeReservationExpired, "the reservation has expired: reserve again", ""},
	{quota.ErrMismatch, api.CodeIdempotencyMismatch, "the same request, or the end of the same reservation, came with another amount before", ""},
	{lock.ErrLost, api.CodeLockLost, "the lock has ended, or is somebody else's", ""},
	{idempotency.ErrLost, api.CodeClaimLost, "another claim is the latest, or this one, or its record, has ended", ""},
	{idempotency.ErrClockSkew, api.CodeClockSkew, "this node cannot tell whether the latest claim's lock, or the record, is over: ask another node, or later", ""},
	{idempotency.ErrMismatch, api.CodeIdempotencyMismatch, "the key came with another fingerprint before, or the claim with another response", ""},
}

// A refusal is what this package itself refuses.
type refusal struct {
	code   api.ProblemCode
	detail string
	field  string
}

func (e *refusal) Error() string { return string(e.code) + ": " + e.detail }

// malformed refuses a request whose field, where one is named, cannot be read.
func malformed(field, reason string) *refusal {
	detail := reason
	if field != "" {
		detail = field + " " + reason
	}
	return &refusal{api.CodeInvalidRequest, detail, field}
}

// A scopeError refuses a key that lacks the scope.
type scopeError struct{ scope auth.Scope }

func (e *scopeError) Error() string { return "the key lacks the scope " + string(e.scope) }

// fail answers with what the error means. It is the only place that turns
// errors into statuses, and no text of an error of another package gets through it.
func (s *server) fail(err error, c echo.Context) {
	p := s.problemOf(err, c)
	if !hungUp(c) {
		s.Meter.Problem(pattern(c), c.Request().Method, string(p.Code))
	}
	if s.Trace != nil {
		requestOf(c.Request().Context()).code = p.Code
	}
	s.log(err, p, c)
	if c.Response().Committed {
		return
	}
	var body any = p
	if limited, ok := errors.AsType[*limitedError](err); ok {
		body = limited.problem(p)
	}
	if err := writeAs(c, int(p.Status), mimeProblem, body); err != nil {
		s.Log.DebugContext(c.Request().Context(), "the answer was not written", s.named(c.Request().Context(), c, "error", err)...)
	}
}

// problemOf says what the error means, and sets the headers that go with it.
func (s *server) problemOf(err error, c echo.Context) api.Problem {
	p := api.Problem{RequestID: requestID(c)}
	s.describe(err, c, &p)
	if e, ok := errors.AsType[*ratelimit.ClosedError](err); ok {
		closed(c, e, &p)
	}
	k := kinds[p.Code]
	p.Type, p.Title, p.Status, p.Retryable = "urn:coordsvc:problem:"+string(p.Code), k.title, int64(k.status), k.retryable
	if e, ok := errors.AsType[*quota.ExceededError](err); ok && e.Never {
		p.Retryable = false
	}
	switch p.Code { //nolint:exhaustive // the codes that come with a header; a refused check has its own already
	case api.CodeUnauthenticated:
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, "Bearer")
	case api.CodeStoreUnavailable, api.CodeClockSkew:
		c.Response().Header().Set(echo.HeaderRetryAfter, "1")
	case api.CodeLeaseHeld, api.CodeLockHeld, api.CodeIdempotencyInFlight, api.CodeQuotaExceeded:
		if p.RetryAfterMS == nil { // later is no better
			break
		}
		c.Response().Header().Set(echo.HeaderRetryAfter, retryAfter(millis(orZero(p.RetryAfterMS))))
	}
	return p
}

func (s *server) describe(err error, c echo.Context, p *api.Problem) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			p.Code, p.Detail, p.Field = r.code, r.detail, r.field
			return
		}
	}
	if describeTyped(err, p) {
		return
	}
	none := errors.Is(err, keytype.ErrUnavailable) // also where it was for want of time: the store knows what it sent
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	unknown := errors.Is(err, keytype.ErrOutcomeUnknown) || ended && !none
	effect := requestOf(c.Request().Context()).effect
	switch {
	case unknown && effect: // also where a later part of it certainly had no effect
		p.Code, p.Detail = api.CodeOutcomeUnknown, "it may have happened: read the state, or repeat with the same request_id where the route takes one"
	case unknown, none:
		p.Code, p.Detail = api.CodeStoreUnavailable, "try again later"
	default:
		p.Code, p.Detail = api.CodeInternal, "the defect is logged under this request id"
	}
}

// describeTyped knows the errors that carry data.
func describeTyped(err error, p *api.Problem) bool {
	if e, ok := errors.AsType[*refusal](err); ok {
		p.Code, p.Detail, p.Field = e.code, e.detail, e.field
	} else if e, ok := errors.AsType[*scopeError](err); ok {
		p.Code, p.Detail, p.Scope = api.CodeForbiddenScope, "the key lacks the scope "+string(e.scope), string(e.scope)
	} else if e, ok := errors.AsType[*keytype.ValueError](err); ok {
		p.Code, p.Detail, p.Field = api.CodeInvalidValue, e.Error(), e.Field
	} else if e, ok := errors.AsType[*ratelimit.CostError](err); ok {
		p.Code, p.Detail, p.Limit = api.CodeCostExceedsCapacity, "the cost exceeds the capacity of the limit "+e.LimitName, &e.Capacity
	} else if e, ok := errors.AsType[*limitedError](err); ok {
		p.Code, p.Detail, p.RetryAfterMS = api.CodeRateLimited, "the limit "+e.decision.Limiting+" of the policy "+e.decision.Policy+" is reached", &e.decision.RetryAfterMS
	} else if e, ok := errors.AsType[*lease.HeldError](err); ok {
		p.Code, p.Detail, p.HeldUntil = api.CodeLeaseHeld, "somebody holds the resource, or it is not yet safely free", optionalInstant(e.HeldUntil)
		wait := ceilMillis(e.RetryAfter)
		p.RetryAfterMS = &wait
	} else if e, ok := errors.AsType[*lock.HeldError](err); ok {
		wait := ceilMillis(e.RetryAfter)
		p.Code, p.Detail, p.RetryAfterMS = api.CodeLockHeld, "somebody holds the lock", &wait
	} else if e, ok := errors.AsType[*idempotency.InFlightError](err); ok {
		wait := ceilMillis(e.RetryAfter)
		p.Code, p.Detail, p.RetryAfterMS = api.CodeIdempotencyInFlight, "an executor of the key may be at work", &wait
	} else if e, ok := errors.AsType[*quota.ExceededError](err); ok {
		p.Code, p.Detail, p.Available = api.CodeQuotaExceeded, "fewer units are available", &e.Available
		if wait := ceilMillis(e.RetryAfter); wait > 0 {
			p.RetryAfterMS = &wait
		}
	} else if e, ok := errors.AsType[*fencing.StaleError](err); ok {
		token := int64(e.HighWater.Token)
		p.Code, p.Detail, p.HighWater, p.Sequence = api.CodeStaleFencingToken, "a newer holder has been here: stop working on the resource", &token, &e.HighWater.Sequence
	} else if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		p.Code, p.Detail = api.CodeBodyTooLarge, "the body is longer than 65536 bytes"
	} else if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		p.Code, p.Detail = ofRouter(e)
	}
	return p.Code != ""
}

// ofRouter is what echo's router refuses.
func ofRouter(e *echo.HTTPError) (api.ProblemCode, string) {
	switch e.Code {
	case http.StatusNotFound:
		return api.CodeNotFound, "no such route"
	case http.StatusMethodNotAllowed:
		return api.CodeMethodNotAllowed, "the header Allow names the methods that the route takes"
	default:
		return "", ""
	}
}

// log keeps what the caller is not told, of the codes that an operator asks about.
func (s *server) log(err error, p api.Problem, c echo.Context) {
	level, message := slog.LevelWarn, "store failed"
	switch {
	case p.Code == api.CodeInternal:
		level, message = slog.LevelError, "defect"
	case p.Code != api.CodeStoreUnavailable && p.Code != api.CodeOutcomeUnknown, hungUp(c):
		return
	}
	ctx := c.Request().Context()
	args := s.named(ctx, c, "route", c.Path(), "code", p.Code, "error", err)
	if e, ok := errors.AsType[*panicError](err); ok {
		args = append(args, "stack", string(e.stack))
	}
	s.Log.Log(ctx, level, message, args...)
}
