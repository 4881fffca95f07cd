package rls_test

import (
	"context"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/policy"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// What a request costs from its bytes to those of the answer.
func BenchmarkShouldRateLimit(b *testing.B) {
	set, err := policy.Parse("policies.yaml", []byte(policies))
	if err != nil {
		b.Fatal(err)
	}
	limits, err := ratelimit.New(memory(), set.Policies, ratelimit.Options{})
	if err != nil {
		b.Fatal(err)
	}
	keys := auth.New(auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), auth.Options{})
	secret, _, err := keys.Create(b.Context(), "one", nil, auth.NewKey{Name: "proxy", Scopes: []auth.Scope{auth.RatelimitCheck}})
	if err != nil {
		b.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+secret.Reveal()))
	server := rls.New(limits, keys, rls.Options{})
	for name, req := range map[string]*rlspb.RateLimitRequest{
		"1 descriptor":  request("edge", 1, "tenant=a"),
		"4 descriptors": request("edge", 1, "tenant=b", "tenant=b user=u", "tenant=b user=v", "tenant=b path=/p"),
	} {
		raw, err := proto.Marshal(req)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := server.Answer(ctx, raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
