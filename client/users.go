package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/coordsvc/coordsvc/api"
)

// LogoutAll ends all sessions of the user, but for that of ExceptToken where one is given.
func (c *Client) LogoutAll(ctx context.Context, userID string, req api.LogoutAll) (out api.LoggedOut, err error) {
	_, err = c.do(ctx, userCall("/logout-all", userID, req), &out)
	return out, err
}

// BumpPermissionEpoch has every session of the user answer PermissionsStale, until its
// token is rotated: for whoever keeps permissions beside a session.
func (c *Client) BumpPermissionEpoch(ctx context.Context, userID string, req api.BumpPermissionEpoch) (e api.PermissionEpoch, err error) {
	_, err = c.do(ctx, userCall("/permission-epoch", userID, req), &e)
	return e, err
}

// DisableUser ends every session of the user and refuses every login, until EnableUser.
func (c *Client) DisableUser(ctx context.Context, userID string, req api.UserSwitch) (s api.UserState, err error) {
	_, err = c.do(ctx, userCall("/disable", userID, req), &s)
	return s, err
}

// EnableUser allows new logins of the user. Sessions from before stay dead.
func (c *Client) EnableUser(ctx context.Context, userID string, req api.UserSwitch) (s api.UserState, err error) {
	_, err = c.do(ctx, userCall("/enable", userID, req), &s)
	return s, err
}

// userCall is one that could undo what happened in between if it were carried out twice.
func userCall(act, userID string, body any) call {
	return call{method: http.MethodPost, route: "/v1/users/{user_id}" + act, ids: []string{userID}, body: body, repeat: keyed}
}

// EraseUser disables the user, ends the sessions and removes them, for good. Confirm is
// the user's id once more. Where the outcome is unknown, call it again.
func (c *Client) EraseUser(ctx context.Context, userID string, req api.Confirmed) (s api.UserState, err error) {
	_, err = c.do(ctx, call{method: http.MethodDelete, route: "/v1/users/{user_id}", ids: []string{userID}, body: req, repeat: exact}, &s)
	return s, err
}

// Epochs reads the user's numbers. A user whom nothing ever happened to has those of a new one.
func (c *Client) Epochs(ctx context.Context, userID string) (e api.Epochs, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, route: "/v1/users/{user_id}/epochs", ids: []string{userID}, repeat: exact}, &e)
	return e, err
}

// LogoutTenant ends all sessions of the key's tenant, whose id Confirm is. Until EffectiveBy other
// nodes may answer with one from before, and a session that is made there may be dead from its beginning.
func (c *Client) LogoutTenant(ctx context.Context, req api.Confirmed) (out api.TenantLoggedOut, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/tenant/logout-all", body: req, repeat: keyed}, &out)
	return out, err
}

// Events lists who did what in the key's tenant, newest first, of the last 400 days:
// stop ranging at the first that is known. The sequence is read as [Client.Sessions] is.
func (c *Client) Events(ctx context.Context) iter.Seq2[api.Event, error] {
	r := call{method: http.MethodGet, route: "/v1/events", repeat: exact}
	return pages(ctx, c, r, func(p api.EventList) ([]api.Event, string) { return p.Events, p.NextCursor })
}
