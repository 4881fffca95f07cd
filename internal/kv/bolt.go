package kv

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/coordsvc/coordsvc/keytype"
)

// Bolt is a Store in one bbolt file of mode 0600. One process has it open at a time.
type Bolt struct {
	db      *bbolt.DB
	queue   chan *update
	durable atomic.Int64 // the latest bbolt transaction known to be on disk

	mu     sync.RWMutex // read-locked by every call in progress, so that Close waits for them
	closed bool         // guarded by mu
}

// BoltOptions tunes a file store; the zero value is what the service uses.
type BoltOptions struct {
	NoSync bool // skips the fsync of each commit: for the test that shows that the fsync matters
}

// Open opens or creates the file; its folder must exist. It returns ErrLocked
// after half a second when another process holds the file, and an error that
// names the file when it is damaged, not a bbolt file or of another layout.
func Open(path string, opts BoltOptions) (*Bolt, error) {
	db, err := openFile(path, opts)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	b := &Bolt{db: db, queue: make(chan *update)}
	if err := b.noteDurable(); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	go b.runCommits()
	return b, nil
}

// Update implements Store. Its writes are on disk when it returns nil.
func (b *Bolt) Update(ctx context.Context, fn func(Tx) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	return b.update(ctx, fn)
}

// View implements Store. Views run beside each other and beside an Update.
// What fn saw is on disk when View returns.
func (b *Bolt) View(ctx context.Context, fn func(Tx) error) error {
	return b.view(ctx, func(tx *bbolt.Tx) error { return newView(boltBase{tx}).run(fn) })
}

// Walk calls fn for every item, by bucket and key, until it returns false, on one consistent state.
func (b *Bolt) Walk(ctx context.Context, fn func(bucket, key string, value []byte) bool) error {
	return walk(ctx, b, fn)
}

// Sweep implements Sweeper.
func (b *Bolt) Sweep(ctx context.Context, now time.Time, limit int) (removed int, err error) {
	return sweep(ctx, b, now, limit)
}

// Backup writes a copy of the file, as of one consistent state, that Open can
// open, and returns its length in bytes. Updates go on meanwhile; a Close waits.
func (b *Bolt) Backup(ctx context.Context, w io.Writer) (written int64, err error) {
	err = b.view(ctx, func(tx *bbolt.Tx) error {
		written, err = tx.WriteTo(contextWriter{ctx, w})
		if ctx.Err() != nil {
			return ctx.Err() // bbolt does not always wrap it
		}
		return err
	})
	return written, err
}

// Close implements Store. It waits for the transactions that were begun or queued.
func (b *Bolt) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.queue)
	if err := b.db.Close(); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// noteDurable takes what the file shows for durable: openFile has synced it.
func (b *Bolt) noteDurable() error {
	return b.db.View(func(tx *bbolt.Tx) error {
		b.durable.Store(int64(tx.ID()))
		return nil
	})
}

// view runs fn in a read transaction.
func (b *Bolt) view(ctx context.Context, fn func(*bbolt.Tx) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var seen int64
	var result error
	err := b.db.View(func(tx *bbolt.Tx) error {
		seen, result = int64(tx.ID()), fn(tx)
		return nil
	})
	if err != nil {
		return fmt.Errorf("begin view: %w: %w", keytype.ErrUnavailable, err)
	}
	if err := b.awaitDurable(ctx, seen); err != nil {
		return err
	}
	return result
}

// awaitDurable waits for the commit that a read transaction saw: bbolt shows
// it before its fsync has returned, and what was read might not be there after
// a loss of power.
func (b *Bolt) awaitDurable(ctx context.Context, seen int64) error {
	if seen <= b.durable.Load() {
		return nil
	}
	// The committer takes up an empty update when that commit has ended, and
	// refuses it when the commit failed.
	return b.update(context.WithoutCancel(ctx), func(Tx) error { return nil })
}
