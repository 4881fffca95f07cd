package telemetry

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// A Tracer makes the spans of one process: a request, what a manager does for it, and
// each request to a store. An attribute is a route pattern, a key type, a code or
// another word of a fixed list: no id, no key, no tenant and no text of an error. The
// names are those of OpenTelemetry's semantic conventions, where these have one.
//
// Stores make spans only within a request's, so that what the process does by itself
// makes none.
type Tracer struct {
	tracer trace.Tracer
	spans  *spanQueue
}

// w3c reads and writes traceparent and tracestate. Baggage is neither taken nor handed
// on: it may hold anything.
var w3c propagation.TraceContext

// What each request would make anew.
var (
	names  = childrenOf(func(l answerLabels) string { return l.method + " " + l.route })
	server = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
)

// Request begins the span of an HTTP request, in the trace that its header names, if
// it names one. The function ends it with the status and the problem's code, "" for none.
func (t *Tracer) Request(ctx context.Context, header http.Header, method, route string) (context.Context, func(status int, code string)) {
	method = bounded(method)
	ctx, span := t.tracer.Start(w3c.Extract(ctx, propagation.HeaderCarrier(header)), names.of(answerLabels{route: route, method: method}), server...)
	if !span.IsRecording() {
		return ctx, ignored
	}
	span.SetAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route))
	return ctx, func(status int, code string) {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		endWith(span, code, status >= http.StatusInternalServerError)
	}
}

// Call begins the span of a gRPC request, in the trace that its metadata names, if it
// names one. The function ends it with the status, or with what a rate limit request
// that was decided was told.
func (t *Tracer) Call(ctx context.Context, method string) (context.Context, func(code string)) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	ctx, span := t.tracer.Start(w3c.Extract(ctx, metadataCarrier(incoming)), service+"/"+name, server...)
	if !span.IsRecording() {
		return ctx, func(string) {}
	}
	span.SetAttributes(attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", service+"/"+name))
	return ctx, func(code string) {
		endWith(span, code, grpcFault(code))
	}
}

// grpcFault tells this service's faults from refusals and from mistakes of the caller.
func grpcFault(code string) bool {
	switch code {
	case "Unknown", "DeadlineExceeded", "Unimplemented", "Internal", "Unavailable", "DataLoss":
		return true
	}
	return false
}

// Step begins a span within one that is sampled. The name is one of a fixed list.
func (t *Tracer) Step(ctx context.Context, name string) (context.Context, func(status int, code string)) {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, ignored
	}
	ctx, span := t.tracer.Start(ctx, name)
	return ctx, func(status int, code string) { endWith(span, code, status >= http.StatusInternalServerError) }
}

func ignored(int, string) {}

// endWith ends a span. A refusal is an answer and no error, as everywhere.
func endWith(span trace.Span, code string, fault bool) {
	if code != "" {
		span.SetAttributes(attribute.String("coordsvc.code", code))
	}
	if fault {
		span.SetAttributes(attribute.String("error.type", code))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// StoreTried makes the span of a request to a store that has ended.
func (t *Tracer) StoreTried(ctx context.Context, store, keyType, operation, outcome string, begun time.Time) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	_, span := t.tracer.Start(ctx, store+" "+operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(begun))
	endStore(span, store, keyType, operation, outcome)
}

// DynamoTry begins the span of a request to DynamoDB, and names it in the header.
func (t *Tracer) DynamoTry(ctx context.Context, keyType, operation string, header http.Header) (end func(outcome string)) {
	if parent := trace.SpanContextFromContext(ctx); !parent.IsSampled() {
		w3c.Inject(ctx, propagation.HeaderCarrier(header)) // that whoever sees it does not sample it either
		return func(string) {}
	}
	ctx, span := t.tracer.Start(ctx, "dynamodb "+operation, trace.WithSpanKind(trace.SpanKindClient))
	w3c.Inject(ctx, propagation.HeaderCarrier(header))
	return func(outcome string) { endStore(span, "dynamodb", keyType, operation, outcome) }
}

// systems are the stores' names in the semantic conventions.
var systems = map[string]string{"dynamodb": "aws.dynamodb", "redis": "redis", "file": "bbolt"}

func endStore(span trace.Span, store, keyType, operation, outcome string) {
	span.SetAttributes(
		attribute.String("db.system.name", systems[store]),
		attribute.String("db.operation.name", operation),
		attribute.String("coordsvc.key_type", keyType),
		attribute.String("coordsvc.outcome", outcome),
	)
	if outcome != "ok" && outcome != "refused" {
		span.SetAttributes(attribute.String("error.type", outcome))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// TraceIDs are what a line of the log says of the request's trace, "" where there is
// none: the caller's trace also where this process traces nothing.
func TraceIDs(ctx context.Context, header http.Header) (traceID, spanID string) {
	return idsOf(ctx, propagation.HeaderCarrier(header))
}

// CallTraceIDs is TraceIDs for a gRPC request.
func CallTraceIDs(ctx context.Context) (traceID, spanID string) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	return idsOf(ctx, metadataCarrier(incoming))
}

func idsOf(ctx context.Context, carrier propagation.TextMapCarrier) (traceID, spanID string) {
	if own := trace.SpanContextFromContext(ctx); own.IsValid() {
		return own.TraceID().String(), own.SpanID().String()
	}
	callers := trace.SpanContextFromContext(w3c.Extract(ctx, carrier))
	if !callers.IsValid() {
		return "", ""
	}
	return callers.TraceID().String(), "" // the span is the caller's, and not this request's
}

// metadataCarrier reads the metadata of a gRPC request.
type metadataCarrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (m metadataCarrier) Get(key string) string {
	if values := metadata.MD(m).Get(key); len(values) == 1 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (m metadataCarrier) Set(key, value string) { metadata.MD(m).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (m metadataCarrier) Keys() []string { return nil }
