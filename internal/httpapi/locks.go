package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/lock"
)

func (s *server) acquireLock(c echo.Context, key auth.Key) error {
	var body api.AcquireLock
	if err := bind(c, &body); err != nil {
		return err
	}
	grant, err := s.Locks.Acquire(c.Request().Context(), key.Tenant, c.Param("name"), body.Owner, millis(body.TTLMS))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, lockJSON(grant))
}

func (s *server) renewLock(c echo.Context, key auth.Key) error {
	var body api.RenewLock
	if err := bind(c, &body); err != nil {
		return err
	}
	grant, err := s.Locks.Renew(c.Request().Context(), key.Tenant, c.Param("name"), body.LockID, millis(number(body.TTLMS)))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, lockJSON(grant))
}

func (s *server) releaseLock(c echo.Context, key auth.Key) error {
	var body api.ReleaseLock
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Locks.Release(c.Request().Context(), key.Tenant, c.Param("name"), body.LockID); err != nil {
		return err
	}
	return noContent(c)
}

func lockJSON(g lock.Grant) api.LockGrant {
	return api.LockGrant{LockID: g.ID, ValidForMS: g.ValidFor.Milliseconds(), Warning: g.Warning}
}
