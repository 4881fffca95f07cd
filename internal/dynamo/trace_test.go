package dynamo_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
)

// Each try is told of before it goes out, with a header of its own, and after it.
func TestTraceIsAroundEveryTry(t *testing.T) {
	var sent []string
	s := serve(t, refuse(500, "InternalServerError"), accept)
	options := client(s.URL, keys).Options()
	options.HTTPClient = &http.Client{Transport: heard{&sent}}
	type key struct{}
	var told []string
	traced := dynamodb.New(options, dynamo.Trace(func(ctx context.Context, try dynamo.Try, header http.Header) func(dynamo.Try) {
		of, _ := ctx.Value(key{}).(string)
		header.Set("X-Traced", of+string(rune('1'+len(sent))))
		told = append(told, try.Operation+" "+try.Table+" "+try.Partition)
		return func(try dynamo.Try) { told = append(told, string(try.Outcome)) }
	}))
	if err := write(context.WithValue(t.Context(), key{}, "call "), traced); err != nil {
		t.Fatal(err)
	}
	if want := []string{"UpdateItem t k", "failed", "UpdateItem t k", "ok"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if want := []string{"call 1", "call 2"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

// heard notes what is sent.
type heard struct{ sent *[]string }

func (h heard) RoundTrip(r *http.Request) (*http.Response, error) {
	*h.sent = append(*h.sent, r.Header.Get("X-Traced"))
	return http.DefaultTransport.RoundTrip(r)
}
