package httpapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

func (s *server) logoutAll(c echo.Context, key auth.Key) error {
	var body api.LogoutAll
	if err := bindOptional(c, &body); err != nil {
		return err
	}
	if err := cmp.Or(
		checkOptional(text{"except_token", body.ExceptToken}), // an empty one would keep no session
		checkOptional(text{"reason", body.Reason}),
	); err != nil {
		return err
	}
	done, err := s.Sessions.LogoutAll(c.Request().Context(), key.Tenant, c.Param("user_id"), orZero(body.ExceptToken))
	if err != nil {
		return err
	}
	s.changed(done.Propagation)
	s.record(c, key, audit.Event{Action: audit.LogoutAll, User: c.Param("user_id"), Reason: orZero(body.Reason)})
	return write(c, http.StatusOK, api.LoggedOut{SessionVersion: done.SessionVersion, CachePropagated: done.Propagated, EffectiveBy: api.At(done.EffectiveBy)})
}

func (s *server) bumpPermissions(c echo.Context, key auth.Key) error {
	var body api.BumpPermissionEpoch
	if err := bindOptional(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"reason", body.Reason}); err != nil {
		return err
	}
	done, err := s.Sessions.BumpPermissions(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	s.changed(done.Propagation)
	s.record(c, key, audit.Event{Action: audit.PermissionEpoch, User: c.Param("user_id"), Reason: orZero(body.Reason)})
	return write(c, http.StatusOK, api.PermissionEpoch{PermissionEpoch: done.PermissionEpoch, CachePropagated: done.Propagated, EffectiveBy: api.At(done.EffectiveBy)})
}

func (s *server) disableUser(c echo.Context, key auth.Key) error {
	return s.switchUser(c, key, audit.Disable, s.Sessions.Disable)
}

func (s *server) enableUser(c echo.Context, key auth.Key) error {
	return s.switchUser(c, key, audit.Enable, s.Sessions.Enable)
}

func (s *server) switchUser(c echo.Context, key auth.Key, act audit.Action, change func(ctx context.Context, tenant, user string) (session.Changed, error)) error {
	var body api.UserSwitch
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := keytype.CheckID("reason", body.Reason); err != nil {
		return err
	}
	done, err := change(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	s.changed(done.Propagation)
	s.record(c, key, audit.Event{Action: act, User: c.Param("user_id"), Reason: body.Reason})
	return write(c, http.StatusOK, api.UserState{Disabled: done.Disabled, SessionVersion: done.SessionVersion, CachePropagated: done.Propagated, EffectiveBy: api.At(done.EffectiveBy)})
}

// eraseUser cannot be undone.
func (s *server) eraseUser(c echo.Context, key auth.Key) error {
	var body api.Confirmed
	user := c.Param("user_id")
	if err := bindConfirmed(c, key, &body, user); err != nil {
		return err
	}
	done, err := s.Sessions.Erase(c.Request().Context(), key.Tenant, user)
	if err != nil {
		return err
	}
	s.changed(done.Propagation)
	s.record(c, key, audit.Event{Action: audit.Erase, User: user, Reason: body.Reason})
	return write(c, http.StatusOK, api.UserState{Disabled: done.Disabled, SessionVersion: done.SessionVersion, CachePropagated: done.Propagated, EffectiveBy: api.At(done.EffectiveBy)})
}

// logoutTenant ends every session of the caller's tenant.
func (s *server) logoutTenant(c echo.Context, key auth.Key) error {
	var body api.Confirmed
	if err := bindConfirmed(c, key, &body, key.Tenant); err != nil {
		return err
	}
	p, err := s.Sessions.LogoutTenant(c.Request().Context(), key.Tenant)
	if err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.TenantLogoutAll, Reason: body.Reason})
	return write(c, http.StatusOK, api.TenantLoggedOut{CachePropagated: p.Propagated, EffectiveBy: api.At(p.EffectiveBy)})
}

// bindConfirmed reads the body of what hits many at once: it needs a second scope,
// and the name of what is hit once more.
func bindConfirmed(c echo.Context, key auth.Key, body *api.Confirmed, name string) error {
	if !key.Allows(auth.UsersDisable) {
		return &scopeError{auth.UsersDisable}
	}
	if err := bind(c, body); err != nil {
		return err
	}
	if err := cmp.Or(keytype.CheckID("reason", body.Reason), keytype.CheckID("confirm", body.Confirm)); err != nil {
		return err
	}
	if body.Confirm != name {
		return &keytype.ValueError{Field: "confirm", Reason: "must be the id of the user, or of the tenant"}
	}
	return nil
}

func (s *server) getEpochs(c echo.Context, key auth.Key) error {
	epochs, err := s.Sessions.Epochs(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.Epochs{SessionVersion: epochs.SessionVersion, PermissionEpoch: epochs.PermissionEpoch, Disabled: epochs.Disabled})
}
