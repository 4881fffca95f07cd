package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/httpapi"
)

// check runs the command with COORD_OPS_ADDR set to the address.
func check(ctx context.Context, addr string, args ...string) (said string, err error) {
	var out, errOut bytes.Buffer
	env := func(name string) string { return map[string]string{"COORD_OPS_ADDR": addr}[name] }
	err = run(ctx, append([]string{"healthcheck"}, args...), env, &out, &errOut, func(addresses) {})
	return out.String() + errOut.String(), err
}

// A node that is not ready lives all the same: only who asks for readiness is told no.
func TestHealthcheckAsksTheOpsListener(t *testing.T) {
	var unready error
	server := httptest.NewServer(httpapi.Ops(func() error { return unready }, http.NotFoundHandler()))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port, "[::]:" + port} {
		for _, c := range []struct {
			unready     error
			flag, says  string
			refusedWith string
		}{
			{nil, "", "ok\n", ""},
			{nil, "--ready", "ready\n", ""},
			{errors.New("no tables"), "", "ok\n", ""},
			{errors.New("no tables"), "--ready", "", "503 Service Unavailable: not ready: no tables"},
		} {
			unready = c.unready
			said, err := check(t.Context(), addr, strings.Fields(c.flag)...)
			if c.refusedWith == "" && (err != nil || said != c.says) {
				t.Errorf("%s %s, %v: %q, %v; want %q", addr, c.flag, c.unready, said, err, c.says)
			}
			if c.refusedWith != "" && (err == nil || !strings.Contains(err.Error(), c.refusedWith)) {
				t.Errorf("%s %s, %v: %v, want %q", addr, c.flag, c.unready, err, c.refusedWith)
			}
		}
	}
	if _, err := check(t.Context(), "127.0.0.1:1", "--ops-addr", ":"+port); err != nil {
		t.Errorf("the flag does not win: %v", err)
	}
}

// What cannot be asked is no health: nobody there, and settings that name nobody.
func TestHealthcheckFails(t *testing.T) {
	for addr, says := range map[string]string{
		"127.0.0.1:1": "connection refused",
		":0":          "picks such a port itself",
		"nonsense":    "write host:port",
	} {
		if _, err := check(t.Context(), addr); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", addr, err, says)
		}
	}
	if _, err := check(t.Context(), "127.0.0.1:1", "now"); err == nil || !strings.Contains(err.Error(), "takes flags only") {
		t.Errorf("an argument: %v", err)
	}
}

// A service that hangs is not healthy, whether it says nothing or too slowly: the check ends by its own
// time, however patient its caller.
func TestHealthcheckDoesNotWaitForAHungService(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"slowly": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("o"))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(answer)
			defer server.Close()
			patient, cancel := context.WithTimeout(t.Context(), 10*healthTime)
			defer cancel()
			_, err := check(patient, server.Listener.Addr().String())
			if !errors.Is(err, context.DeadlineExceeded) || patient.Err() != nil {
				t.Errorf("%v, the caller's patience: %v; want the check's own deadline", err, patient.Err())
			}
		})
	}
}

// A caller who has less time than the check is heard.
func TestHealthcheckEndsWithItsCaller(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := check(ctx, server.Listener.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was called off", err)
	}
}

// The check says why it failed before Docker, which would only say that it took too long, ends it.
func TestHealthTimeIsLessThanTheImages(t *testing.T) {
	for _, name := range []string{"Dockerfile", "Dockerfile.local"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`HEALTHCHECK .*--timeout=(\S+)`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no HEALTHCHECK with a time", name)
		}
		if limit, err := time.ParseDuration(string(found[1])); err != nil || healthTime >= limit {
			t.Errorf("%s gives the check %s, %v; it takes up to %s", name, found[1], err, healthTime)
		}
	}
}
