package client

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

	"github.com/coordsvc/coordsvc/api"
)

// Close ends the connections of the client's own, and leaves those of its caller's http.Client.
func TestCloseEndsOwnConnections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for name, tc := range map[string]struct {
		given *http.Client
		stays bool
	}{
		"its own":      {nil, false},
		"the caller's": {&http.Client{Transport: transport}, true},
	} {
		c, err := New(server.URL, Options{APIKey: "k", HTTP: tc.given})
		if err != nil {
			t.Fatal(err)
		}
		reused := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { reused = got.Reused }})
		call := func(want bool) {
			t.Helper()
			if err := c.ReleaseSlot(ctx, api.RateLimitRelease{Policy: "p", SlotID: "s"}); err != nil || reused != want {
				t.Errorf("%s: %v, on a connection from before: %t", name, err, reused)
			}
		}
		call(false)
		call(true)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		call(tc.stays) // and goes on working
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
