package rls

import (
	"context"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health says of the server, and of the one service by its name, what /readyz says
// of the process.
type health struct {
	healthpb.UnimplementedHealthServer
	ready func() error
	every time.Duration // between looks of a Watch
}

func (h *health) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !known(req.GetService()) {
		return nil, status.Error(codes.NotFound, "no such service")
	}
	return &healthpb.HealthCheckResponse{Status: h.now()}, nil
}

// Watch sends the status, and then every change of it. Of a service that is not
// here it says so, as the protocol wants it.
func (h *health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	look := time.NewTicker(h.every)
	defer look.Stop()
	for last := healthpb.HealthCheckResponse_UNKNOWN; ; {
		now := healthpb.HealthCheckResponse_SERVICE_UNKNOWN
		if known(req.GetService()) {
			now = h.now()
		}
		if now != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-look.C:
		}
	}
}

func known(service string) bool {
	return service == "" || service == rlspb.RateLimitService_ServiceDesc.ServiceName
}

func (h *health) now() healthpb.HealthCheckResponse_ServingStatus {
	if h.ready() != nil {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}
