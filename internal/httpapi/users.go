package httpapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
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
	epochs, err := s.Sessions.LogoutAll(c.Request().Context(), key.Tenant, c.Param("user_id"), orZero(body.ExceptToken))
	if err != nil {
		return err
	}
	s.logAct(c, key, "user logged out everywhere", orZero(body.Reason))
	return write(c, http.StatusOK, api.LoggedOut{SessionVersion: epochs.SessionVersion, CachePropagated: true, EffectiveBy: api.At(s.Now())})
}

func (s *server) bumpPermissions(c echo.Context, key auth.Key) error {
	var body api.BumpPermissionEpoch
	if err := bindOptional(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"reason", body.Reason}); err != nil {
		return err
	}
	epochs, err := s.Sessions.BumpPermissions(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	s.logAct(c, key, "user's permission epoch raised", orZero(body.Reason))
	return write(c, http.StatusOK, api.PermissionEpoch{PermissionEpoch: epochs.PermissionEpoch, CachePropagated: true, EffectiveBy: api.At(s.Now())})
}

func (s *server) disableUser(c echo.Context, key auth.Key) error {
	return s.switchUser(c, key, "user disabled", s.Sessions.Disable)
}

func (s *server) enableUser(c echo.Context, key auth.Key) error {
	return s.switchUser(c, key, "user enabled", s.Sessions.Enable)
}

func (s *server) switchUser(c echo.Context, key auth.Key, act string, change func(ctx context.Context, tenant, user string) (session.Epochs, error)) error {
	var body api.UserSwitch
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := keytype.CheckID("reason", body.Reason); err != nil {
		return err
	}
	epochs, err := change(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	s.logAct(c, key, act, body.Reason)
	return write(c, http.StatusOK, api.UserState{Disabled: epochs.Disabled, SessionVersion: epochs.SessionVersion, CachePropagated: true, EffectiveBy: api.At(s.Now())})
}

func (s *server) getEpochs(c echo.Context, key auth.Key) error {
	epochs, err := s.Sessions.Epochs(c.Request().Context(), key.Tenant, c.Param("user_id"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.Epochs{SessionVersion: epochs.SessionVersion, PermissionEpoch: epochs.PermissionEpoch, Disabled: epochs.Disabled})
}

// logAct records who did what to a user, and why.
func (s *server) logAct(c echo.Context, key auth.Key, act, reason string) {
	s.Log.InfoContext(c.Request().Context(), act, "tenant", key.Tenant, "user", c.Param("user_id"), "key", key.ID, "reason", reason, "request_id", requestID(c))
}
