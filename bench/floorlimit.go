package main

import (
	"context"
	_ "embed" // the script
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
)

//go:embed floorlimit.lua
var floorSource string

// A limitFloor is the least that a rate limit can be: a router or a gRPC server, one
// pipeline for all callers, and one script. It has no policies, keys, metrics or headers.
type limitFloor struct {
	rlspb.UnimplementedRateLimitServiceServer
	pipeline *redis.AutoPipeliner
	script   string
}

type floorRequest struct {
	Policy      string            `json:"policy"`
	Descriptors map[string]string `json:"descriptors"`
}

type floorAnswer struct {
	Allowed      bool   `json:"allowed"`
	Policy       string `json:"policy"`
	RetryAfterMS int64  `json:"retry_after_ms"`
}

func serveLimitFloor(ctx context.Context, httpAddr, grpcAddr, redisAddr string) error {
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	f := limitFloor{}
	var err error
	if f.pipeline, err = client.AutoPipeline(); err != nil {
		return err
	}
	if f.script, err = client.ScriptLoad(ctx, floorSource).Result(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", grpcAddr) //nolint:noctx // bound at once
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(server, &f)
	go func() { _ = server.Serve(listener) }()

	e := echo.New()
	e.HideBanner = true
	e.POST("/answer", answerOnly)
	e.POST("/check", f.check)
	e.GET("/mallocs", mallocs)
	return e.Start(httpAddr)
}

// answerOnly decides nothing.
func answerOnly(c echo.Context) error {
	var req floorRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, floorAnswer{Allowed: true, Policy: req.Policy})
}

func (f *limitFloor) check(c echo.Context) error {
	var req floorRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	keys := make([]string, 0, len(req.Descriptors))
	for _, name := range slices.Sorted(maps.Keys(req.Descriptors)) {
		keys = append(keys, req.Policy+":"+name+":"+req.Descriptors[name])
	}
	wait, err := f.decide(c.Request().Context(), req.Policy, keys)
	if err != nil {
		return err
	}
	if wait > 0 {
		return c.JSON(http.StatusTooManyRequests, floorAnswer{Policy: req.Policy, RetryAfterMS: wait.Milliseconds()})
	}
	return c.JSON(http.StatusOK, floorAnswer{Allowed: true, Policy: req.Policy})
}

// ShouldRateLimit implements the rate limit service.
func (f *limitFloor) ShouldRateLimit(ctx context.Context, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	keys := make([]string, 0, len(req.GetDescriptors()))
	for _, d := range req.GetDescriptors() {
		keys = append(keys, req.GetDomain()+":"+joined(d))
	}
	wait, err := f.decide(ctx, req.GetDomain(), keys)
	if err != nil {
		return nil, err
	}
	code := rlspb.RateLimitResponse_OK
	if wait > 0 {
		code = rlspb.RateLimitResponse_OVER_LIMIT
	}
	resp := &rlspb.RateLimitResponse{OverallCode: code}
	for range keys {
		resp.Statuses = append(resp.Statuses, &rlspb.RateLimitResponse_DescriptorStatus{Code: code})
	}
	return resp, nil
}

func joined(d *commonpb.RateLimitDescriptor) string {
	var parts []string
	for _, e := range d.GetEntries() {
		parts = append(parts, e.GetKey()+"="+e.GetValue())
	}
	return strings.Join(parts, ",")
}

// decide takes from the same limits as coordsvc has.
func (f *limitFloor) decide(ctx context.Context, policy string, keys []string) (wait time.Duration, err error) {
	day := (24 * time.Hour).Microseconds()
	gap, ahead := 365*day/roomy, 365*day
	if policy == tight {
		gap, ahead = day, day
	}
	answer, err := f.pipeline.EvalSha(ctx, f.script, keys, gap, ahead).Int64Slice()
	if err != nil {
		return 0, err
	}
	if len(answer) != 2 {
		return 0, fmt.Errorf("the script answered %v", answer)
	}
	return time.Duration(answer[1]) * time.Microsecond, nil
}

// mallocs tells how many objects the program has allocated.
func mallocs(c echo.Context) error {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return c.String(http.StatusOK, fmt.Sprintf("mallocs %d\n", stats.Mallocs))
}
