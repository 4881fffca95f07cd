// Package rls decides what a proxy's rate limit request means: it serves
// envoy.service.ratelimit.v3 over gRPC on the same limiter as the HTTP API.
//
// The domain names a policy, the entries of a descriptor are its descriptors, and
// all descriptors of a request are charged together or not at all. A limit of the
// policy counts for every descriptor that has its whole key.
package rls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// Bounds of what one connection may cost.
const (
	maxMessage = 2 << 20 // bytes of a request: each descriptor may repeat a header of 60 KB
	maxHeader  = 32 << 10
	maxStreams = 1000 // requests in flight on one connection

	// What a peer may send before it is read. Windows that stay as they are save a ping for each
	// request, by which gRPC finds out how far a peer is: a write here, and a read.
	streamWindow = 256 << 10
	connWindow   = 1 << 20

	workers = 128 // goroutines that keep a stack which has grown: more requests at once get new ones
)

// pings say when a peer is cut off, whether it says nothing or too much.
type pings struct {
	after   time.Duration // a peer that says nothing for so long is asked whether it lives
	timeout time.Duration // for its answer
	least   time.Duration // a peer that pings more often is cut off
}

var usualPings = pings{after: 30 * time.Second, timeout: 10 * time.Second, least: 10 * time.Second}

// keys finds the caller's key.
type keys interface {
	Authenticate(ctx context.Context, secret string) (auth.Key, error)
}

// Options of a server; the zero value works.
type Options struct {
	Fields  ratelimithttp.Fields                          // the header fields of answers
	Ready   func() error                                  // what health says; always serving where nil
	Log     *slog.Logger                                  // nothing is logged where nil
	Observe func(method, code string, took time.Duration) // told of every answer; no argument holds an id
	Timeout time.Duration                                 // a request's time, where its deadline is later; 0 = 8 s
	Trace   Tracer                                        // nothing is traced where nil
	// TraceIDs finds the trace of a request for the log, "" where there is none; nil finds none.
	TraceIDs func(ctx context.Context) (traceID, spanID string)

	pings pings // shorter in tests; zero: as usual
}

// A Server answers rate limit requests, and besides them health and reflection,
// which need no key.
type Server struct {
	Options
	limits *ratelimit.Limiter
	keys   keys
	server *grpc.Server
	end    func()        // closes ending
	ending chan struct{} // closed by Shutdown
}

// New makes a server of a limiter for the callers that have a key with the scope
// ratelimit:check.
func New(limits *ratelimit.Limiter, k keys, opts Options) *Server {
	s := &Server{Options: opts, limits: limits, keys: k, ending: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ending) })
	if s.Ready == nil {
		s.Ready = func() error { return nil }
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Observe == nil {
		s.Observe = func(string, string, time.Duration) {}
	}
	if s.Timeout == 0 {
		s.Timeout = 8 * time.Second
	}
	if s.pings == (pings{}) {
		s.pings = usualPings
	}
	s.server = grpc.NewServer(
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(workers),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.pings.after, Timeout: s.pings.timeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: s.pings.least, PermitWithoutStream: true}),
	)
	s.server.RegisterService(&service, s)
	healthpb.RegisterHealthServer(s.server, &health{ready: s.Ready, every: time.Second})
	reflection.Register(s.server)
	return s
}

// service is the generated one with requests and answers of our own.
var service = grpc.ServiceDesc{
	ServiceName: rlspb.RateLimitService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "ShouldRateLimit",
		Handler: func(s any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return s.(*Server).shouldRateLimit(ctx, read) //nolint:forcetypeassert // it is registered for nothing else
		},
	}},
	Metadata: rlspb.RateLimitService_ServiceDesc.Metadata,
}

// Serve answers on the listener until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	if err := s.server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

// Shutdown takes no more requests, lets those in flight finish and ends the streams.
// What is not done when ctx ends is cut off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	done := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.server.Stop()
		<-done
		return ctx.Err()
	}
}
