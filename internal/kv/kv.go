// Package kv decides nothing: it keeps the embedded store's items, in memory
// or in one bbolt file, and runs transactions over them one after another.
//
// A transaction of either store buffers its writes over what is stored
// (tx.go), so an error or a panic leaves nothing to undo. Bolt commits the
// transactions that wait together with one fsync (commit.go).
package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// ErrClosed is returned by a transaction begun after Close.
var ErrClosed = fmt.Errorf("kv: store is closed: %w", keytype.ErrUnavailable)

// A Store runs transactions.
//
// Update runs fn alone: no other transaction sees its writes before it
// returned nil, and none of them if it returned an error or panicked. When
// Update returns nil the writes are as durable as the store makes them: on disk
// for a file, in memory for a memory store. ErrClosed, and the context's error
// when it ended before the transaction's turn, mean that fn did not run; once
// fn runs, Update waits for its outcome whatever becomes of the context. Any
// other error that is not fn's own wraps keytype.ErrUnavailable, where nothing
// was written, or keytype.ErrOutcomeUnknown.
//
// fn may run on another goroutine and must not block nor use the store: ids,
// instants and everything slow are made before the transaction. A domain's
// refusal is a value that fn hands out, not an error. A panic of fn is the
// caller's own.
//
// View runs fn on one consistent state, which includes every Update that
// returned before View was called.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
	Close() error
}

// A Tx is one transaction's view of the items, its own writes included. It and
// the slices it returns are valid only until fn returns.
type Tx interface {
	// Get returns the item's value, nil where there is none. An item past its
	// expiry is returned like any other until a sweep removed it: callers
	// compare instants.
	Get(bucket, key string) []byte
	// Put stores value, which the caller must not change afterwards. A zero
	// expires keeps the item for ever; others count from 1970 to 2262, in
	// nanoseconds. It panics in a View, and on names that no store could keep:
	// a bucket has 1 to 255 bytes and does not begin with a dot, a key has 1
	// to 16,384 bytes.
	Put(bucket, key string, value []byte, expires time.Time)
	// Delete removes the item, if any. It panics in a View.
	Delete(bucket, key string)
	// Scan calls fn for the items whose key begins with prefix and is greater
	// than after, in byte order of keys, until fn returns false. It shows the
	// items as they were when it began, whatever fn writes meanwhile.
	Scan(bucket, prefix, after string, fn func(key string, value []byte) bool)
}

// format is the first byte of every stored item; it changes with the encoding.
const format = '1'

// Load reads the item as JSON. It reports false where there is none.
func Load[T any](tx Tx, bucket, key string) (item T, found bool, err error) {
	raw := tx.Get(bucket, key)
	if raw == nil {
		return item, false, nil
	}
	item, err = Decode[T](raw)
	if err != nil {
		return item, false, fmt.Errorf("load from %s: %w", bucket, err)
	}
	return item, true, nil
}

// Save stores the item as JSON behind the format number. A zero expires keeps it for ever.
func Save[T any](tx Tx, bucket, key string, item T, expires time.Time) error {
	raw, err := json.Marshal(item)
	if err != nil {
		return fmt.Errorf("save to %s: %w", bucket, err)
	}
	tx.Put(bucket, key, append([]byte{format}, raw...), expires)
	return nil
}

// Decode reads what Save stored.
func Decode[T any](raw []byte) (item T, err error) {
	if len(raw) == 0 || raw[0] != format {
		return item, errors.New("kv: item has an unknown format")
	}
	if err := json.Unmarshal(raw[1:], &item); err != nil {
		return item, fmt.Errorf("decode item: %w", err)
	}
	return item, nil
}
