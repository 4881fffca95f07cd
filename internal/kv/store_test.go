package kv_test

import (
	"path/filepath"
	"testing"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/kv/kvtest"
)

func TestMemory(t *testing.T) {
	kvtest.Run(t, func(*testing.T) kvtest.Store { return kv.NewMemory(kv.MemoryOptions{}) })
}

func TestBoundedMemory(t *testing.T) {
	kvtest.Run(t, func(*testing.T) kvtest.Store { return kv.NewMemory(kv.MemoryOptions{MaxItems: 100}) })
}

func TestBolt(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kvtest.Store {
		b, err := kv.Open(filepath.Join(t.TempDir(), "coord.db"), kv.BoltOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}
