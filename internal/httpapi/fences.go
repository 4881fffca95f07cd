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
)

// highestForeign is the largest token from elsewhere that whoever may write may admit to
// a resource that was never leased here, or write with. The first grant exceeds it, and
// half of all tokens are left for those to come.
const highestForeign = 1 << 52

// checkForeign leaves larger tokens to whoever could set the mark, or the record, back.
func checkForeign(token int64, key auth.Key) error {
	if token > highestForeign && token <= int64(fencing.MaxToken) && !key.Allows(auth.LeasesForce) {
		return &scopeError{auth.LeasesForce}
	}
	return nil
}

func (s *server) admit(c echo.Context, key auth.Key) error {
	var body api.Admit
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkForeign(body.FencingToken, key); err != nil {
		return err
	}
	mark, err := s.Fences.Admit(c.Request().Context(), key.Tenant, c.Param("resource"), position(body.FencingToken, body.Sequence))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, markJSON(mark))
}

func (s *server) getFence(c echo.Context, key auth.Key) error {
	mark, err := s.Fences.Mark(c.Request().Context(), key.Tenant, c.Param("resource"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, markJSON(mark))
}

func (s *server) resetFence(c echo.Context, key auth.Key) error {
	var body api.ResetFence
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := errors.Join(keytype.CheckID("reason", body.Reason), checkOptional(text{"key", body.Key})); err != nil {
		return err
	}
	mark, err := s.reset(c.Request().Context(), key.Tenant, c.Param("resource"), body)
	if err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.FenceReset, Subject: c.Param("resource"), Reason: body.Reason})
	return write(c, http.StatusOK, markJSON(mark))
}

// reset sets the resource's mark, or the position of its record where the body names one.
func (s *server) reset(ctx context.Context, tenant, resource string, body api.ResetFence) (fencing.Position, error) {
	to := fencing.Token(body.FencingToken)
	if body.Key == nil {
		return s.Fences.ResetMark(ctx, tenant, resource, to)
	}
	record, err := s.Fences.ResetRecord(ctx, tenant, resource, *body.Key, to)
	return record.Position, err
}

func (s *server) putProtected(c echo.Context, key auth.Key) error {
	var body api.WriteProtected
	if err := bind(c, &body); err != nil {
		return err
	}
	if body.Value == nil {
		return &keytype.ValueError{Field: "value", Reason: "is required"}
	}
	mode := text{"mode", (*string)(body.Mode)}
	if err := notEmpty(mode, text{"lease_id", body.LeaseID}); err != nil {
		return err
	}
	if fencing.Mode(orZero(body.Mode)) == fencing.HighWater { // a larger one in mode lease was granted
		if err := checkForeign(body.FencingToken, key); err != nil {
			return err
		}
	}
	record, err := s.Fences.Write(c.Request().Context(), key.Tenant, c.Param("resource"), c.Param("key"), fencing.WriteRequest{
		Position: position(body.FencingToken, body.Sequence),
		Mode:     fencing.Mode(orZero(body.Mode)),
		LeaseID:  orZero(body.LeaseID),
		Value:    body.Value,
	})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.ProtectedWritten{Version: record.Version, FencingToken: int64(record.Token), Sequence: record.Sequence})
}

func (s *server) getProtected(c echo.Context, key auth.Key) error {
	record, err := s.Fences.Read(c.Request().Context(), key.Tenant, c.Param("resource"), c.Param("key"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.ProtectedRecord{
		Value:        json.RawMessage(record.Value),
		Version:      record.Version,
		FencingToken: int64(record.Token),
		Sequence:     record.Sequence,
		Mode:         api.ProtectedMode(record.Mode),
	})
}

func position(token int64, sequence *int64) fencing.Position {
	return fencing.Position{Token: fencing.Token(token), Sequence: number(sequence)}
}

func markJSON(p fencing.Position) api.Mark {
	return api.Mark{HighWater: int64(p.Token), Sequence: p.Sequence}
}
