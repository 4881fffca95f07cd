package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// A grpcService answers the rate limit requests of proxies. It is nil without COORD_GRPC_ADDR.
type grpcService struct {
	server   *rls.Server
	listener net.Listener
}

func listenGRPC(ctx context.Context, c config, limits *ratelimit.Limiter, keys *auth.Manager, unready func() error, metrics *telemetry.Metrics, tracer *telemetry.Tracer, log *slog.Logger) (*grpcService, error) {
	if c.grpcAddr == "" {
		return nil, nil //nolint:nilnil // there is none, and that is right
	}
	l, err := listen(ctx, "COORD_GRPC_ADDR", c.grpcAddr)
	if err != nil {
		return nil, err
	}
	opts := rls.Options{
		Fields: ratelimithttp.Fields{Older: c.xRateLimit, Now: c.now}, Ready: unready, Log: log, TraceIDs: telemetry.CallTraceIDs,
	}
	if !c.unmeasured {
		opts.Observe = metrics.ObserveGRPC
	}
	if tracer != nil {
		opts.Trace = tracer
	}
	return &grpcService{listener: l, server: rls.New(limits, keys, opts)}, nil
}

func (g *grpcService) addr() string {
	if g == nil {
		return ""
	}
	return g.listener.Addr().String()
}

// run serves until ctx ends, and then lets requests in flight finish.
func (g *grpcService) run(ctx context.Context) error {
	if g == nil {
		return nil
	}
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(g.listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := g.server.Shutdown(ctx); err != nil {
		return fmt.Errorf("drain gRPC: %w", err)
	}
	return <-served
}
