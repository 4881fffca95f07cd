package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
)

// A Tracer follows requests through the service. No argument holds an id. What it
// returns ends the span, with the answer's status and its problem's code, "" for none.
type Tracer interface {
	// Request begins the span of a request, in the trace that its header names.
	Request(ctx context.Context, header http.Header, method, route string) (context.Context, func(status int, code string))
	// Step begins a span within, where the request is sampled: else the context stays the same.
	Step(ctx context.Context, name string) (context.Context, func(status int, code string))
}

// traceRequest begins the span of a request. Call it where there is a Tracer.
func (s *server) traceRequest(c echo.Context) (end func(status int)) {
	r := c.Request()
	of := requestOf(r.Context())
	var ended func(int, string)
	of.Context.Context, ended = s.Trace.Request(of.Context.Context, r.Header, r.Method, pattern(c)) // nobody has asked it yet
	return func(status int) { ended(status, string(of.code)) }
}

// traced has what each route's manager does in a span of its own.
func (s *server) traced(routes []route) []route {
	if s.Trace == nil {
		return routes
	}
	for i, r := range routes {
		name := operation(r.method, r.path)
		routes[i].handle = func(c echo.Context, key auth.Key) error {
			outer := c.Request()
			ctx, ended := s.Trace.Step(outer.Context(), name)
			if ctx == outer.Context() { // not sampled
				return r.handle(c, key)
			}
			c.SetRequest(outer.WithContext(ctx))
			err := r.handle(c, key)
			c.SetRequest(outer)
			s.endStep(ended, err, c)
			return err
		}
	}
	return routes
}

// operation names what a route's manager does, for example "leases acquire".
func operation(method, path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1"), "/")[1:]
	if last := parts[len(parts)-1]; len(parts) > 1 && last[0] != ':' {
		return parts[0] + " " + last
	}
	return parts[0] + " " + strings.ToLower(method)
}

// step is a span of what is done besides the route's own work.
func (s *server) step(ctx context.Context, c echo.Context, name string) (context.Context, func(error)) {
	if s.Trace == nil {
		return ctx, func(error) {}
	}
	inner, ended := s.Trace.Step(ctx, name)
	if inner == ctx { // not sampled
		return ctx, func(error) {}
	}
	return inner, func(err error) { s.endStep(ended, err, c) }
}

func (s *server) endStep(ended func(int, string), err error, c echo.Context) {
	if err == nil {
		ended(c.Response().Status, "")
		return
	}
	var p api.Problem
	s.describe(err, c, &p)
	ended(kinds[p.Code].status, string(p.Code))
}

// named is what a line of the log says of its request, before other fields.
func (s *server) named(ctx context.Context, c echo.Context, fields ...any) []any {
	all := []any{"request_id", requestID(c)}
	if s.TraceIDs != nil {
		traceID, spanID := s.TraceIDs(ctx, c.Request().Header)
		for _, id := range [][2]string{{"trace_id", traceID}, {"span_id", spanID}} {
			if id[1] != "" {
				all = append(all, id[0], id[1])
			}
		}
	}
	return append(all, fields...)
}

// A carried context ends as the one does and holds what the other holds.
type carried struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (c carried) Value(key any) any { return c.values.Value(key) }
