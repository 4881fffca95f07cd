package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/lease"
)

func (s *server) acquireLeaseSet(c echo.Context, key auth.Key) error {
	var body api.AcquireLeaseSet
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"request_id", body.RequestID}); err != nil {
		return err
	}
	grants, err := s.Leases.AcquireSet(c.Request().Context(), key.Tenant, body.Resources, lease.AcquireRequest{
		Owner:     body.Owner,
		TTL:       millis(body.TTLMS),
		RequestID: orZero(body.RequestID),
		MaxHold:   millis(number(body.MaxTTLMS)),
		NotAfter:  instant(body.NotAfter),
		Data:      string(body.Data),
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.LeaseGrants{Leases: each(grants, grantJSON)})
}

func (s *server) renewLeaseSet(c echo.Context, key auth.Key) error {
	var body api.RenewLeaseSet
	if err := bind(c, &body); err != nil {
		return err
	}
	grants, err := s.Leases.RenewSet(c.Request().Context(), key.Tenant, each(body.Leases, heldLease), millis(body.TTLMS))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.LeaseGrants{Leases: each(grants, grantJSON)})
}

func (s *server) releaseLeaseSet(c echo.Context, key auth.Key) error {
	var body api.ReleaseLeaseSet
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Leases.ReleaseSet(c.Request().Context(), key.Tenant, each(body.Leases, heldLease)); err != nil {
		return err
	}
	return noContent(c)
}

func heldLease(l api.HeldLease) lease.HeldLease {
	return lease.HeldLease{Resource: l.Resource, Holder: lease.Holder{ID: l.LeaseID, Token: fencing.Token(l.FencingToken)}}
}
