package client

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// CreateSession logs a user in. The token is shown this once.
func (c *Client) CreateSession(ctx context.Context, req api.CreateSession) (created api.CreatedSession, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/sessions", body: req, repeat: keyed}, &created)
	return created, err
}

// VerifySession asks whether the token's session is still good. That it is not is no
// error; where nobody can tell, it is one, and never a verdict.
func (c *Client) VerifySession(ctx context.Context, req api.VerifySession) (v api.Verdict, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/sessions/verify", body: req, repeat: exact}, &v)
	return v, err
}

// Session reads a live session by its public handle; not_found where it has ended.
func (c *Client) Session(ctx context.Context, handle string) (s api.Session, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, route: "/v1/sessions/{handle}", ids: []string{handle}, repeat: exact}, &s)
	return s, err
}

// Sessions lists the user's live sessions, in a fixed order. Pages are read while it
// is ranged over, each as a call of its own; an error is the last that comes, and ranging
// again begins anew.
func (c *Client) Sessions(ctx context.Context, userID string) iter.Seq2[api.Session, error] {
	r := call{method: http.MethodGet, route: "/v1/users/{user_id}/sessions", ids: []string{userID}, repeat: exact}
	return pages(ctx, c, r, func(p api.SessionList) ([]api.Session, string) { return p.Sessions, p.NextCursor })
}

// RotateSession replaces the session's token and, with an AAL, raises its level. The
// old token verifies for some seconds more.
func (c *Client) RotateSession(ctx context.Context, req api.RotateSession) (rotated api.CreatedSession, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/sessions/rotate", body: req, repeat: keyed}, &rotated)
	return rotated, err
}

// A Propagation says from when every verify, on any node, sees a revocation.
type Propagation struct {
	CachePropagated bool // at once
	EffectiveBy     time.Time
}

// RevokeSession ends the token's session, durably. An unknown or dead token is no error.
func (c *Client) RevokeSession(ctx context.Context, token api.SessionToken) (Propagation, error) {
	return c.revoke(ctx, call{method: http.MethodPost, route: "/v1/sessions/revoke", body: api.RevokeSession{Token: token}, repeat: exact})
}

// RevokeHandle ends the session with the public handle, durably.
func (c *Client) RevokeHandle(ctx context.Context, handle string) (Propagation, error) {
	return c.revoke(ctx, call{method: http.MethodDelete, route: "/v1/sessions/{handle}", ids: []string{handle}, repeat: exact})
}

func (c *Client) revoke(ctx context.Context, r call) (p Propagation, err error) {
	got, err := c.do(ctx, r, nil)
	if err != nil {
		return p, err
	}
	p.CachePropagated, _ = strconv.ParseBool(got.header.Get("Coord-Cache-Propagated"))
	var by api.Instant
	if err := by.UnmarshalText([]byte(got.header.Get("Coord-Effective-By"))); err == nil {
		p.EffectiveBy = by.Time
	}
	return p, nil
}
