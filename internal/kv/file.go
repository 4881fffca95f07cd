package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// ErrLocked is returned by Open while another process, or another Bolt, has the file open.
var ErrLocked = errors.New("kv: file is in use by another process")

// metaBucket says which layout the file has. In this one, each of the callers'
// buckets is a bbolt bucket of raw values, and so is the expiry index.
const (
	metaBucket = ".meta"
	formatKey  = "format"
	fileFormat = "1"
)

const (
	// lockWait is how long Open waits for the lock that a process just killed may still hold.
	lockWait = 500 * time.Millisecond
	// mapSize is the address space taken for the file. bbolt cannot extend it
	// while a View or a Backup reads, so an Update that had to would wait.
	mapSize = 1 << 30
)

// openFile opens or creates the file and checks it. What bbolt panics over in
// a damaged file comes back as an error; this process then keeps the file's lock.
func openFile(path string, opts BoltOptions) (db *bbolt.DB, err error) {
	// A page beyond the end of a truncated file is a fault in the memory map.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, fmt.Errorf("file is damaged: %v", r)
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:         lockWait,
		InitialMmapSize: mapSize,
		FreelistType:    bbolt.FreelistMapType,
		NoSync:          opts.NoSync,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, ErrLocked
	case errors.Is(err, berrors.ErrInvalid):
		return nil, fmt.Errorf("not a bbolt file: %w", err)
	case err != nil:
		return nil, err
	}
	if err := prepare(db); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// prepare checks size and layout, lays out a new file, and brings to disk what
// a process that died may have left in the page cache, and the file's name.
func prepare(db *bbolt.DB) error {
	if err := checkSize(db); err != nil {
		return err
	}
	if err := db.Update(layOut); err != nil && !errors.Is(err, errNoWrites) {
		return err
	}
	if err := os.Chmod(db.Path(), 0o600); err != nil {
		return err
	}
	if err := db.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return syncFolder(filepath.Dir(db.Path()))
}

func checkSize(db *bbolt.DB) error {
	info, err := os.Stat(db.Path())
	if err != nil {
		return err
	}
	return db.View(func(tx *bbolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("file is damaged: it has %d of its %d bytes", info.Size(), tx.Size())
		}
		return nil
	})
}

func layOut(tx *bbolt.Tx) error {
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return fmt.Errorf("a bbolt file of another program: it has a bucket %q", name)
		}
		meta, err := tx.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		return meta.Put([]byte(formatKey), []byte(fileFormat))
	}
	if got := meta.Get([]byte(formatKey)); string(got) != fileFormat {
		return fmt.Errorf("file has format %q, this program reads format %q", got, fileFormat)
	}
	return errNoWrites
}

// syncFolder makes the name of a new file survive a loss of power.
func syncFolder(path string) error {
	folder, err := os.Open(path) //nolint:gosec // the path is a setting
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// boltBase is the base of a transaction on a file.
type boltBase struct{ tx *bbolt.Tx }

func (b boltBase) get(bucket, key string) []byte {
	in := b.tx.Bucket([]byte(bucket))
	if in == nil {
		return nil
	}
	return in.Get([]byte(key))
}

func (b boltBase) scan(bucket, prefix, after string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		in := b.tx.Bucket([]byte(bucket))
		if in == nil {
			return
		}
		c := in.Cursor()
		key, raw := c.Seek([]byte(max(prefix, after)))
		for ; key != nil && bytes.HasPrefix(key, []byte(prefix)); key, raw = c.Next() {
			if string(key) != after && !yield(string(key), raw) {
				return
			}
		}
	}
}

func (b boltBase) buckets() (names []string) {
	c := b.tx.Cursor()
	for name, _ := c.First(); name != nil; name, _ = c.Next() {
		if name[0] != '.' {
			names = append(names, string(name))
		}
	}
	return names
}

func (b boltBase) apply(writes map[place][]byte) error {
	for at, raw := range writes {
		in, err := b.tx.CreateBucketIfNotExists([]byte(at.bucket))
		if err != nil {
			return err
		}
		if raw == nil {
			err = in.Delete([]byte(at.key))
		} else {
			err = in.Put([]byte(at.key), raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contextWriter stops writing when its context has ended.
type contextWriter struct {
	ctx context.Context // of one call of Backup
	w   io.Writer
}

func (c contextWriter) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.w.Write(p)
}
