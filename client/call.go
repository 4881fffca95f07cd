package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/keytype"
)

// A repeat says when a call may be tried again.
type repeat int

const (
	never repeat = iota // only where nothing was sent
	once                // only where it had no effect for certain
	keyed               // also under an Idempotency-Key, which gives the first answer again if there was one
	exact               // always: the same call again changes nothing more
)

// A call is one request with all its tries.
type call struct {
	method, route string   // as in the contract, with names in braces
	ids           []string // what stands for them, in their order
	query         url.Values
	body          any
	ifMatch       string // the ETag of what is replaced, where the route takes it
	repeat        repeat
	wait          time.Duration // that the service is asked to wait
	within        time.Duration // another time than Options.Timeout for all tries
}

// path is the route with its ids and its query, each percent-encoded.
func (r call) path() (string, error) {
	path := r.route
	for _, id := range r.ids {
		from, to := strings.IndexByte(path, '{'), strings.IndexByte(path, '}')
		if err := keytype.CheckID(path[from+1:to], id); err != nil {
			return "", err //nolint:wrapcheck // it names the field
		}
		path = path[:from] + url.PathEscape(id) + path[to+1:]
	}
	if len(r.query) > 0 {
		path += "?" + r.query.Encode()
	}
	return path, nil
}

// A reply is what came besides the body.
type reply struct {
	sent   time.Time // when the try that was answered was sent: what the answer says is valid counts from then
	header http.Header
}

// The pauses between two tries, where the service names none.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// maxBody is more than any answer of the service has.
const maxBody = 16 << 20

// do sends the call until it is answered, refused or out of time, and reads the
// answer into the last argument unless it is nil.
func (c *Client) do(ctx context.Context, r call, into any) (reply, error) {
	path, err := r.path()
	if err != nil {
		return reply{}, err
	}
	body, err := encode(r.body)
	if err != nil {
		return reply{}, err
	}
	total := c.opts.Timeout + r.wait
	if r.within > 0 {
		total = r.within
	}
	ctx, cancel := within(ctx, total)
	defer cancel()
	key := ""
	if r.repeat == keyed {
		key = rand.Text()
	}
	unknown := false // a try may have had its effect
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		got, err := c.try(ctx, r, path, key, body, into)
		if err == nil {
			return got, nil
		}
		unknown = unknown || errors.Is(err, keytype.ErrOutcomeUnknown) || r.repeat == keyed && IsCode(err, api.CodeIdempotencyInFlight)
		if unknown {
			doubt(err)
		}
		err = fmt.Errorf("%s %s: %w", r.method, r.route, err)
		wait := max(jittered(pause), askedToWait(err))
		if !r.again(err) || !left(ctx, wait) {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(wait):
		}
	}
}

// again says whether the call may be tried again after the error.
func (r call) again(err error) bool {
	if e, ok := errors.AsType[*NoAnswerError](err); ok {
		return !e.Sent || r.repeat >= keyed
	}
	p, ok := errors.AsType[*ProblemError](err)
	if !ok {
		return false
	}
	switch p.Code { //nolint:exhaustive // every other code is a refusal, or a defect
	case api.CodeStoreUnavailable, api.CodeClockSkew:
		return r.repeat >= once
	case api.CodeOutcomeUnknown: // under an Idempotency-Key it would be carried out anew
		return r.repeat == exact
	case api.CodeIdempotencyInFlight: // the key is this call's own, and so is what is at work: an earlier try, or one that the transport repeated
		return r.repeat == keyed
	}
	return false
}

// doubt has the error of a call say no longer that nothing happened, which is true of its last try only.
func doubt(err error) {
	if e, ok := errors.AsType[*NoAnswerError](err); ok {
		e.Sent = true
	}
	if p, ok := errors.AsType[*ProblemError](err); ok {
		switch p.Code { //nolint:exhaustive // every other code is as true of the call as of its last try
		case api.CodeStoreUnavailable, api.CodeClockSkew, api.CodeIdempotencyInFlight:
			p.unknown = true
		}
	}
}

func left(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > d
}

// jittered keeps callers that failed together from coming back together.
func jittered(d time.Duration) time.Duration { return d/2 + mathrand.N(d) } //nolint:gosec // no secret

func askedToWait(err error) time.Duration {
	if p, ok := errors.AsType[*ProblemError](err); ok {
		return p.RetryAfter
	}
	if e, ok := errors.AsType[*NoAnswerError](err); ok {
		return e.retryAfter
	}
	return 0
}

func encode(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	raw, err := api.Encode(body)
	if err != nil {
		return nil, fmt.Errorf("client: write the body: %w", err)
	}
	return raw, nil
}

// try sends the call once.
func (c *Client) try(ctx context.Context, r call, path, key string, body []byte, into any) (got reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.TryTimeout+r.wait)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return got, fmt.Errorf("client: make the request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.opts.APIKey)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if r.ifMatch != "" {
		req.Header.Set("If-Match", r.ifMatch)
	}
	got.sent = time.Now()
	resp, err := c.opts.HTTP.Do(req)
	if err != nil {
		return got, &NoAnswerError{Sent: connected.Load(), Err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	got.header = resp.Header
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return got, &NoAnswerError{Sent: true, Err: err}
	case resp.StatusCode >= http.StatusMultipleChoices:
		return got, problem(resp, raw)
	case into == nil && resp.StatusCode != http.StatusNoContent:
		return got, &NoAnswerError{Sent: true, Err: fmt.Errorf("status %d, which is not the contract's", resp.StatusCode)}
	case into == nil:
		return got, nil
	}
	if err := read(raw, into); err != nil {
		return got, &NoAnswerError{Sent: true, Err: fmt.Errorf("status %d with a body that is not the contract's: %w", resp.StatusCode, err)}
	}
	return got, nil
}

// read reads a success. One without what the contract requires of it comes from a
// proxy, or from another service, and must not pass for a verdict; nothing is read of it.
func read(raw []byte, into any) error {
	if answer := reflect.TypeOf(into).Elem(); answer.Kind() == reflect.Struct {
		var given map[string]json.RawMessage
		if err := json.Unmarshal(raw, &given); err != nil {
			return err //nolint:wrapcheck // the caller does
		}
		for field := range answer.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			if _, ok := given[name]; !ok && options == "" {
				return fmt.Errorf("%s is missing", name)
			}
		}
	}
	return json.Unmarshal(raw, into) //nolint:wrapcheck // the caller does
}

// problem reads an answer that is no success. One that is no problem of the service
// comes from a proxy, or from another service.
func problem(resp *http.Response, raw []byte) error {
	e := &ProblemError{raw: raw, RetryAfter: retryAfter(resp.Header)}
	if err := json.Unmarshal(raw, &e.Problem); err != nil || e.Code == "" || e.Type != "urn:coordsvc:problem:"+string(e.Code) {
		return &NoAnswerError{Sent: true, Err: fmt.Errorf("status %d without a problem", resp.StatusCode), retryAfter: e.RetryAfter}
	}
	if e.RetryAfterMS != nil { // the same, to the millisecond
		e.RetryAfter = ms(*e.RetryAfterMS)
	}
	return e
}

// retryAfter reads the header's seconds, or its date, which is by the clock of whoever set it.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return time.Duration(max(seconds, 0)) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0)
}
