package kv

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func TestOpenKeepsWhatItHas(t *testing.T) {
	path := newFile(t)
	b := openBolt(t, path, BoltOptions{})
	err := b.Update(t.Context(), func(tx Tx) error {
		tx.Put("things", "for ever", []byte("1"), time.Time{})
		tx.Put("things", "expires", []byte("2"), time.Unix(1000, 0))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = openBolt(t, path, BoltOptions{})
	if n, err := b.Sweep(t.Context(), time.Unix(1000, 0), 10); n != 1 || err != nil {
		t.Errorf("Sweep: %d, %v", n, err)
	}
	if got := keys(t, b); len(got) != 1 || got[0] != "for ever" {
		t.Errorf("the store has %q", got)
	}
}

func TestFileMode(t *testing.T) {
	path := newFile(t)
	for _, before := range []fs.FileMode{0, 0o644} { // a new file, and one that was copied back
		if before != 0 {
			if err := os.Chmod(path, before); err != nil {
				t.Fatal(err)
			}
		}
		if err := openBolt(t, path, BoltOptions{}).Close(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("was %v, is %v", before, info.Mode())
		}
	}
}

func TestOpenLockedFile(t *testing.T) {
	path := newFile(t)
	b := openBolt(t, path, BoltOptions{})
	if _, err := Open(path, BoltOptions{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open: %v, want ErrLocked with the path", err)
	}
	if err := b.Update(t.Context(), putKey("a")); err != nil {
		t.Errorf("the holder is not disturbed: %v", err)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"a folder":           {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, "is a directory"},
		"no folder to be in": {func(t *testing.T, path string) { must(t, os.Remove(filepath.Dir(path))) }, "no such file"},
		"a short text":       {text(10), "not a bbolt file"},
		"a text of a page":   {text(5000), "too small"},
		"a longer text":      {text(100_000), "not a bbolt file"},
		"another program's":  {bboltFile("widgets", "a", "1"), `another program: it has a bucket "widgets"`},
		"a later format":     {bboltFile(metaBucket, formatKey, "2"), `format "2", this program reads format "1"`},
		"no format":          {bboltFile(metaBucket, "a", "1"), `format "", this program`},
		"truncated":          {truncated(false), "of its"},
		"without free list":  {truncated(true), "damaged"},
		"emptied":            {emptied, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t)
			c.make(t, path)
			before, _ := os.ReadFile(path)
			_, err := Open(path, BoltOptions{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("Open: %v, want the path and %q", err, c.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("Open changed the file")
			}
			if _, again := Open(path, BoltOptions{}); errors.Is(again, ErrLocked) && c.want != "damaged" {
				t.Error("Open kept the file's lock")
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(n int) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		must(t, os.WriteFile(path, bytes.Repeat([]byte("hello "), n/6+1), 0o600))
	}
}

func bboltFile(bucket, key, value string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		db, err := bbolt.Open(path, 0o600, nil)
		must(t, err)
		must(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte(bucket))
			must(t, err)
			return b.Put([]byte(key), []byte(value))
		}))
		must(t, db.Close())
	}
}

// truncated is what a copy that broke off near its end leaves. Which pages are
// free stands in a page of its own, mostly near the begin.
func truncated(freeListLast bool) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		n := backup(t, path, freeListLast)
		must(t, os.Truncate(path, n-4096))
	}
}

// emptied keeps only the meta pages.
func emptied(t *testing.T, path string) {
	n := backup(t, path, false)
	must(t, os.Truncate(path, 8192))
	must(t, os.Truncate(path, n))
}

// backup writes a copy, which has no unused pages at its end, and returns its length.
func backup(t *testing.T, path string, freeListLast bool) int64 {
	b := openBolt(t, newFile(t), BoltOptions{NoSync: true})
	put := func(size int) {
		must(t, b.Update(t.Context(), func(tx Tx) error {
			tx.Put("things", "a", make([]byte, size), time.Time{})
			return nil
		}))
	}
	put(300_000)
	if freeListLast {
		must(t, b.View(t.Context(), func(Tx) error { // keeps old pages from being used again
			for range 20 {
				put(10)
			}
			return nil
		}))
	}
	file, err := os.Create(path)
	must(t, err)
	n, err := b.Backup(t.Context(), file)
	must(t, err)
	must(t, file.Close())
	return n
}
