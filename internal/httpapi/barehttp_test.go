package httpapi

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// raw serves the handler as the service does and returns what it answers to the bytes.
func raw(t *testing.T, handler http.HandlerFunc, request string) (status int, header http.Header, body string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(handler)
	go func() { _ = server.Serve(Listener(l)) }()
	defer server.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// Also what never reaches a handler is refused by a problem, and nothing of it is repeated.
func TestWhatIsNoRequestIsAProblem(t *testing.T) {
	unreached := func(http.ResponseWriter, *http.Request) { t.Error("a handler was reached") }
	for _, c := range []struct {
		why, request string
		status       int
	}{
		{"no HTTP", "canary\r\n\r\n", 400},
		{"a header without a colon", "GET / HTTP/1.1\r\nHost: h\r\ncanary\r\n\r\n", 400},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400},
		{"two lengths", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400},
		{"an expectation", "GET / HTTP/1.1\r\nHost: h\r\nExpect: canary\r\n\r\n", 417},
		{"an expectation of HTTP/1.0", "GET / HTTP/1.0\r\nHost: h\r\nExpect: canary\r\n\r\n", 417},
		{"a header of 40 KB", "GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 40<<10) + "\r\n\r\n", 431},
		{"an unknown transfer coding", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: canary\r\n\r\n", 501},
		{"another version", "GET / HTTP/3.7\r\nHost: h\r\n\r\n", 505},
	} {
		status, header, body := raw(t, unreached, c.request)
		var p api.Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || status != c.status || header.Get("Content-Type") != mimeProblem {
			t.Errorf("%s: %d %s %s (%v)", c.why, status, header.Get("Content-Type"), body, err)
			continue
		}
		if p.Code != api.CodeInvalidRequest || p.Status != int64(c.status) || p.Detail == "" || p.Title == "" || p.RequestID != header.Get("X-Request-Id") || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %+v with %v", c.why, p, header)
		}
		if strings.Contains(body, "canary") {
			t.Errorf("%s: it is repeated: %s", c.why, body)
		}
	}
}

// A handler's own answers go through as they are, whatever they look like.
func TestAnswersOfHandlersStay(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	for _, body := range []string{"plain", "HTTP/1.1 400 Bad Request" + string(ownHeaders) + "400 Bad Request", strings.Repeat("x", 9000) + "HTTP/1.1 400 Bad Request" + string(ownHeaders)} {
		status, header, got := raw(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, body)
		}, request)
		if got != body || status != 400 || header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%d %s %.60q", status, header.Get("Content-Type"), got)
		}
	}
}
