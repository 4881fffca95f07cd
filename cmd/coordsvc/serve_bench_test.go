package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/coordsvc/coordsvc/integration/engine"
)

const servedPolicies = `version: 1
policies:
  - name: edge
    on_store_failure: fail_closed
    slot: [user]
    limits:
      - {name: user, key: [user], algorithm: token_bucket, rate: 1000000/s, burst: 1000000}
      - {name: path, key: [user, path], algorithm: token_bucket, rate: 1000000/s, burst: 1000000}
`

// BenchmarkServe is the whole service on a Redis under checks over HTTP and gRPC, with
// its callers in the same process. The profile that the service is compiled with is one
// of this benchmark.
func BenchmarkServe(b *testing.B) {
	dir := b.TempDir()
	policies := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(policies, []byte(servedPolicies), 0o600); err != nil {
		b.Fatal(err)
	}
	settings := map[string]string{
		"COORD_DATA_DIR": filepath.Join(dir, "data"), "COORD_POLICY_PATH": policies, "COORD_REDIS_BUDGET_MS": "1000",
		"COORD_REDIS_URL": "redis://" + engine.Redis(b).Addr, "COORD_REDIS_PREFIX": engine.FreshPrefix(),
		"COORD_HTTP_ADDR": "127.0.0.1:0", "COORD_OPS_ADDR": "127.0.0.1:0", "COORD_GRPC_ADDR": "127.0.0.1:0",
	}
	ctx, cancel := context.WithCancel(b.Context())
	ready, served := make(chan addresses, 1), make(chan error, 1)
	go func() {
		served <- serve(ctx, nil, func(name string) string { return settings[name] }, io.Discard, io.Discard, func(a addresses) { ready <- a })
	}()
	b.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			b.Error(err)
		}
	})
	var at addresses
	select {
	case at = <-ready:
	case err := <-served:
		b.Fatal(err)
	}
	key, err := readKeyLine(filepath.Join(dir, "data", "first-key"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("HTTP", func(b *testing.B) { manyCallers(b, func() func(int64) error { return httpCaller(b, at.http, key) }) })
	b.Run("gRPC", func(b *testing.B) { manyCallers(b, func() func(int64) error { return grpcCaller(b, at.grpc, key) }) })
}

// manyCallers has callers of their own take turns.
func manyCallers(b *testing.B, newCaller func() func(call int64) error) {
	b.Helper()
	var calls atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		call := newCaller()
		for pb.Next() {
			if err := call(calls.Add(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func httpCaller(b *testing.B, addr, key string) func(int64) error {
	conn, err := new(net.Dialer).DialContext(b.Context(), "tcp", addr)
	if err != nil {
		b.Error(err)
		return func(int64) error { return err }
	}
	b.Cleanup(func() { _ = conn.Close() })
	answers := bufio.NewReader(conn)
	return func(call int64) error {
		body := fmt.Sprintf(`{"policy":"edge","descriptors":{"user":"u%d","path":"p"}}`, call%10_000)
		if _, err := fmt.Fprintf(conn, "POST /v1/ratelimit/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body); err != nil {
			return err
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
		}
		return err
	}
}

func grpcCaller(b *testing.B, addr, key string) func(int64) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Error(err)
		return func(int64) error { return err }
	}
	b.Cleanup(func() { _ = conn.Close() })
	client := rlspb.NewRateLimitServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(b.Context(), "authorization", "Bearer "+key)
	return func(call int64) error {
		entry := &commonpb.RateLimitDescriptor_Entry{Key: "user", Value: fmt.Sprint("u", call%10_000)}
		resp, err := client.ShouldRateLimit(ctx, &rlspb.RateLimitRequest{Domain: "edge", Descriptors: []*commonpb.RateLimitDescriptor{{Entries: []*commonpb.RateLimitDescriptor_Entry{entry}}}})
		if err == nil && resp.GetOverallCode() != rlspb.RateLimitResponse_OK {
			err = fmt.Errorf("answered %v", resp)
		}
		return err
	}
}
