package kv

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Longest names, so that an item and its entry in the expiry index both fit a bbolt key.
const (
	maxBucket = math.MaxUint8
	maxKey    = 16 << 10
)

// expiryIndex is the bucket that lists the items which expire, soonest first.
// Names with a dot are the stores' own.
const expiryIndex = ".expiry"

// A base is the state that a transaction starts from. Values are raw: as
// encode made them, or empty in the expiry index.
type base interface {
	get(bucket, key string) []byte
	// scan yields the keys that begin with prefix and are greater than after, in byte order.
	scan(bucket, prefix, after string) iter.Seq2[string, []byte]
	// buckets names the callers' buckets in byte order.
	buckets() []string
}

type place struct{ bucket, key string }

// A transaction is the Tx of both stores: writes wait in front of the base
// until the store applies them.
type transaction struct {
	base   base
	writes map[place][]byte // raw values, nil deletes; no map in a View
}

func newTransaction(b base) *transaction { return &transaction{base: b, writes: map[place][]byte{}} }

func newView(b base) *transaction { return &transaction{base: b} }

// run hands the transaction to fn, and to nobody after that: a later use panics.
func (t *transaction) run(fn func(Tx) error) error {
	defer func() { t.base = nil }()
	return fn(t)
}

// Get implements Tx.
func (t *transaction) Get(bucket, key string) []byte {
	checkBucket(bucket)
	raw := t.get(place{bucket, key})
	if raw == nil {
		return nil
	}
	return valueOf(raw)
}

// Put implements Tx.
func (t *transaction) Put(bucket, key string, value []byte, expires time.Time) {
	checkBucket(bucket)
	if key == "" || len(key) > maxKey {
		panic(fmt.Sprintf("kv: key of %d bytes for bucket %s", len(key), bucket))
	}
	at, due := place{bucket, key}, stamp(expires)
	t.unindex(at)
	t.set(at, encode(due, value))
	if due != never {
		t.set(place{expiryIndex, indexKey(due, at)}, []byte{})
	}
}

// Delete implements Tx.
func (t *transaction) Delete(bucket, key string) {
	checkBucket(bucket)
	at := place{bucket, key}
	t.unindex(at)
	t.set(at, nil)
}

// Scan implements Tx.
func (t *transaction) Scan(bucket, prefix, after string, fn func(key string, value []byte) bool) {
	checkBucket(bucket)
	for key, raw := range t.scan(bucket, prefix, after) {
		if !fn(key, valueOf(raw)) {
			return
		}
	}
}

// sweep deletes at most limit items that expired at now or before.
func (t *transaction) sweep(now time.Time, limit int) (removed int) {
	until := stamp(now)
	for entry := range t.scan(expiryIndex, "", "") {
		due, at := parseIndexKey(entry)
		if due > until || removed >= limit {
			break
		}
		t.Delete(at.bucket, at.key)
		removed++
	}
	return removed
}

// walk calls fn for every item, by bucket and key, until it returns false.
func (t *transaction) walk(fn func(bucket, key string, value []byte) bool) {
	for _, bucket := range t.base.buckets() {
		for key, raw := range t.scan(bucket, "", "") {
			if !fn(bucket, key, valueOf(raw)) {
				return
			}
		}
	}
}

func (t *transaction) get(at place) []byte {
	if raw, ok := t.writes[at]; ok {
		return raw
	}
	return t.base.get(at.bucket, at.key)
}

func (t *transaction) set(at place, raw []byte) {
	if t.writes == nil {
		panic("kv: write in a View")
	}
	t.writes[at] = raw
}

func (t *transaction) unindex(at place) {
	if raw := t.get(at); raw != nil && dueOf(raw) != never {
		t.set(place{expiryIndex, indexKey(dueOf(raw), at)}, nil)
	}
}

// scan merges the transaction's own writes, as they are now, into the base's items.
func (t *transaction) scan(bucket, prefix, after string) iter.Seq2[string, []byte] {
	own, keys := t.own(bucket, prefix, after)
	return func(yield func(string, []byte) bool) {
		emit := func(key string) bool { return own[key] == nil || yield(key, own[key]) }
		for key, raw := range t.base.scan(bucket, prefix, after) {
			for len(keys) > 0 && keys[0] < key {
				if !emit(keys[0]) {
					return
				}
				keys = keys[1:]
			}
			if len(keys) > 0 && keys[0] == key {
				continue // written here: it comes, or not, before the next key
			}
			if !yield(key, raw) {
				return
			}
		}
		for _, key := range keys {
			if !emit(key) {
				return
			}
		}
	}
}

// own copies the writes that a scan must show or hide, so that fn may write on.
func (t *transaction) own(bucket, prefix, after string) (raws map[string][]byte, keys []string) {
	for at, raw := range t.writes {
		if at.bucket == bucket && at.key > after && strings.HasPrefix(at.key, prefix) {
			if raws == nil {
				raws = map[string][]byte{}
			}
			raws[at.key] = raw
		}
	}
	return raws, slices.Sorted(maps.Keys(raws))
}

func checkBucket(name string) {
	if name == "" || len(name) > maxBucket || name[0] == '.' {
		panic(fmt.Sprintf("kv: %q cannot name a bucket", name))
	}
}

// An instant is stored as its nanoseconds since 1970, never as 0.
const never = 0

var latest = time.Unix(0, math.MaxInt64)

func stamp(t time.Time) uint64 {
	switch {
	case t.IsZero():
		return never
	case !t.After(time.Unix(0, 0)):
		return 1
	case t.After(latest):
		return math.MaxInt64
	default:
		return uint64(t.UnixNano())
	}
}

// A raw value is its expiry in 8 bytes, then the value.
func encode(due uint64, value []byte) []byte {
	raw := make([]byte, 0, 8+len(value))
	return append(binary.BigEndian.AppendUint64(raw, due), value...)
}

func dueOf(raw []byte) uint64   { return binary.BigEndian.Uint64(raw) }
func valueOf(raw []byte) []byte { return raw[8:] }

// indexKey sorts by expiry: 8 bytes of it, the bucket behind its length, the key.
func indexKey(due uint64, at place) string {
	b := make([]byte, 0, 9+len(at.bucket)+len(at.key))
	b = binary.BigEndian.AppendUint64(b, due)
	b = append(b, byte(len(at.bucket))) //nolint:gosec // at most maxBucket
	b = append(b, at.bucket...)
	return string(append(b, at.key...))
}

func parseIndexKey(entry string) (due uint64, at place) {
	due = binary.BigEndian.Uint64([]byte(entry[:8]))
	n := 9 + int(entry[8])
	return due, place{bucket: entry[9:n], key: entry[n:]}
}
