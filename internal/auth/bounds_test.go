package auth

import (
	"strconv"
	"testing"

	"github.com/coordsvc/coordsvc/internal/kv"
)

func TestCacheIsBounded(t *testing.T) {
	m := New(NewLocal(kv.NewMemory(kv.MemoryOptions{})), Options{})
	secret, _, err := m.Create(t.Context(), "a", nil, NewKey{Name: "n", Scopes: []Scope{LeasesRead}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Authenticate(t.Context(), secret.Reveal()); err != nil {
		t.Fatal(err)
	}
	for i := range maxKept + 500 {
		_, _, err := m.cache.get(t.Context(), strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.cache.missing.answers); n != maxKept {
		t.Errorf("%d wrong keys are kept, want %d", n, maxKept)
	}
	if n := len(m.cache.found.answers); n != 1 {
		t.Errorf("%d good keys are kept, want 1: wrong ones pushed it out", n)
	}
}
