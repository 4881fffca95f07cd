package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/keytype"
)

// traceSettings reads OpenTelemetry's own environment variables: every program of a
// deployment has them under these names. Without an endpoint nothing is traced. What
// only concerns the connection to the collector (headers, certificates, timeout) the
// exporter reads itself; here it is only checked.
func traceSettings(getenv func(string) string) (opts telemetry.TraceOptions, on bool, err error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return opts, false, nil
	}
	var mistakes []error
	wrong := func(name, fix string) {
		mistakes = append(mistakes, fmt.Errorf("%s is %q: %s", name, getenv(name), fix))
	}
	if v := getenv("OTEL_TRACES_EXPORTER"); v != "" && v != "otlp" {
		wrong("OTEL_TRACES_EXPORTER", "write otlp or none, or leave it unset for otlp")
	}
	name := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if getenv(name) == "" {
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint := getenv(name)
	if endpoint == "" {
		return opts, false, errors.Join(mistakes...)
	}
	u, urlErr := url.Parse(endpoint)
	if urlErr != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		mistakes = append(mistakes, errors.New(name+" is no URL: write one of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318")) // not the value, which may hold a password
	} else if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1", "traces")
	}
	mistakes = append(mistakes, exporterMistakes(getenv)...)
	opts.Sampler, urlErr = sampler(getenv("OTEL_TRACES_SAMPLER"), getenv("OTEL_TRACES_SAMPLER_ARG"))
	if urlErr != nil {
		mistakes = append(mistakes, urlErr)
	}
	if opts.Resource, urlErr = resource(getenv("OTEL_RESOURCE_ATTRIBUTES"), getenv("OTEL_SERVICE_NAME")); urlErr != nil {
		mistakes = append(mistakes, urlErr)
	}
	if len(mistakes) > 0 {
		return opts, false, errors.Join(mistakes...)
	}
	opts.Endpoint = u.String()
	return opts, true, nil
}

// sampler is what decides which requests are traced. Unset it traces those that the
// caller traces, and those whose caller says nothing.
func sampler(name, arg string) (sdktrace.Sampler, error) {
	ratio := func() (sdktrace.Sampler, error) {
		share, err := strconv.ParseFloat(cmp.Or(arg, "1"), 64)
		if err != nil || !(share >= 0 && share <= 1) {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q: write a share from 0 to 1", arg)
		}
		return sdktrace.TraceIDRatioBased(share), nil
	}
	switch name {
	case "always_on":
		return sdktrace.AlwaysSample(), nil
	case "always_off":
		return sdktrace.NeverSample(), nil
	case "traceidratio":
		return ratio()
	case "", "parentbased_always_on":
		return sdktrace.ParentBased(sdktrace.AlwaysSample()), nil
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample()), nil
	case "parentbased_traceidratio":
		root, err := ratio()
		if err != nil {
			return nil, err
		}
		return sdktrace.ParentBased(root), nil
	}
	return nil, fmt.Errorf("OTEL_TRACES_SAMPLER is %q: write always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio", name)
}

// resource says what the spans are of. A service name of its own goes before the one in the list.
func resource(list, name string) ([]attribute.KeyValue, error) {
	all := []attribute.KeyValue{attribute.String("service.name", "coordsvc"), attribute.String("service.version", version())}
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, raw, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(raw))
		if key = strings.TrimSpace(key); !found || key == "" || err != nil {
			return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES is %q: write key=value,key=value, with percent signs before what is special", list)
		}
		all = append(all, attribute.String(key, value))
	}
	if name != "" {
		all = append(all, attribute.String("service.name", name))
	}
	return all, nil // of two with the same key the last counts
}

// rightTraces is the check of a command that traces, or that looks at the settings of one.
func rightTraces(getenv func(string) string) func(config) error {
	return func(config) error {
		_, _, err := traceSettings(getenv)
		return err
	}
}

// startTraces begins to send spans; without an endpoint there is no tracer.
func startTraces(ctx context.Context, getenv func(string) string, metrics *telemetry.Metrics, log *slog.Logger) (*telemetry.Tracer, error) {
	opts, on, err := traceSettings(getenv)
	if err != nil || !on {
		return nil, err
	}
	opts.Failing = func(err error) {
		if err != nil {
			log.Warn("spans are not sent", "error", notSent(err))
			return
		}
		log.Info("spans are sent again")
	}
	return metrics.StartTraces(ctx, opts)
}

// dynamoTraced makes the spans of the requests to DynamoDB.
func dynamoTraced(c config, tracer *telemetry.Tracer) func(*dynamodb.Options) {
	if tracer == nil {
		return func(*dynamodb.Options) {}
	}
	return dynamo.Trace(func(ctx context.Context, t dynamo.Try, header http.Header) func(dynamo.Try) {
		ended := tracer.DynamoTry(ctx, itemType(c, t), t.Operation, header)
		return func(t dynamo.Try) { ended(string(t.Outcome)) }
	})
}

// itemType is the key type of the first item of a request to DynamoDB.
func itemType(c config, t dynamo.Try) string {
	if of, known := keytype.OfItem(c.tablePrefix, t.Table, t.Partition, t.Sort); known {
		return of.Name
	}
	return "none"
}
