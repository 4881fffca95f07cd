package fencing_test

import (
	"path/filepath"
	"testing"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/fencingtest"
	"github.com/coordsvc/coordsvc/internal/kv"
)

func TestMemory(t *testing.T) {
	fencingtest.Run(t, func(*testing.T) fencing.Store { return fencing.NewLocal(kv.NewMemory(kv.MemoryOptions{})) })
}

func TestFile(t *testing.T) {
	fencingtest.Run(t, func(t *testing.T) fencing.Store {
		file, err := kv.Open(filepath.Join(t.TempDir(), "coordsvc.db"), kv.BoltOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return fencing.NewLocal(file)
	})
}
