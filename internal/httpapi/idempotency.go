package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/auth"
)

func (s *server) claimKey(c echo.Context, key auth.Key) error {
	var body api.ClaimKey
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"request_id", body.RequestID}); err != nil { // an empty one would make the retry a new request
		return err
	}
	claimed, err := s.Idempotency.Claim(c.Request().Context(), key.Tenant, c.Param("key"), idempotency.ClaimRequest{
		Fingerprint: body.Fingerprint,
		LockTTL:     millis(body.LockTTLMS),
		TTL:         millis(body.TTLMS),
		RequestID:   orZero(body.RequestID),
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, claimJSON(claimed))
}

func (s *server) extendClaim(c echo.Context, key auth.Key) error {
	var body api.ExtendClaim
	if err := bind(c, &body); err != nil {
		return err
	}
	claimed, err := s.Idempotency.Extend(c.Request().Context(), key.Tenant, c.Param("key"), body.ClaimID, millis(body.LockTTLMS))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.ClaimExtended{ClaimID: claimed.ID, Attempt: claimed.Attempt, ValidForMS: claimed.ValidFor.Milliseconds()})
}

func (s *server) completeClaim(c echo.Context, key auth.Key) error {
	var body api.CompleteClaim
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Idempotency.Complete(c.Request().Context(), key.Tenant, c.Param("key"), body.ClaimID, string(body.Response)); err != nil {
		return err
	}
	return noContent(c)
}

func (s *server) abandonClaim(c echo.Context, key auth.Key) error {
	var body api.AbandonClaim
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := s.Idempotency.Abandon(c.Request().Context(), key.Tenant, c.Param("key"), body.ClaimID); err != nil {
		return err
	}
	return noContent(c)
}

func claimJSON(c idempotency.Claimed) api.KeyClaim {
	if c.Completed {
		return api.KeyClaim{State: api.Completed, Response: json.RawMessage(c.Response)}
	}
	validFor := c.ValidFor.Milliseconds() // rounded down: never longer than it lasts
	return api.KeyClaim{State: api.Claimed, ClaimID: c.ID, Attempt: c.Attempt, ValidForMS: &validFor}
}
