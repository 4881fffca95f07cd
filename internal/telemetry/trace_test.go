package telemetry

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"
)

// A shut exporter takes spans once it is opened, each batch with the next error.
type shut struct {
	opened chan struct{}
	errs   chan error
}

func (s shut) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	select {
	case <-s.opened:
		return <-s.errs
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (shut) Shutdown(context.Context) error { return nil }

// What waits for the collector is bounded, what is too much is counted, and the end is
// not waited for longer than it was said.
func TestSpansThatAreTooManyAreDropped(t *testing.T) {
	m, exporter := New(), shut{make(chan struct{}), make(chan error, 100)}
	var told []bool
	q := newSpanQueue(exporter, func(err error) { told = append(told, err != nil) }, m.addTraces())
	q.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(q))
	tracer := &Tracer{q.provider.Tracer("t"), q}
	request := func() {
		_, ended := tracer.Request(t.Context(), http.Header{}, "GET", "/x")
		ended(200, "")
	}
	for range maxSpans + 7 {
		request()
	}
	expectLines(t, m, []string{`coordsvc_trace_spans_total{outcome="dropped"} 7`, `coordsvc_trace_spans_total{outcome="sent"} 0`})
	exporter.errs <- errors.New("not taken")
	exporter.errs <- errors.New("nor this")
	close(exporter.errs) // nil from then on
	close(exporter.opened)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectLines(t, m, []string{`coordsvc_trace_spans_total{outcome="failed"} 1024`, `coordsvc_trace_spans_total{outcome="sent"} 1024`})
	if len(told) != 2 || !told[0] || told[1] {
		t.Errorf("told of failures: %v", told)
	}
	if n := q.inside.Load(); n != 0 {
		t.Errorf("%d spans are still inside", n)
	}
}

// Without a tracer, and beneath a request that is not sampled, a store's request makes no span.
func TestUnsampledMakesNoSpan(t *testing.T) {
	m := New()
	q := newSpanQueue(shut{}, nil, m.addTraces())
	q.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(q), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	tracer := &Tracer{q.provider.Tracer("t"), q}
	var none *Tracer
	none.StoreTried(t.Context(), "file", "lease", "view", "ok", time.Time{})
	tracer.StoreTried(t.Context(), "file", "lease", "view", "ok", time.Time{}) // the process' own
	header := http.Header{"Traceparent": {"00-0000000000000000000000000000000a-000000000000000b-00"}}
	ctx, ended := tracer.Request(t.Context(), header, "GET", "/x")
	stepped, stepEnded := tracer.Step(ctx, "x get")
	tracer.StoreTried(stepped, "file", "lease", "view", "ok", time.Time{})
	sent := http.Header{}
	tracer.DynamoTry(stepped, "lease", "GetItem", sent)("ok")
	stepEnded(200, "")
	ended(200, "")
	if n := q.inside.Load(); n != 0 {
		t.Errorf("%d spans", n)
	}
	if parent := sent.Get("Traceparent"); !strings.HasPrefix(parent, "00-0000000000000000000000000000000a-") || !strings.HasSuffix(parent, "-00") {
		t.Errorf("sent on: %q", parent)
	}
	if n := testing.AllocsPerRun(100, func() { none.StoreTried(ctx, "file", "lease", "view", "ok", time.Time{}) }); n != 0 {
		t.Errorf("%v allocations without a tracer", n)
	}
}

// The ids of a line are those of the span, else of the caller's trace, else none.
func TestTraceIDs(t *testing.T) {
	const trace = "0000000000000000000000000000000a"
	header := http.Header{"Traceparent": {"00-" + trace + "-000000000000000b-01"}}
	if id, span := TraceIDs(t.Context(), header); id != trace || span != "" {
		t.Errorf("%q %q", id, span)
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", header.Get("Traceparent")))
	if id, span := CallTraceIDs(ctx); id != trace || span != "" {
		t.Errorf("%q %q", id, span)
	}
	for _, wrong := range []string{"", "x", "00-" + trace + "-0000000000000000-01", "00-\n"} {
		if id, span := TraceIDs(t.Context(), http.Header{"Traceparent": {wrong}}); id != "" || span != "" {
			t.Errorf("%q: %q %q", wrong, id, span)
		}
	}
	tracer := &Tracer{tracer: sdktrace.NewTracerProvider().Tracer("t")}
	ctx, _ = tracer.Request(t.Context(), header, "GET", "/x")
	if id, span := TraceIDs(ctx, nil); id != trace || len(span) != 16 {
		t.Errorf("%q %q", id, span)
	}
}
