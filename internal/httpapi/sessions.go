package httpapi

import (
	"cmp"
	"math"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

func (s *server) createSession(c echo.Context, key auth.Key) error {
	var body api.CreateSession
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := cmp.Or(
		notEmpty(text{"device_id", body.DeviceID}, text{"ip", body.IP}, text{"user_agent", body.UserAgent}),
		checkGiven("expected_session_version", body.ExpectedSessionVersion, 1, math.MaxInt64),
		checkGiven("max_sessions", body.MaxSessions, 1, session.MaxSessionLimit), // 0 would limit nothing
	); err != nil {
		return err
	}
	token, created, err := s.Sessions.Create(c.Request().Context(), key.Tenant, session.CreateRequest{
		UserID:          body.UserID,
		AAL:             int(number(body.AAL)),
		AMR:             orZero(body.AMR),
		DeviceID:        orZero(body.DeviceID),
		IP:              orZero(body.IP),
		UserAgent:       orZero(body.UserAgent),
		AbsoluteTTL:     millis(number(body.AbsoluteTTLMS)),
		IdleTTL:         millis(number(body.IdleTTLMS)),
		ExpectedVersion: body.ExpectedSessionVersion,
		MaxSessions:     int(orZero(body.MaxSessions)),
		Data:            body.Data,
	})
	if err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.Create, User: created.UserID, Subject: created.Handle})
	return write(c, http.StatusCreated, api.CreatedSession{Token: token.Reveal(), Session: sessionJSON(created)})
}

func (s *server) verifySession(c echo.Context, key auth.Key) error {
	var body api.VerifySession
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := cmp.Or(
		keytype.CheckID("token", body.Token),
		checkOptional(text{"user_id", body.UserID}),           // an empty one would ask for nobody in particular
		checkGiven("min_aal", body.MinAAL, 1, session.MaxAAL), // 0 would ask for no level
	); err != nil {
		return err
	}
	verdict, err := s.Sessions.Verify(c.Request().Context(), key.Tenant, body.Token, session.VerifyRequest{
		NoTouch:    body.Touch != nil && !*body.Touch,
		MinAAL:     int(orZero(body.MinAAL)),
		MaxAuthAge: millis(number(body.MaxAuthAgeMS)),
		UserID:     orZero(body.UserID),
	})
	if err != nil {
		return err
	}
	s.verified(verdict)
	if verdict.OldToken && !verdict.Active {
		s.record(c, key, audit.Event{Action: audit.OldTokenUsed, Subject: session.HandleOf(body.Token), Outcome: audit.Outcome(verdict.Reason)})
	}
	return write(c, http.StatusOK, verdictJSON(verdict, key.Allows(auth.SessionsExplain)))
}

// verified counts a verdict.
func (s *server) verified(v session.Verdict) {
	outcome := "active"
	if !v.Active {
		outcome = string(v.Reason)
	}
	s.Meter.Verified(outcome, string(cmp.Or(v.Source, session.FromStore)), v.Degraded)
}

// changed counts a durable change that did not reach the cache.
func (s *server) changed(p session.Propagation) {
	if !p.Propagated {
		s.Meter.Unpropagated()
	}
}

func (s *server) rotateSession(c echo.Context, key auth.Key) error {
	var body api.RotateSession
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := keytype.CheckID("token", body.Token); err != nil {
		return err
	}
	rotated, err := s.Sessions.Rotate(c.Request().Context(), key.Tenant, body.Token, session.RotateRequest{
		AAL: int(number(body.AAL)),
		AMR: orZero(body.AMR),
	})
	if err != nil {
		return err
	}
	s.changed(rotated.Propagation)
	s.record(c, key, audit.Event{Action: rotation(body), User: rotated.UserID, Subject: rotated.Handle})
	return write(c, http.StatusOK, api.CreatedSession{Token: rotated.Token.Reveal(), Session: sessionJSON(rotated.Session)})
}

// rotation tells a step-up: only it names a level.
func rotation(body api.RotateSession) audit.Action {
	if body.AAL != nil {
		return audit.StepUp
	}
	return audit.Rotate
}

func (s *server) revokeSession(c echo.Context, key auth.Key) error {
	var body api.RevokeSession
	if err := bind(c, &body); err != nil {
		return err
	}
	if err := keytype.CheckID("token", body.Token); err != nil {
		return err
	}
	r, err := s.Sessions.Revoke(c.Request().Context(), key.Tenant, body.Token)
	if err != nil {
		return err
	}
	if r.Known { // of any other token nothing has changed, and nothing is recorded
		s.changed(r.Propagation)
		s.record(c, key, audit.Event{Action: audit.Revoke, Subject: session.HandleOf(body.Token)})
	}
	return revoked(c, r.Propagation)
}

func (s *server) deleteSession(c echo.Context, key auth.Key) error {
	p, err := s.Sessions.RevokeHandle(c.Request().Context(), key.Tenant, c.Param("handle"))
	if err != nil {
		return err
	}
	s.changed(p)
	s.record(c, key, audit.Event{Action: audit.Revoke, Subject: c.Param("handle")})
	return revoked(c, p)
}

// revoked answers from when on every verify sees it.
func revoked(c echo.Context, p session.Propagation) error {
	h := c.Response().Header()
	h.Set("Coord-Cache-Propagated", strconv.FormatBool(p.Propagated))
	h.Set("Coord-Effective-By", api.At(p.EffectiveBy).String())
	return noContent(c)
}

func (s *server) getSession(c echo.Context, key auth.Key) error {
	found, err := s.Sessions.Get(c.Request().Context(), key.Tenant, c.Param("handle"))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, sessionJSON(found))
}

func (s *server) listSessions(c echo.Context, key auth.Key) error {
	limit, err := queryInt(c, "limit")
	if err != nil {
		return err
	}
	page, err := s.Sessions.List(c.Request().Context(), key.Tenant, c.Param("user_id"), c.QueryParam("cursor"), int(limit))
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.SessionList{Sessions: each(page.Sessions, sessionJSON), NextCursor: page.Next})
}

func sessionJSON(s session.Session) api.Session {
	return api.Session{
		Handle:          s.Handle,
		UserID:          s.UserID,
		IssuedAt:        api.At(s.IssuedAt),
		ExpiresAt:       api.At(s.ExpiresAt),
		IdleExpiresAt:   api.At(s.IdleExpiresAt),
		LastSeenAt:      api.At(s.LastSeenAt),
		AAL:             int64(s.AAL),
		AMR:             list[string](s.AMR),
		AuthAt:          api.At(s.AuthAt),
		SessionVersion:  s.SessionVersion,
		PermissionEpoch: s.PermissionEpoch,
		DeviceID:        s.DeviceID,
		IP:              s.IP,
		UserAgent:       s.UserAgent,
	}
}

// verdictJSON tells a caller that may not ask why nothing but no.
func verdictJSON(v session.Verdict, explain bool) api.Verdict {
	if !v.Active {
		verdict := api.Verdict{}
		if explain {
			reason := api.VerdictReason(v.Reason)
			verdict.Reason = &reason
		}
		return verdict
	}
	live, source := sessionJSON(v.Session), api.VerdictSource(v.Source)
	return api.Verdict{Active: true, Session: &live, PermissionsStale: &v.PermissionsStale, Source: &source, Degraded: &v.Degraded}
}
