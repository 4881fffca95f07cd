package lease_test

import (
	"path/filepath"
	"testing"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

func local(store kv.Store) leasetest.Stores {
	return leasetest.Stores{Leases: lease.NewLocal(store), Fences: fencing.NewLocal(store)}
}

func openFile(t *testing.T, path string) *kv.Bolt {
	t.Helper()
	file, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestMemory(t *testing.T) {
	leasetest.Run(t, func(*testing.T) leasetest.Stores { return local(kv.NewMemory(kv.MemoryOptions{})) })
}

func TestFile(t *testing.T) {
	leasetest.Run(t, func(t *testing.T) leasetest.Stores {
		return local(openFile(t, filepath.Join(t.TempDir(), "coordsvc.db")))
	})
}
