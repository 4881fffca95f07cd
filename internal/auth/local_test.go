package auth_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/auth/authtest"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

func TestMemoryStore(t *testing.T) {
	authtest.Run(t, func(*testing.T) auth.Store { return auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})) })
}

func TestBoltStore(t *testing.T) {
	authtest.Run(t, func(t *testing.T) auth.Store {
		store, err := kv.Open(filepath.Join(t.TempDir(), "store"), kv.BoltOptions{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		return auth.NewLocal(store)
	})
}

// The text of a key is nowhere in the file, in any spelling; its id is, so the search finds what is there.
func TestTextIsNotInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	file, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := node(auth.NewLocal(file), newClock())
	text, key := mustCreate(t, m, "a", reader())
	if _, err := m.Add(t.Context(), "a", "operator", operatorText); err != nil {
		t.Fatal(err)
	}
	expectAuth(t, m, text, nil, "its text")
	if err := m.Revoke(t.Context(), "a", key.ID); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	authtest.ExpectHidden(t, raw, key.ID, text, operatorText)
}

func TestLocalStoreRefusesAnotherFormat(t *testing.T) {
	mem := kv.NewMemory(kv.MemoryOptions{})
	rec := authtest.Record("a", "n", auth.LeasesRead)
	err := mem.Update(t.Context(), func(tx kv.Tx) error {
		tx.Put(keytype.APIKey.Bucket(), keytype.APIKey.Key(rec.ID), []byte(`9{"tenant":"a"}`), time.Time{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	good := authtest.Record("a", "listed after it", auth.LeasesRead)
	good.ID = "key_~"
	if _, err := auth.NewLocal(mem).Insert(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	authtest.ExpectRefused(t, auth.NewLocal(mem), rec)
}
