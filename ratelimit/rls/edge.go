package rls

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/deadline"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// edge is around every request. It bounds its time, where the caller's deadline does not.
func (s *Server) edge(ctx context.Context, method string, handle func(context.Context) (any, error)) (any, error) {
	begun := time.Now()
	at := begun.Add(s.Timeout)
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(at) {
		return s.observed(ctx, begun, method, handle)
	}
	bounded := deadline.New(ctx, at)
	defer bounded.End()
	return s.observed(bounded, begun, method, handle) //nolint:contextcheck // it is made of the request's own
}

// observed turns errors and panics into statuses, and reports how it went.
func (s *Server) observed(ctx context.Context, begun time.Time, method string, handle func(context.Context) (any, error)) (any, error) {
	ctx, ended := s.traced(ctx, method)
	resp, err := recovered(ctx, handle)
	if err != nil {
		err = s.statusOf(ctx, method, err)
	}
	told := code(resp, err)
	s.Observe(method, told, time.Since(begun))
	ended(told)
	return resp, err
}

// unary is the edge of what is not a rate limit request.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return s.edge(ctx, info.FullMethod, func(ctx context.Context) (any, error) { return handle(ctx, req) })
}

// shouldRateLimit reads a request and answers it.
func (s *Server) shouldRateLimit(ctx context.Context, read func(any) error) (any, error) {
	c := calls.Get().(*call) //nolint:forcetypeassert // nothing else is in it
	defer c.release()
	if err := read(&c.request); err != nil {
		return nil, err
	}
	return s.edge(ctx, rlspb.RateLimitService_ShouldRateLimit_FullMethodName, func(ctx context.Context) (any, error) {
		return s.check(ctx, c)
	})
}

// The codes that answers are counted by, in words.
var okCode, overCode = rlspb.RateLimitResponse_OK.String(), rlspb.RateLimitResponse_OVER_LIMIT.String()

// code tells a refusal from an answer that lets the request pass.
func code(resp any, err error) string {
	if r, limited := resp.(*reply); limited && err == nil {
		return r.code
	}
	return status.Code(err).String()
}

// stream is around what does not end by itself. It ends with the server.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ended := make(chan error, 1)
	go func() {
		_, err := recovered(stream.Context(), func(context.Context) (any, error) { return nil, handle(srv, stream) })
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			return s.statusOf(stream.Context(), info.FullMethod, err)
		}
		return nil
	case <-s.ending:
		return status.Error(codes.Unavailable, "the service ends")
	}
}

// A panicError is a defect that a handler panicked with.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func recovered(ctx context.Context, handle func(context.Context) (any, error)) (resp any, err error) {
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, &panicError{v, debug.Stack()}
		}
	}()
	return handle(ctx)
}

// caller finds the key in the metadata, and demands the scope.
func (s *Server) caller(ctx context.Context) (auth.Key, error) {
	scheme, secret, found := strings.Cut(one(metadata.ValueFromIncomingContext(ctx, "authorization")), " ")
	secret = strings.TrimLeft(secret, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return auth.Key{}, auth.ErrUnauthenticated
	}
	ctx, ended := s.step(ctx, "auth authenticate")
	key, err := s.keys.Authenticate(ctx, secret)
	ended(err)
	if err != nil {
		return auth.Key{}, fmt.Errorf("authenticate: %w", err)
	}
	if !key.Allows(auth.RatelimitCheck) {
		return auth.Key{}, auth.ErrScope
	}
	return key, nil
}

// one is the only value, "" where there is none, or several.
func one(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// statusOf says what the error means. It is the only place that does, and no text of
// a store gets through it.
func (s *Server) statusOf(ctx context.Context, method string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if cause := ctx.Err(); cause != nil {
		return status.FromContextError(cause).Err() // nobody waits for what the error says
	}
	if e, ok := errors.AsType[*keytype.ValueError](err); ok {
		return status.Error(codes.InvalidArgument, e.Error())
	}
	switch {
	case errors.Is(err, auth.ErrUnauthenticated):
		return status.Error(codes.Unauthenticated, "send the metadata authorization: Bearer csk_… with a key that is known, not expired and not revoked")
	case errors.Is(err, auth.ErrScope):
		return status.Error(codes.PermissionDenied, "the key lacks the scope "+string(auth.RatelimitCheck))
	case errors.Is(err, ratelimit.ErrUnknownPolicy):
		return status.Error(codes.NotFound, "no policy has the name of the domain")
	case errors.Is(err, keytype.ErrUnavailable), errors.Is(err, keytype.ErrOutcomeUnknown):
		s.Log.WarnContext(ctx, "store failed", s.named(ctx, "method", method, "error", err)...)
		return status.Error(codes.Unavailable, "the store is unavailable: try again later")
	}
	args := s.named(ctx, "method", method, "error", err)
	if e, ok := errors.AsType[*panicError](err); ok {
		args = append(args, "stack", string(e.stack))
	}
	s.Log.ErrorContext(ctx, "defect", args...)
	return status.Error(codes.Internal, "the service has a defect, which is logged")
}
