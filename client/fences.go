package client

import (
	"context"
	"net/http"

	"github.com/coordsvc/coordsvc/api"
)

// Admit asks whether a writer with the token may still write to the resource, and
// raises its high-water mark. A token below it is stale_fencing_token, with HighWater:
// stop working on the resource.
func (c *Client) Admit(ctx context.Context, resource string, req api.Admit) (m api.Mark, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: "/v1/fences/{resource}/admit", ids: []string{resource}, body: req, repeat: exact}, &m)
	return m, err
}

// WriteProtected writes a record under the token, and in mode lease also under the
// lease id. Without a Sequence it is not tried again once it may have happened: a
// repetition that arrives late could undo a later write of the same holder.
func (c *Client) WriteProtected(ctx context.Context, resource, key string, req api.WriteProtected) (w api.ProtectedWritten, err error) {
	r := call{method: http.MethodPut, route: protectedRoute, ids: []string{resource, key}, body: req, repeat: once}
	if req.Sequence != nil {
		r.repeat = exact
	}
	_, err = c.do(ctx, r, &w)
	return w, err
}

// ReadProtected reads a record, with its guard.
func (c *Client) ReadProtected(ctx context.Context, resource, key string) (rec api.ProtectedRecord, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, route: protectedRoute, ids: []string{resource, key}, repeat: exact}, &rec)
	return rec, err
}

const protectedRoute = "/v1/protected/{resource}/{key}"
