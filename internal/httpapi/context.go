package httpapi

import (
	"context"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/deadline"
)

// A requestContext is that of a request: it ends with the connection, or after the time
// that the request has, and carries what the middleware finds out.
type requestContext struct {
	deadline.Context // of the connection's, which has no deadline

	caller auth.Key
	effect bool            // the handler runs, and its outcome matters
	code   api.ProblemCode // of the answer, for the trace; "" while it is no problem
}

// requestKey finds the requestContext of a context.
type requestKey struct{}

// Value implements context.Context.
func (r *requestContext) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// requestOf is the request that the context is of, or an empty one.
func requestOf(ctx context.Context) *requestContext {
	if r, ok := ctx.Value(requestKey{}).(*requestContext); ok {
		return r
	}
	return &requestContext{Context: deadline.Context{Context: ctx}}
}
