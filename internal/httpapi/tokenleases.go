package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func (s *server) leaseTokens(c echo.Context, key auth.Key) error {
	var body api.TokenLeaseRequest
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"holder", body.Holder}); err != nil {
		return err
	}
	lease, err := s.Limits.Lease(c.Request().Context(), key.Tenant, ratelimit.LeaseRequest{
		Policy: body.Policy, Descriptors: body.Descriptors, Want: body.Want, Holder: orZero(body.Holder), Held: orZero(body.Held),
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.TokenLease{
		Granted: lease.Granted, ValidForMS: lease.ValidFor.Milliseconds(), RetryAfterMS: ceilMillis(lease.RetryAfter), MaxOvershoot: lease.MaxOvershoot,
	})
}

func (s *server) returnTokens(c echo.Context, key auth.Key) error {
	var body api.TokenLeaseReturn
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"holder", body.Holder}); err != nil {
		return err
	}
	err := s.Limits.ReturnLease(c.Request().Context(), key.Tenant, ratelimit.LeaseReturn{
		Policy: body.Policy, Descriptors: body.Descriptors, Unspent: body.Unspent, Holder: orZero(body.Holder),
	})
	if err != nil {
		return err
	}
	return noContent(c)
}
