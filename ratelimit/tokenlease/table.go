package tokenlease

import (
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A table finds accounts by their keys, without a lock and without allocating. Beyond
// the most that it holds, keys are left to the source until others are forgotten.
type table struct {
	seed  maphash.Seed
	heads []atomic.Pointer[account]
	mu    sync.Mutex // held by what changes the chains
	count int        // guarded by mu
	most  int
}

const heads = 1 << 14

func newTable() table {
	return table{seed: maphash.MakeSeed(), heads: make([]atomic.Pointer[account], heads), most: maxKeys}
}

// hash is that of the key, and false where the key lacks a descriptor that counts.
func (t *table) hash(key Key) (uint64, bool) {
	h := mix(mix(maphash.String(t.seed, key.Tenant), maphash.String(t.seed, key.Policy)), key.Version)
	if key.Names == nil {
		sum := uint64(0) // whatever the order
		for name, value := range key.Descriptors {
			sum += mix(maphash.String(t.seed, name), maphash.String(t.seed, value))
		}
		return mix(h, sum), true
	}
	for _, name := range key.Names {
		value, ok := key.Descriptors[name]
		if !ok {
			return 0, false
		}
		h = mix(h, maphash.String(t.seed, value))
	}
	return h, true
}

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>32
}

func (t *table) head(hash uint64) *atomic.Pointer[account] { return &t.heads[hash%heads] }

func (t *table) find(hash uint64, key Key) *account {
	for a := t.head(hash).Load(); a != nil; a = a.next.Load() {
		if a.hash == hash && a.is(key) {
			return a
		}
	}
	return nil
}

// is compares keys: hashes of different ones may be equal.
func (a *account) is(key Key) bool {
	own := &a.key
	if own.Version != key.Version || own.Tenant != key.Tenant || own.Policy != key.Policy || (own.Names == nil) != (key.Names == nil) {
		return false
	}
	if key.Names == nil {
		if len(own.Descriptors) != len(key.Descriptors) {
			return false
		}
		for name, value := range own.Descriptors {
			if v, ok := key.Descriptors[name]; !ok || v != value {
				return false
			}
		}
		return true
	}
	if !slices.Equal(own.Names, key.Names) {
		return false
	}
	for _, name := range own.Names {
		if own.Descriptors[name] != key.Descriptors[name] {
			return false
		}
	}
	return true
}

// open adds an account, or finds one that was added meanwhile; nil where there is no room.
func (t *table) open(hash uint64, key Key, now time.Duration) *account {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.find(hash, key); a != nil {
		return a
	}
	if t.count >= t.most {
		return nil
	}
	a := newAccount(hash, key.own(), now)
	head := t.head(hash)
	a.next.Store(head.Load())
	head.Store(a)
	t.count++
	return a
}

// own is a copy that the caller cannot change, without the descriptors that do not count.
// Its texts are copies as well: those of a request may be parts of one that is a lot longer.
func (k Key) own() Key {
	all := k.Descriptors
	k.Tenant, k.Policy = strings.Clone(k.Tenant), strings.Clone(k.Policy)
	k.Names, k.Descriptors = slices.Clone(k.Names), make(map[string]string, len(all))
	for name, value := range all {
		if k.Names == nil || slices.Contains(k.Names, name) {
			k.Descriptors[strings.Clone(name)] = strings.Clone(value)
		}
	}
	return k
}

// remove takes an account out. A batch that somebody still takes who has found it before lapses.
func (t *table) remove(gone *account) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.head(gone.hash)
	for a := at.Load(); a != nil; a = at.Load() {
		if a == gone {
			at.Store(a.next.Load())
			t.count--
			return
		}
		at = &a.next
	}
}

// all are the accounts, those that come or go meanwhile perhaps among them.
func (t *table) all() iter.Seq[*account] {
	return func(yield func(*account) bool) {
		for i := range t.heads {
			for a := t.heads[i].Load(); a != nil; a = a.next.Load() {
				if !yield(a) {
					return
				}
			}
		}
	}
}
