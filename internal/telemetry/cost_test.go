package telemetry

import (
	"net/http"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// What the spans of a request with one manager call and one command cost; `go run .
// -instrumentation` in bench/ says how much of a decision that is.
func BenchmarkSpansOfARequest(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"sampled": sdktrace.AlwaysSample(), "not sampled": sdktrace.NeverSample()} {
		b.Run(name, func(b *testing.B) {
			tracer := &Tracer{tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)).Tracer("b")}
			header := http.Header{"Traceparent": {"00-0000000000000000000000000000000a-000000000000000b-01"}}
			b.ReportAllocs()
			for b.Loop() {
				begun := time.Now()
				ctx, ended := tracer.Request(b.Context(), header, "POST", "/v1/ratelimit/check")
				inner, stepped := tracer.Step(ctx, "ratelimit check")
				tracer.StoreTried(inner, "redis", "rate_bucket", "evalsha", "ok", begun)
				stepped(200, "")
				ended(200, "")
			}
		})
	}
}
