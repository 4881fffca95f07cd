package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/internal/telemetry"
)

// What the exporter would write to stderr and go on without refuses to start, and no secret is told.
func TestExporterSettings(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, value string
		mistake     string // "" = right
	}{
		{"HEADERS", "authorization=Bearer%20secret, x-tenant = a", ""},
		{"HEADERS", "authorization Bearer secret", "is wrong"},
		{"HEADERS", "a=1,secret", "is wrong"},
		{"HEADERS", "a b=secret", "is wrong"},
		{"HEADERS", "a=%zzsecret", "is wrong"},
		{"HEADERS", "a=secret%0Ax: y", "is wrong"},
		{"TIMEOUT", "2000", ""},
		{"TIMEOUT", "2s", `is "2s"`},
		{"TIMEOUT", "-1", `is "-1"`},
		{"TIMEOUT", "0", `is "0"`},
		{"PROTOCOL", "http/json", ""},
		{"PROTOCOL", "grpc", `is "grpc"`},
		{"PROTOCOL", "http", `is "http"`},
		{"CERTIFICATE", empty, "it has none"},
		{"CERTIFICATE", empty + "er", "no such file"},
		{"CLIENT_CERTIFICATE", empty, "name no certificate and its key"},
		{"CLIENT_KEY", empty, "name no certificate and its key"},
	} {
		for _, scope := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
			env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c", scope + c.name: c.value}
			_, on, err := traceSettings(func(name string) string { return env[name] })
			if c.mistake == "" {
				if err != nil || !on {
					t.Errorf("%s%s=%s: %v", scope, c.name, c.value, err)
				}
				continue
			}
			if on || err == nil || !strings.HasPrefix(err.Error(), scope) || !strings.Contains(err.Error(), c.mistake) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s%s=%s: %v, want %q", scope, c.name, c.value, err, c.mistake)
			}
		}
	}
}

// The log says that spans are not sent, and neither what the collector answered nor all that could be said.
func TestNotSentTellsNoAnswer(t *testing.T) {
	for said, want := range map[string]string{
		"failed to send to http://c/v1/traces: 401 Unauthorized (body: for Bearer secret)": "failed to send to http://c/v1/traces: 401 Unauthorized",
		"retry-able request failure: body: secret":                                         "retry-able request failure",
		"connection refused":         "connection refused",
		strings.Repeat("é", maxSaid): strings.Repeat("é", maxSaid/2) + "…",
	} {
		if got := notSent(errors.New(said)); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}

// What a collector answers does not come into the log: here the header that it was sent.
func TestNoAnswerOfTheCollectorIsLogged(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not allowed: Bearer secret", http.StatusForbidden)
	}))
	defer collector.Close()
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}
	var lines bytes.Buffer
	tracer, err := startTraces(t.Context(), func(name string) string { return env[name] }, telemetry.New(), slog.New(slog.NewJSONHandler(&lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	_, ended := tracer.Request(t.Context(), http.Header{}, "GET", "/x")
	ended(200, "")
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if told := lines.String(); !strings.Contains(told, "spans are not sent") || !strings.Contains(told, "403 Forbidden") || strings.Contains(told, "secret") {
		t.Errorf("the log has %s", told)
	}
}
