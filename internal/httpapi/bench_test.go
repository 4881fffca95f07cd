package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A sink is an answer that nobody reads.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

// What a check costs between the wire and the store, which is memory.
func BenchmarkCheckRoute(b *testing.B) {
	for name, rate := range map[string]ratelimit.Rate{"allowed": {Count: 1_000_000_000, Per: time.Second}, "refused": {Count: 1, Per: 24 * time.Hour}} {
		b.Run(name, func(b *testing.B) {
			keys := auth.New(auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), auth.Options{})
			secret, _, err := keys.Create(b.Context(), "default", nil, auth.NewKey{Name: "n", Scopes: auth.AllScopes()})
			if err != nil {
				b.Fatal(err)
			}
			policy := ratelimit.DefaultPolicy()
			policy.Limits[0].Rate, policy.Limits[0].Burst = rate, rate.Count
			limits, err := ratelimit.New(ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{})), []ratelimit.Policy{policy}, ratelimit.Options{})
			if err != nil {
				b.Fatal(err)
			}
			api := httpapi.New(httpapi.Deps{Auth: keys, Limits: limits})
			const text = `{"policy":"default","descriptors":{"tenant":"t","user":"u"}}`
			body := strings.NewReader(text)
			r := httptest.NewRequest(http.MethodPost, "/v1/ratelimit/check", body)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer "+secret.Reveal())
			r.Body = io.NopCloser(body)
			w := &sink{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(text)
				clear(w.header)
				api.ServeHTTP(w, r)
			}
			if w.status != http.StatusOK && w.status != http.StatusTooManyRequests {
				b.Fatal(w.status)
			}
		})
	}
}
