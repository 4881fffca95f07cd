package api

import (
	"testing"

	"github.com/go-json-experiment/json"
)

// The body of a check, as nearly all clients send it, and what it would cost without quickly.
func BenchmarkDecodeCheck(b *testing.B) {
	body := []byte(`{"policy":"default","descriptors":{"tenant":"t","user":"u"},"cost":1}`)
	b.Run("quickly", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Decode(body, &RateLimitRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("without", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(body, &RateLimitRequest{}, strict); err != nil {
				b.Fatal(err)
			}
		}
	})
}
