package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/lease"
)

func (s *server) acquireLease(c echo.Context, key auth.Key) error {
	var body api.AcquireLease
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"request_id", body.RequestID}); err != nil { // an empty one would make the retry a new request
		return err
	}
	grant, err := s.Leases.Acquire(c.Request().Context(), key.Tenant, c.Param("resource"), lease.AcquireRequest{
		Owner:     body.Owner,
		TTL:       millis(body.TTLMS),
		RequestID: orZero(body.RequestID),
		MaxHold:   millis(number(body.MaxTTLMS)),
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, grantJSON(grant))
}

func (s *server) renewLease(c echo.Context, key auth.Key) error {
	var body api.RenewLease
	if err := bind(c, &body); err != nil {
		return err
	}
	holder := lease.Holder{ID: body.LeaseID, Token: fencing.Token(body.FencingToken)}
	grant, err := s.Leases.Renew(c.Request().Context(), key.Tenant, c.Param("resource"), holder, millis(body.TTLMS))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, grantJSON(grant))
}

func (s *server) releaseLease(c echo.Context, key auth.Key) error {
	var body api.ReleaseLease
	if err := bind(c, &body); err != nil {
		return err
	}
	holder := lease.Holder{ID: body.LeaseID, Token: fencing.Token(body.FencingToken)}
	if err := s.Leases.Release(c.Request().Context(), key.Tenant, c.Param("resource"), holder); err != nil {
		return err
	}
	return noContent(c)
}

func (s *server) getLease(c echo.Context, key auth.Key) error {
	latest, err := s.Leases.Get(c.Request().Context(), key.Tenant, c.Param("resource"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, leaseJSON(latest))
}

func leaseJSON(l lease.Lease) api.Lease {
	return api.Lease{
		Resource:     l.Resource,
		Held:         l.Held,
		Owner:        l.Owner,
		FencingToken: int64(l.Token),
		AcquiredAt:   api.At(l.AcquiredAt),
		ExpiresAt:    api.At(l.ExpiresAt),
	}
}

func grantJSON(g lease.Grant) api.LeaseGrant {
	l := leaseJSON(g.Lease)
	return api.LeaseGrant{
		Resource:     l.Resource,
		Held:         l.Held,
		Owner:        l.Owner,
		FencingToken: l.FencingToken,
		AcquiredAt:   l.AcquiredAt,
		ExpiresAt:    l.ExpiresAt,
		LeaseID:      g.ID,
		ValidForMS:   g.ValidFor.Milliseconds(), // rounded down: never longer than it is held
	}
}
