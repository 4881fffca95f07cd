package rls_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// A line of the log names the request as the trailer does, and its trace.
func TestALogLineNamesTheRequest(t *testing.T) {
	for name, store := range map[string]ratelimit.Store{"store failed": failing{}, "defect": panicking{}} {
		r := serve(t, store, ratelimit.Options{}, rls.Options{TraceIDs: func(ctx context.Context) (string, string) {
			return strings.Join(metadata.ValueFromIncomingContext(ctx, "traceparent"), ""), "the-span"
		}})
		for _, c := range []struct{ sent, want string }{
			{"the-request", "^the-request$"},
			{"", "^req_[A-Z2-7]{26}$"},
			{"a b", "^req_[A-Z2-7]{26}$"},
		} {
			ctx := metadata.AppendToOutgoingContext(withKey(t.Context(), r.key), "traceparent", "the-trace")
			if c.sent != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", c.sent)
			}
			var trailer metadata.MD
			if _, err := r.client.ShouldRateLimit(ctx, request("edge", 0, "tenant=a"), grpc.Trailer(&trailer)); err == nil {
				t.Error("it was answered")
			}
			id := strings.Join(trailer.Get("x-request-id"), " ")
			if !regexp.MustCompile(c.want).MatchString(id) {
				t.Errorf("%s: the trailer says %q", name, id)
			}
			if log := r.log.String(); !strings.Contains(log, "request_id="+id+" trace_id=the-trace span_id=the-span") || !strings.Contains(log, `msg="`+name) && !strings.Contains(log, "msg="+name) {
				t.Errorf("the log says %q", log)
			}
		}
	}
}

// A tracer writes down which spans end, and how.
type tracer struct{ seen lines }

func (tr *tracer) Call(ctx context.Context, method string) (context.Context, func(string)) {
	return ctx, func(code string) { fmt.Fprintln(&tr.seen, method, code) }
}

func (tr *tracer) Step(ctx context.Context, name string) (context.Context, func(int, string)) {
	return ctx, func(status int, code string) { fmt.Fprintln(&tr.seen, name, status, code) }
}

// Rate limit requests have a span, with one for each part within, and others have none.
func TestRateLimitRequestsAreTraced(t *testing.T) {
	tr := &tracer{}
	r := serve(t, memory(), ratelimit.Options{}, rls.Options{Trace: tr})
	if _, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	r.must(request("edge", 0, "tenant=a"))
	const want = "auth authenticate 200 \nratelimit check 200 \n/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit OK\n"
	if got := tr.seen.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
