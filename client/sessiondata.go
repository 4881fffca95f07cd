package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

const dataRoute = "/v1/sessions/{handle}/data"

// SessionData is what is kept beside a live session.
type SessionData struct {
	Value   json.RawMessage // null where nothing was written yet
	Version int64           // 0 where nothing was written yet
}

// SessionData reads what is kept beside the session with the public handle; not_found
// where it is not live.
func (c *Client) SessionData(ctx context.Context, handle string) (d SessionData, err error) {
	got, err := c.do(ctx, call{method: http.MethodGet, route: dataRoute, ids: []string{handle}, repeat: exact}, &d.Value)
	if err == nil {
		d.Version, err = version(got.header)
	}
	return d, err
}

// SetSessionData replaces the version, 0 where nothing was written yet, and returns the
// new one. Another version than the latest is version_mismatch: read, and decide anew. It
// is not tried again once it may have happened: it would be refused for its own effect.
func (c *Client) SetSessionData(ctx context.Context, handle string, replaces int64, value json.RawMessage) (int64, error) {
	r := call{method: http.MethodPut, route: dataRoute, ids: []string{handle}, body: value, ifMatch: fmt.Sprintf("%q", strconv.FormatInt(replaces, 10)), repeat: once}
	got, err := c.do(ctx, r, nil)
	if err != nil {
		return 0, err
	}
	return version(got.header)
}

// version reads the ETag.
func version(h http.Header) (int64, error) {
	n, err := strconv.ParseInt(strings.Trim(h.Get("ETag"), `"`), 10, 64)
	if err != nil {
		return 0, &NoAnswerError{Sent: true, Err: fmt.Errorf("its ETag is not the contract's: %w", err)}
	}
	return n, nil
}
