package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// An answer is what the server does with one request after it has read it.
type answer func(s *server, w http.ResponseWriter)

// refuse answers as DynamoDB does: status and error code in its own body.
func refuse(status int, code string) answer {
	return func(_ *server, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"made by the test"}`, code)
	}
}

// drop closes the connection without an answer.
func drop(_ *server, w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// dropAndStop also takes no connection any more.
func dropAndStop(s *server, w http.ResponseWriter) {
	_ = s.Listener.Close()
	drop(s, w)
}

// cut sends half an answer.
func cut(s *server, w http.ResponseWriter) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, `{"Attributes":`)
	w.(http.Flusher).Flush()
	drop(s, w)
}

func hang(s *server, _ http.ResponseWriter) { <-s.done }

func accept(_ *server, w http.ResponseWriter) { _, _ = io.WriteString(w, `{}`) }

// A server plays its answers in order, the last one for ever.
type server struct {
	*httptest.Server
	requests atomic.Int64
	done     chan struct{}
}

func serve(t *testing.T, answers ...answer) *server {
	s := &server{done: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := int(s.requests.Add(1))
		answers[min(n, len(answers))-1](s, w)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(s.done) })
	return s
}

// client tries three times, without a pause and on a connection each.
func client(endpoint string, keys aws.CredentialsProvider) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: &endpoint,
		Credentials:  keys,
		HTTPClient:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		}),
	})
}

var keys = credentials.NewStaticCredentialsProvider("AKIDLOCAL", "secret", "")

func write(ctx context.Context, c *dynamodb.Client, options ...func(*dynamodb.Options)) error {
	_, err := c.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: aws.String("t"), Key: dynamo.Item{"pk": dynamo.S("k")},
	}, options...)
	return err
}

// L32: a throttle or a conflict is no stale answer and no missing item, and only
// what certainly had no effect says so.
func TestL32Fault(t *testing.T) {
	throttled := refuse(400, "ProvisionedThroughputExceededException")
	cases := []struct {
		name    string
		answers []answer
		tries   int64
		want    error // nil: no failure at all
	}{
		{"accepted", []answer{accept}, 1, nil},
		{"throttled for ever", []answer{throttled}, 3, keytype.ErrUnavailable},
		{"throttled once", []answer{throttled, accept}, 2, nil},
		{"ThrottlingException", []answer{refuse(400, "ThrottlingException")}, 3, keytype.ErrUnavailable},
		{"RequestLimitExceeded", []answer{refuse(400, "RequestLimitExceeded")}, 3, keytype.ErrUnavailable},
		{"no such table", []answer{refuse(400, "ResourceNotFoundException")}, 1, keytype.ErrUnavailable},
		{"access denied", []answer{refuse(400, "AccessDeniedException")}, 1, keytype.ErrUnavailable},
		{"bad signature", []answer{refuse(403, "InvalidSignatureException")}, 1, keytype.ErrUnavailable},
		{"unknown key", []answer{refuse(400, "UnrecognizedClientException")}, 1, keytype.ErrUnavailable},
		{"a defect of ours", []answer{refuse(400, "ValidationException")}, 1, keytype.ErrUnavailable},
		{"conflict is tried again", []answer{refuse(400, "TransactionConflictException"), accept}, 2, nil},
		{"conflict for ever", []answer{refuse(400, "TransactionConflictException")}, 3, keytype.ErrUnavailable},
		{"internal error", []answer{refuse(500, "InternalServerError")}, 3, keytype.ErrOutcomeUnknown},
		{"service unavailable", []answer{refuse(503, "ServiceUnavailable")}, 3, keytype.ErrOutcomeUnknown},
		{"throttle code on a 5xx proves nothing", []answer{refuse(503, "ThrottlingException")}, 3, keytype.ErrOutcomeUnknown},
		{"no answer", []answer{drop}, 3, keytype.ErrOutcomeUnknown},
		{"half an answer", []answer{cut}, 1, keytype.ErrOutcomeUnknown},
		{"no answer, then an answer", []answer{drop, accept}, 2, nil},
		// The last error alone would say "no effect" here.
		{"no answer, then throttled", []answer{drop, throttled}, 3, keytype.ErrOutcomeUnknown},
		{"internal error, then access denied", []answer{refuse(500, "InternalServerError"), refuse(400, "AccessDeniedException")}, 2, keytype.ErrOutcomeUnknown},
		{"no answer, then nobody listens", []answer{dropAndStop}, 1, keytype.ErrOutcomeUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.answers...)
			err := dynamo.Fault("write", write(t.Context(), client(s.URL, keys), dynamo.Track))
			expect(t, err, c.want)
			if got := s.requests.Load(); got != c.tries {
				t.Errorf("%d requests were sent, want %d", got, c.tries)
			}
		})
	}
}

func expect(t *testing.T, err, want error) {
	t.Helper()
	for _, sentinel := range []error{keytype.ErrUnavailable, keytype.ErrOutcomeUnknown} {
		if errors.Is(err, sentinel) != errors.Is(want, sentinel) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if (err == nil) != (want == nil) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestFaultOfContexts(t *testing.T) {
	t.Run("ended before it was sent", func(t *testing.T) {
		s := serve(t, accept)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := dynamo.Fault("write", write(ctx, client(s.URL, keys), dynamo.Track))
		expect(t, err, keytype.ErrUnavailable)
		if !errors.Is(err, context.Canceled) || s.requests.Load() != 0 {
			t.Errorf("got %v after %d requests, want context.Canceled after none", err, s.requests.Load())
		}
	})
	t.Run("ended while it waited", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := serve(t, func(s *server, w http.ResponseWriter) {
			cancel() // the request is here
			hang(s, w)
		})
		err := dynamo.Fault("write", write(ctx, client(s.URL, keys), dynamo.Track))
		expect(t, err, keytype.ErrOutcomeUnknown)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled in the chain", err)
		}
	})
}

func TestFaultBeforeAnythingWasSent(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		expect(t, dynamo.Fault("write", write(t.Context(), client("http://"+l.Addr().String(), keys), dynamo.Track)), keytype.ErrUnavailable)
	})
	t.Run("no credentials", func(t *testing.T) {
		s := serve(t, accept)
		none := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, errors.New("none here")
		})
		expect(t, dynamo.Fault("write", write(t.Context(), client(s.URL, none), dynamo.Track)), keytype.ErrUnavailable)
	})
}

// Without Track nobody knows about the tries before the last.
func TestFaultOfAnUntrackedCall(t *testing.T) {
	s := serve(t, refuse(400, "AccessDeniedException"))
	expect(t, dynamo.Fault("write", write(t.Context(), client(s.URL, keys))), keytype.ErrOutcomeUnknown)
}

func TestReadFault(t *testing.T) {
	s := serve(t, drop)
	_, err := client(s.URL, keys).GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String("t"), Key: dynamo.Item{"pk": dynamo.S("k")}})
	expect(t, dynamo.ReadFault("read", err), keytype.ErrUnavailable)
	expect(t, dynamo.ReadFault("read", nil), nil)
}

func TestFailedCondition(t *testing.T) {
	s := serve(t, func(_ *server, w http.ResponseWriter) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"no","Item":{"v":{"N":"1"},"owner":{"S":"a"}}}`)
	}, refuse(400, "ConditionalCheckFailedException"), refuse(400, "AccessDeniedException"))
	c := client(s.URL, keys)

	old, failed := dynamo.FailedCondition(write(t.Context(), c, dynamo.Track))
	if r := dynamo.Read(old, 1); !failed || r.Str("owner") != "a" || r.Err() != nil {
		t.Errorf("with the item: got %v, %v", old, failed)
	}
	if old, failed = dynamo.FailedCondition(write(t.Context(), c, dynamo.Track)); !failed || len(old) != 0 {
		t.Errorf("without the item: got %v, %v", old, failed)
	}
	if _, failed = dynamo.FailedCondition(write(t.Context(), c, dynamo.Track)); failed {
		t.Error("access denied counts as a failed condition")
	}
}
