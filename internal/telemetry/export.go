package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	maxSpans  = 2048            // that wait to be sent, or are on their way
	flushTime = 3 * time.Second // for what is left at the end
)

// TraceOptions say where spans go, and which.
type TraceOptions struct {
	Endpoint string // URL of a collector that takes OTLP over HTTP, with its path
	Sampler  sdktrace.Sampler
	Resource []attribute.KeyValue // what the spans are of
	Failing  func(error)          // told of the first batch that is not taken, and with nil of the first that is again
}

// StartTraces begins to send spans. Whatever the collector does, requests do not wait
// for it: spans beyond [maxSpans] are dropped and counted. Headers, certificates and
// the time of a request to the collector are the exporter's own settings, OTEL_EXPORTER_OTLP_….
func (m *Metrics) StartTraces(ctx context.Context, opts TraceOptions) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(opts.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("start the exporter of traces: %w", err)
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(opts.Resource...))
	if err != nil {
		return nil, fmt.Errorf("describe this process: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) // Failing is told
	queue := newSpanQueue(exporter, opts.Failing, m.addTraces())
	queue.provider = sdktrace.NewTracerProvider(sdktrace.WithSampler(opts.Sampler), sdktrace.WithResource(res), sdktrace.WithSpanProcessor(queue))
	return &Tracer{queue.provider.Tracer("github.com/coordsvc/coordsvc"), queue}, nil
}

// Close sends what is left, for at most 3 s.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if err := t.spans.provider.Shutdown(ctx); err != nil {
		// What is on its way is given up as well.
		return fmt.Errorf("send the last spans: %w", errors.Join(err, t.spans.exporter.Shutdown(ctx)))
	}
	return nil
}

// addTraces makes the metric of the spans.
func (m *Metrics) addTraces() *prometheus.CounterVec {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_trace_spans_total",
		Help: "Sampled spans by outcome: sent, failed (the collector did not take them), dropped (too many were waiting).",
	}, []string{"outcome"})
	m.registry.MustRegister(spans)
	return spans
}

// A spanQueue is the SDK's batching, which drops what is too much without a word,
// behind a count of what is in it.
type spanQueue struct {
	sdktrace.SpanProcessor
	provider              *sdktrace.TracerProvider
	exporter              sdktrace.SpanExporter
	failing               func(error)
	fails                 atomic.Bool // the latest batch was not taken
	inside                atomic.Int64
	sent, failed, dropped prometheus.Counter
}

func newSpanQueue(exporter sdktrace.SpanExporter, failing func(error), spans *prometheus.CounterVec) *spanQueue {
	q := &spanQueue{
		exporter: exporter, failing: failing,
		sent: spans.WithLabelValues("sent"), failed: spans.WithLabelValues("failed"), dropped: spans.WithLabelValues("dropped"),
	}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(countedExporter{exporter, q}, sdktrace.WithMaxQueueSize(maxSpans))
	return q
}

// OnEnd implements sdktrace.SpanProcessor.
func (q *spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.inside.Add(1) > maxSpans {
		q.inside.Add(-1)
		q.dropped.Inc()
		return
	}
	q.SpanProcessor.OnEnd(s)
}

type countedExporter struct {
	sdktrace.SpanExporter
	queue *spanQueue
}

// ExportSpans implements sdktrace.SpanExporter.
func (e countedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.queue.inside.Add(-int64(len(spans)))
	if e.queue.fails.Swap(err != nil) != (err != nil) {
		e.queue.failing(err)
	}
	if err != nil {
		e.queue.failed.Add(float64(len(spans)))
		return err
	}
	e.queue.sent.Add(float64(len(spans)))
	return nil
}
