package rls_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
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
