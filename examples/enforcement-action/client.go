package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// A client calls the service. Whoever uses it gives every call that changes
// something an id of its own (a request id, a claim, a token and a sequence), so
// that a call whose answer is lost can be sent again.
type client struct {
	url  string
	key  string // csk_…
	http *http.Client
}

const (
	oneTry   = 10 * time.Second // more than the service takes for a request that does not wait
	maxWait  = 5 * time.Second  // in line for a lease, within one try
	patience = time.Minute      // for a call with all its tries
)

// A refusal is an answer of the service: what was asked for has not happened.
type refusal struct{ api.Problem }

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s", r.Code, r.Detail) }

// refused reports whether the error is a refusal with one of the codes.
func refused(err error, codes ...api.ProblemCode) bool {
	r, ok := errors.AsType[*refusal](err)
	for _, code := range codes {
		if ok && r.Code == code {
			return true
		}
	}
	return false
}

// retryAfter is how long a refusal asks its caller to wait.
func retryAfter(err error) time.Duration {
	if r, ok := errors.AsType[*refusal](err); ok && r.RetryAfterMS != nil {
		return time.Duration(*r.RetryAfterMS) * time.Millisecond
	}
	return 0
}

// call sends the request until there is an answer, and reads that into the last
// argument unless it is nil. Its error is a *refusal, or the last failure once
// its time is over: then nobody knows what has happened.
func (c *client) call(ctx context.Context, method, path string, body, into any) error {
	raw, err := encode(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := c.once(ctx, method, path, raw, into)
		if _, answered := errors.AsType[*refusal](err); err == nil || answered && !transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", method, path, err)
		case <-time.After(pause):
		}
	}
}

// transient: the store or this node's clock failed, or nobody knows whether it happened.
// The same call, with the same ids, is the right one in each case.
func transient(err error) bool {
	return refused(err, api.CodeStoreUnavailable, api.CodeOutcomeUnknown, api.CodeClockSkew)
}

// try sends the request once.
func (c *client) try(ctx context.Context, method, path string, body any) error {
	raw, err := encode(body)
	if err != nil {
		return err
	}
	return c.once(ctx, method, path, raw, nil)
}

func encode(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	return json.Marshal(body)
}

func (c *client) once(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, oneTry+maxWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= http.StatusBadRequest:
		return problem(resp.StatusCode, raw)
	case into == nil:
		return nil
	}
	return json.Unmarshal(raw, into)
}

func problem(status int, raw []byte) error {
	var r refusal
	if err := json.Unmarshal(raw, &r.Problem); err != nil || r.Code == "" {
		return fmt.Errorf("status %d without a problem: a proxy's, or not this service", status)
	}
	return &r
}
