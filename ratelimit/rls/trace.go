package rls

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"regexp"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/coordsvc/coordsvc/keytype"
)

// A Tracer follows rate limit requests. No argument holds an id.
type Tracer interface {
	// Call begins the span of a request, in the trace that its metadata names, and
	// returns what ends it with the answer's code.
	Call(ctx context.Context, method string) (context.Context, func(code string))
	// Step begins a span within, and returns what ends it with a status and a code as of
	// the HTTP API, "" for none.
	Step(ctx context.Context, name string) (context.Context, func(status int, code string))
}

// traced begins the span of a rate limit request; nobody asks about others.
func (s *Server) traced(ctx context.Context, method string) (context.Context, func(code string)) {
	if s.Trace == nil || method != rlspb.RateLimitService_ShouldRateLimit_FullMethodName {
		return ctx, func(string) {}
	}
	return s.Trace.Call(ctx, method)
}

// step is a span of a part of a request.
func (s *Server) step(ctx context.Context, name string) (context.Context, func(error)) {
	if s.Trace == nil {
		return ctx, func(error) {}
	}
	ctx, ended := s.Trace.Step(ctx, name)
	return ctx, func(err error) {
		switch {
		case err == nil:
			ended(http.StatusOK, "")
		case errors.Is(err, keytype.ErrUnavailable), errors.Is(err, keytype.ErrOutcomeUnknown):
			ended(http.StatusServiceUnavailable, "store_unavailable")
		default:
			ended(http.StatusOK, "refused")
		}
	}
}

const requestIDKey = "x-request-id"

// saneID is what a proxy may name a request: it ends up in logs and metadata.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// named is what a line of the log says of its request, before other fields. The caller
// finds the request's id in the trailer, whether it was its own or is made here.
func (s *Server) named(ctx context.Context, fields ...any) []any {
	id := one(metadata.ValueFromIncomingContext(ctx, requestIDKey))
	if !saneID.MatchString(id) {
		id = "req_" + rand.Text()
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(requestIDKey, id)) // fails where the caller is gone
	all := []any{"request_id", id}
	if s.TraceIDs != nil {
		traceID, spanID := s.TraceIDs(ctx)
		for _, field := range [][2]string{{"trace_id", traceID}, {"span_id", spanID}} {
			if field[1] != "" {
				all = append(all, field[0], field[1])
			}
		}
	}
	return append(all, fields...)
}
