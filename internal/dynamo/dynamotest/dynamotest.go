// Package dynamotest decides, in tests, what becomes of requests on their way to a
// DynamoDB engine: they are counted, and their answers can be lost.
package dynamotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// ErrLost is what the SDK meets instead of a lost answer.
var ErrLost = errors.New("dynamotest: connection reset by the test")

// A Request is one that went over the wire.
type Request struct {
	Operation string // for example UpdateItem
	Body      map[string]any
}

// A Wire lies between a client and its engine.
type Wire struct {
	// HideOldItems takes the item out of every failed condition, as engines do that
	// do not know the option.
	HideOldItems bool

	mu       sync.Mutex // guards the rest
	requests []Request
	lose     int
	refuse   int
	canceled [][]string // codes to answer the next transactions with
	between  func()
	before   map[int]func() // by how many writes from now
}

// Option makes a client send over the wire, with the SDK's own retries but
// without their pauses.
func (w *Wire) Option(o *dynamodb.Options) {
	o.HTTPClient = &http.Client{Transport: w}
	o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
		s.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	})
}

// LoseReplies lets the engine carry out the next n writes, drops their answers and
// calls between, if there is one, after the first of them.
func (w *Wire) LoseReplies(n int, between func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose, w.between = n, between
}

// BeforeWrite calls before ahead of the nth write from now, while that is held up.
func (w *Wire) BeforeWrite(n int, before func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.before == nil {
		w.before = map[int]func(){}
	}
	w.before[n] = before
}

// Refuse answers the next n writes itself, as DynamoDB does when it throttles.
func (w *Wire) Refuse(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = n
}

// Cancel answers the next transaction itself, as DynamoDB does when it cancels one
// for these reasons; each further call is for one more.
func (w *Wire) Cancel(codes ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.canceled = append(w.canceled, codes)
}

// Take returns the requests sent since it was last called.
func (w *Wire) Take() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.requests = nil }()
	return w.requests
}

// RoundTrip implements http.RoundTripper.
func (w *Wire) RoundTrip(r *http.Request) (*http.Response, error) {
	write, refusal := w.note(r)
	if refusal != "" {
		return refused(r, refusal), nil
	}
	if before := w.due(write); before != nil {
		before()
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if lost, between := w.loses(write); lost {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if between != nil {
			between()
		}
		return nil, ErrLost
	}
	if w.HideOldItems && answer.StatusCode == http.StatusBadRequest {
		return answer, hideItems(answer)
	}
	return answer, nil
}

// note keeps a copy of the request and leaves its body to be sent.
func (w *Wire) note(r *http.Request) (write bool, refusal string) {
	request, raw, err := read(r)
	if err != nil {
		panic(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, request)
	write = request.writes()
	switch {
	case write && w.refuse > 0:
		w.refuse--
		return true, exception("ProvisionedThroughputExceededException")
	case request.Operation == transact && len(w.canceled) > 0:
		refusal, w.canceled = cancellation(w.canceled[0]), w.canceled[1:]
	}
	return write, refusal
}

const (
	update   = "UpdateItem"
	transact = "TransactWriteItems"
)

func (r Request) writes() bool { return r.Operation == update || r.Operation == transact }

// read takes the request's body out.
func read(r *http.Request) (Request, []byte, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return Request{}, nil, err
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	request := Request{Operation: operation}
	return request, raw, json.Unmarshal(raw, &request.Body)
}

// exception is the body of a refusal.
func exception(name string) string {
	return `{"__type":"com.amazonaws.dynamodb.v20120810#` + name + `","message":"made by the test"}`
}

func cancellation(codes []string) string {
	var reasons []map[string]string
	for _, code := range codes {
		reasons = append(reasons, map[string]string{"Code": code})
	}
	raw, err := json.Marshal(map[string]any{
		"__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException", "message": "made by the test", "CancellationReasons": reasons,
	})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func (w *Wire) due(write bool) (before func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !write {
		return nil
	}
	next := map[int]func(){}
	for n, f := range w.before {
		next[n-1] = f
	}
	w.before = next
	before = next[0]
	delete(next, 0)
	return before
}

func (w *Wire) loses(write bool) (lost bool, between func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !write || w.lose == 0 {
		return false, nil
	}
	w.lose--
	between, w.between = w.between, nil
	return true, between
}

func refused(r *http.Request, body string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusBadRequest, Request: r, Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func hideItems(answer *http.Response) error {
	raw, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		return err
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return err
	}
	delete(body, "Item")
	reasons, _ := body["CancellationReasons"].([]any)
	for _, reason := range reasons {
		if r, ok := reason.(map[string]any); ok {
			delete(r, "Item")
		}
	}
	if raw, err = json.Marshal(body); err != nil {
		return err
	}
	answer.Header.Del("X-Amz-Crc32")
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	return nil
}

var (
	expressions = []string{"UpdateExpression", "ConditionExpression", "KeyConditionExpression", "FilterExpression", "ProjectionExpression"}
	word        = regexp.MustCompile(`[#:]?\w+`)
	grammar     = regexp.MustCompile(`^(SET|REMOVE|ADD|DELETE|AND|OR|NOT|if_not_exists|attribute_exists|begins_with|attribute_not_exists)$`)
)

// BareNames lists the words of the request's expressions that are neither the
// expressions' own nor placeholders: attributes by their plain names, which
// collide with DynamoDB's reserved words.
func (r Request) BareNames() []string { return bareNames(r.Body) }

func bareNames(body map[string]any) []string {
	var bare []string
	for _, e := range expressions {
		text, _ := body[e].(string)
		for _, w := range word.FindAllString(text, -1) {
			if w[0] != '#' && w[0] != ':' && !grammar.MatchString(w) {
				bare = append(bare, fmt.Sprintf("%s in %q", w, text))
			}
		}
	}
	items, _ := body["TransactItems"].([]any)
	for _, item := range items {
		actions, _ := item.(map[string]any)
		for _, action := range actions {
			if a, ok := action.(map[string]any); ok {
				bare = append(bare, bareNames(a)...)
			}
		}
	}
	return bare
}
