package audit_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/audittest"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

func memory() *audit.Local { return audit.NewLocal(kv.NewMemory(kv.MemoryOptions{})) }

func openFile(t *testing.T, path string, opts kv.BoltOptions) *kv.Bolt {
	t.Helper()
	store, err := kv.Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestMemoryStore(t *testing.T) {
	audittest.Run(t, func(*testing.T) audit.Store { return memory() })
}

func TestBoltStore(t *testing.T) {
	audittest.Run(t, func(t *testing.T) audit.Store {
		return audit.NewLocal(openFile(t, filepath.Join(t.TempDir(), "store"), kv.BoltOptions{NoSync: true}))
	})
}

func TestEventsOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	file, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	if err := audit.NewLocal(file).Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	page, err := audit.NewLocal(openFile(t, path, kv.BoltOptions{})).Page(t.Context(), "a", e.ID, audit.FirstID(e.At().Add(time.Second)), 2)
	if err != nil || len(page) != 1 || page[0] != e {
		t.Errorf("%+v, %v; want %+v", page, err, e)
	}
}

// A sweep takes an event when its retention ends, and not before.
func TestRetention(t *testing.T) {
	mem := kv.NewMemory(kv.MemoryOptions{})
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	if err := audit.NewLocal(mem).Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		at      time.Time
		removed int
	}{
		{e.At().Add(audit.Retention - 1), 0},
		{e.At().Add(audit.Retention), 1},
	} {
		if n, err := mem.Sweep(t.Context(), step.at, 10); err != nil || n != step.removed {
			t.Errorf("swept at %v: %d, %v; want %d", step.at, n, err, step.removed)
		}
	}
}

func TestLocalStoreRefusesAnotherFormat(t *testing.T) {
	mem := kv.NewMemory(kv.MemoryOptions{})
	store := audit.NewLocal(mem)
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	if err := store.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	err := mem.Update(t.Context(), func(tx kv.Tx) error {
		var key string
		tx.Scan(keytype.AuditEvent.Bucket(), "", "", func(k string, _ []byte) bool { key = k; return false })
		tx.Put(keytype.AuditEvent.Bucket(), key, []byte(`9{"actor":"k"}`), time.Time{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	audittest.ExpectRefused(t, store, e)
}

// Every key is one that the registry's type made.
func TestKeysBelongToTheType(t *testing.T) {
	mem := kv.NewMemory(kv.MemoryOptions{})
	if err := audit.NewLocal(mem).Append(t.Context(), audittest.Event("a", audittest.ID(audittest.Epoch, 1))); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := mem.Walk(t.Context(), func(bucket, key string, _ []byte) bool {
		n++
		kind, registered := keytype.ByName(bucket)
		if !registered || kind != keytype.AuditEvent {
			t.Errorf("bucket %q is not the type's", bucket)
		}
		if _, ok := keytype.AuditEvent.Split(key); !ok {
			t.Errorf("key %q is not the type's", key)
		}
		return true
	})
	if err != nil || n != 1 {
		t.Errorf("%d keys, %v; want 1", n, err)
	}
}
