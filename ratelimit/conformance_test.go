package ratelimit_test

import (
	"path/filepath"
	"testing"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimittest"
)

func TestMemory(t *testing.T) {
	ratelimittest.Run(t, func(t *testing.T) ratelimit.Store {
		return ratelimit.NewLocal(openMemory(t))
	})
}

func TestBolt(t *testing.T) {
	ratelimittest.Run(t, func(t *testing.T) ratelimit.Store {
		file, err := kv.Open(filepath.Join(t.TempDir(), "kv"), kv.BoltOptions{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return ratelimit.NewLocal(file)
	})
}

func openMemory(t testing.TB) *kv.Memory {
	store := kv.NewMemory(kv.MemoryOptions{})
	t.Cleanup(func() { _ = store.Close() })
	return store
}
