package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

func (s *server) setQuota(c echo.Context, key auth.Key) error {
	var body api.SetQuota
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := checkOptional(text{"zone", body.Zone}); err != nil {
		return err
	}
	window, err := quotaWindow(body.Window)
	if err != nil {
		return err
	}
	q, err := s.Quotas.Set(c.Request().Context(), quotaID(c, key), quota.Definition{Limit: body.Limit, Window: window, Zone: orZero(body.Zone)})
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, quotaJSON(q))
}

func (s *server) getQuota(c echo.Context, key auth.Key) error {
	q, err := s.Quotas.Get(c.Request().Context(), quotaID(c, key))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, quotaJSON(q))
}

func (s *server) consumeQuota(c echo.Context, key auth.Key) error {
	var body api.ConsumeQuota
	if err := bind(c, &body); err != nil {
		return err
	}
	q, err := s.Quotas.Consume(c.Request().Context(), quotaID(c, key), body.Amount, body.RequestID)
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, quotaJSON(q))
}

func (s *server) reserveQuota(c echo.Context, key auth.Key) error {
	var body api.ReserveQuota
	if err := bind(c, &body); err != nil {
		return err
	}
	granted, err := s.Quotas.Reserve(c.Request().Context(), quotaID(c, key), quota.ReserveRequest{
		Amount:    body.Amount,
		RequestID: body.RequestID,
		TTL:       millis(body.TTLMS),
	})
	if err != nil {
		return err
	}
	q := quotaJSON(granted.Quota)
	return write(c, http.StatusOK, api.QuotaReserved{
		Limit: q.Limit, Available: q.Available, Reserved: q.Reserved, Used: q.Used,
		Window: q.Window, Zone: q.Zone, ResetsAt: q.ResetsAt,
		ReservationID: granted.Reservation,
		ValidForMS:    granted.ValidFor.Milliseconds(), // rounded down: never longer than it lasts
	})
}

func (s *server) commitQuota(c echo.Context, key auth.Key) error {
	var body api.CommitQuota
	if err := bindOptional(c, &body); err != nil {
		return err
	}
	q, err := s.Quotas.Commit(c.Request().Context(), quotaID(c, key), c.Param("id"), number(body.Amount))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, quotaJSON(q))
}

func (s *server) cancelQuota(c echo.Context, key auth.Key) error {
	if err := bindOptional(c, &struct{}{}); err != nil {
		return err
	}
	q, err := s.Quotas.Cancel(c.Request().Context(), quotaID(c, key), c.Param("id"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, quotaJSON(q))
}

func quotaID(c echo.Context, key auth.Key) quota.ID {
	return quota.ID{Tenant: key.Tenant, Name: c.Param("name"), Subject: c.Param("subject")}
}

// quotaWindow reads "none", "day", "month" or {"ms": n}.
func quotaWindow(raw json.RawMessage) (quota.Window, error) {
	switch {
	case len(raw) == 0:
		return "", &keytype.ValueError{Field: "window", Reason: "is required"}
	case raw[0] == '"':
		var name quota.Window
		if err := json.Unmarshal(raw, &name); err != nil {
			return "", malformed("window", "is not a JSON string")
		}
		if _, fixed := name.Length(); fixed { // its spelling inside the service
			return "", &keytype.ValueError{Field: "window", Reason: `of a fixed length is written {"ms": n}`}
		}
		return name, nil
	case raw[0] != '{':
		return "", malformed("window", "must be a string or an object")
	}
	var fixed struct {
		MS *int64 `json:"ms"`
	}
	if err := api.Decode(raw, &fixed); err != nil {
		return "", malformed("window", `must be an object with the integer "ms" alone`)
	}
	if fixed.MS == nil {
		return "", &keytype.ValueError{Field: "window", Reason: `lacks "ms"`}
	}
	return quota.Every(millis(*fixed.MS)), nil
}

func quotaJSON(q quota.Quota) api.Quota {
	window := json.RawMessage(fmt.Sprintf("%q", q.Window)) // letters only
	if length, fixed := q.Window.Length(); fixed {
		window = json.RawMessage(fmt.Sprintf(`{"ms":%d}`, length.Milliseconds()))
	}
	return api.Quota{
		Limit: q.Limit, Available: q.Available, Reserved: q.Reserved, Used: q.Used,
		Window: window, Zone: q.Zone, ResetsAt: optionalInstant(q.ResetsAt),
	}
}
