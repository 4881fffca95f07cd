package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
)

// actions are the routes whose refusals the event log keeps, too. What succeeds
// is recorded by the handlers, which know whom it concerns, before they answer.
var actions = map[string]audit.Action{
	"POST /v1/sessions":                        audit.Create,
	"POST /v1/sessions/rotate":                 audit.Rotate,
	"POST /v1/sessions/revoke":                 audit.Revoke,
	"DELETE /v1/sessions/:handle":              audit.Revoke,
	"POST /v1/users/:user_id/logout-all":       audit.LogoutAll,
	"POST /v1/users/:user_id/permission-epoch": audit.PermissionEpoch,
	"POST /v1/users/:user_id/disable":          audit.Disable,
	"POST /v1/users/:user_id/enable":           audit.Enable,
	"DELETE /v1/users/:user_id":                audit.Erase,
	"POST /v1/tenant/logout-all":               audit.TenantLogoutAll,
	"POST /v1/api-keys":                        audit.KeyCreate,
	"DELETE /v1/api-keys/:id":                  audit.KeyRevoke,
	"POST /v1/leases/:resource/force-release":  audit.LeaseForce,
	"POST /v1/fences/:resource/reset":          audit.FenceReset,
}

// audited is the route with its refusals recorded: of every route that a key
// lacks the scope, of the audited ones also what was decided against or is unknown.
func (s *server) audited(r route) echo.HandlerFunc {
	action := actions[r.method+" "+r.path]
	return func(c echo.Context) error {
		if action != "" && s.Audit != nil {
			defer s.reserve(c)()
		}
		err := r.serve(c)
		if err == nil || s.Audit == nil {
			return err
		}
		key := requestOf(c.Request().Context()).caller
		e := audit.Event{Action: action, User: c.Param("user_id"), Subject: c.Param("handle") + c.Param("id") + c.Param("resource")}
		if missing, denied := errors.AsType[*scopeError](err); denied {
			e.Action, e.Reason = audit.Denied, string(missing.scope)
		}
		var p api.Problem
		s.describe(err, c, &p)
		if e.Action != "" && decided(p.Code) {
			e.Outcome = audit.Outcome(p.Code)
			s.record(c, key, e)
		}
		return err
	}
}

// reserve keeps the last quarter of the request's time for its event, so that it is
// answered in time where the store of both hangs.
func (s *server) reserve(c echo.Context) (done func()) {
	r := c.Request()
	deadline, ok := r.Context().Deadline()
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline.Add(-s.Timeout/4))
	c.SetRequest(r.WithContext(ctx))
	return func() {
		cancel()
		c.SetRequest(r)
	}
}

// decided tells a refusal, or an act that failed, from a request that could not be read or has no route here.
func decided(code api.ProblemCode) bool {
	if code == api.CodeFeatureUnavailable {
		return false
	}
	switch kinds[code].status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return false
	}
	return true
}

// record keeps who did what. An event that cannot be stored is logged whole: the
// change has happened, and the caller is told so.
func (s *server) record(c echo.Context, key auth.Key, e audit.Event) {
	if s.Audit == nil {
		return
	}
	e.Tenant, e.Actor, e.RequestID = key.Tenant, key.ID, requestID(c)
	if e.Outcome == "" {
		e.Outcome = audit.OK
	}
	ctx, ended := s.step(c.Request().Context(), c, "audit record")
	err := s.Audit.Record(ctx, e)
	ended(err)
	if lost, ok := errors.AsType[*audit.UnrecordedError](err); ok {
		s.Meter.Unrecorded()
		s.Log.ErrorContext(ctx, "an event was not stored", s.named(ctx, c, "event", lost.Event, "error", lost.Err)...)
	}
}

func (s *server) listEvents(c echo.Context, key auth.Key) error {
	limit, err := queryInt(c, "limit")
	if err != nil {
		return err
	}
	page, err := s.Audit.List(c.Request().Context(), key.Tenant, c.QueryParam("cursor"), int(limit))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.EventList{Events: each(page.Events, eventJSON), NextCursor: page.Next})
}

func eventJSON(e audit.Event) api.Event {
	return api.Event{
		ID:        e.ID.String(),
		At:        api.At(e.At()),
		Actor:     e.Actor,
		Action:    api.EventAction(e.Action),
		UserID:    e.User,
		Subject:   e.Subject,
		Reason:    e.Reason,
		RequestID: e.RequestID,
		Outcome:   string(e.Outcome),
		Repeats:   int64(e.Repeats),
	}
}
