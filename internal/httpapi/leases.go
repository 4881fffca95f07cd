package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
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
	wait := millis(orZero(body.WaitMS))
	ctx, cancel, err := s.patient(c, min(wait, lease.MaxWait))
	if err != nil {
		return err
	}
	defer cancel()
	grant, err := s.Leases.Acquire(ctx, key.Tenant, c.Param("resource"), lease.AcquireRequest{
		Owner:     body.Owner,
		TTL:       millis(body.TTLMS),
		RequestID: orZero(body.RequestID),
		MaxHold:   millis(number(body.MaxTTLMS)),
		NotAfter:  instant(body.NotAfter),
		Wait:      wait,
		StillMay:  func(ctx context.Context) error { _, err := s.caller(ctx, c); return err },
		Data:      string(body.Data),
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

func (s *server) forceReleaseLease(c echo.Context, key auth.Key) error {
	var body api.ForceRelease
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := errors.Join(keytype.CheckID("reason", body.Reason), checkOptional(text{"request_id", body.RequestID})); err != nil {
		return err
	}
	raised, err := s.Leases.ForceRelease(c.Request().Context(), key.Tenant, c.Param("resource"), fencing.Token(body.FencingToken), orZero(body.RequestID))
	if err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.LeaseForce, Subject: c.Param("resource"), Reason: body.Reason})
	return write(c, http.StatusOK, api.ForcedRelease{FencingToken: int64(raised)})
}

func (s *server) getLease(c echo.Context, key auth.Key) error {
	latest, err := s.Leases.Get(c.Request().Context(), key.Tenant, c.Param("resource"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, leaseJSON(latest))
}

func (s *server) listLeases(c echo.Context, key auth.Key) error {
	limit, err := queryInt(c, "limit")
	if err != nil {
		return err
	}
	page, err := s.Leases.List(c.Request().Context(), key.Tenant, c.QueryParam("owner"), c.QueryParam("cursor"), int(limit))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.LeaseList{Leases: each(page.Leases, leaseJSON), NextCursor: page.Next})
}

func leaseJSON(l lease.Lease) api.Lease {
	return api.Lease{
		Resource:     l.Resource,
		Held:         l.Held,
		Owner:        l.Owner,
		FencingToken: int64(l.Token),
		AcquiredAt:   api.At(l.AcquiredAt),
		ExpiresAt:    api.At(l.ExpiresAt),
		Data:         json.RawMessage(l.Data),
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
		Data:         l.Data,
		LeaseID:      g.ID,
		ValidForMS:   g.ValidFor.Milliseconds(), // rounded down: never longer than it is held
	}
}
