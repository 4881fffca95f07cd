package idempotency_test

import (
	"path/filepath"
	"testing"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/idempotency/idempotencytest"
	"github.com/coordsvc/coordsvc/internal/kv"
)

func TestMemory(t *testing.T) {
	idempotencytest.Run(t, func(*testing.T) idempotency.Store {
		return idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	})
}

func TestFile(t *testing.T) {
	idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
		file, err := kv.Open(filepath.Join(t.TempDir(), "coordsvc.db"), kv.BoltOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return idempotency.NewLocal(file)
	})
}
