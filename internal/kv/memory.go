package kv

import (
	"container/list"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in process memory. It runs one transaction at a time, a View too.
type Memory struct {
	maxItems int
	now      func() time.Time

	mu     sync.Mutex
	closed bool                    // guarded by mu, as are the rest
	items  map[place]*list.Element // of the list that used names
	shared list.List               // of *memoryItem, the latest use first
	apart  map[string]*list.List   // the same, by bucket that has a bound of its own
	keys   map[string]*sortedKeys  // by bucket, the expiry index among them
}

type memoryItem struct {
	at  place
	raw []byte
}

// MemoryOptions bounds a memory store; the zero value does not.
type MemoryOptions struct {
	// MaxItems is how many items are kept; 0 = no bound. Beyond it a
	// transaction's end evicts expired items, then those whose last Get or Put
	// is longest ago: only for what may be lost.
	MaxItems int
	// Apart names buckets each of which has a bound of MaxItems of its own: what
	// fills one up evicts nothing elsewhere.
	Apart []string
	// Now is the clock that tells which items expired; nil = time.Now.
	Now func() time.Time
}

// NewMemory opens an empty store.
func NewMemory(opts MemoryOptions) *Memory {
	m := &Memory{
		maxItems: opts.MaxItems,
		now:      opts.Now,
		items:    map[place]*list.Element{},
		apart:    map[string]*list.List{},
		keys:     map[string]*sortedKeys{},
	}
	for _, bucket := range opts.Apart {
		m.apart[bucket] = list.New()
	}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// Update implements Store.
func (m *Memory) Update(ctx context.Context, fn func(Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	t := newTransaction(m)
	if err := t.run(fn); err != nil {
		return err
	}
	m.apply(t.writes)
	m.evict()
	return nil
}

// View implements Store.
func (m *Memory) View(ctx context.Context, fn func(Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	return newView(m).run(fn)
}

// Walk calls fn for every item, by bucket and key, until it returns false, on one consistent state.
func (m *Memory) Walk(ctx context.Context, fn func(bucket, key string, value []byte) bool) error {
	return walk(ctx, m, fn)
}

// Sweep implements Sweeper.
func (m *Memory) Sweep(ctx context.Context, now time.Time, limit int) (removed int, err error) {
	return sweep(ctx, m, now, limit)
}

// Close implements Store. What was stored is gone.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.items, m.keys, m.apart = nil, nil, nil
	m.shared.Init()
	return nil
}

func (m *Memory) ready(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

func (m *Memory) get(bucket, key string) []byte {
	e, ok := m.items[place{bucket, key}]
	if !ok {
		return nil
	}
	m.used(bucket).MoveToFront(e)
	return e.Value.(*memoryItem).raw
}

func (m *Memory) scan(bucket, prefix, after string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		keys, ok := m.keys[bucket]
		if !ok {
			return
		}
		for key := range keys.from(max(prefix, after)) {
			if !strings.HasPrefix(key, prefix) {
				return
			}
			if key != after && !yield(key, m.peek(place{bucket, key})) {
				return
			}
		}
	}
}

// peek reads without counting as a use. Entries of the expiry index have no value.
func (m *Memory) peek(at place) []byte {
	e, ok := m.items[at]
	if !ok {
		return nil
	}
	return e.Value.(*memoryItem).raw
}

func (m *Memory) buckets() []string {
	names := slices.Sorted(maps.Keys(m.keys))
	return slices.DeleteFunc(names, func(name string) bool { return name == expiryIndex })
}

func (m *Memory) apply(writes map[place][]byte) {
	for at, raw := range writes {
		if raw == nil {
			m.remove(at)
		} else {
			m.set(at, raw)
		}
	}
}

func (m *Memory) set(at place, raw []byte) {
	if e, ok := m.items[at]; ok {
		e.Value.(*memoryItem).raw = raw // Put has looked the item up, which counts as its use
		return
	}
	if at.bucket != expiryIndex {
		m.items[at] = m.used(at.bucket).PushFront(&memoryItem{at: at, raw: raw})
	}
	keys, ok := m.keys[at.bucket]
	if !ok {
		keys = &sortedKeys{}
		m.keys[at.bucket] = keys
	}
	keys.insert(at.key)
}

func (m *Memory) remove(at place) {
	if e, ok := m.items[at]; ok {
		m.used(at.bucket).Remove(e)
		delete(m.items, at)
	}
	if keys, ok := m.keys[at.bucket]; ok {
		keys.remove(at.key)
	}
}

// used is the list in which the bucket's items are.
func (m *Memory) used(bucket string) *list.List {
	if own, ok := m.apart[bucket]; ok {
		return own
	}
	return &m.shared
}

// excess is how many items of a list are too many.
func (m *Memory) excess(used *list.List) int { return max(0, used.Len()-m.maxItems) }

// evict brings the store back to its bounds.
func (m *Memory) evict() {
	if m.maxItems <= 0 {
		return
	}
	m.evictFrom(&m.shared)
	for _, own := range m.apart {
		m.evictFrom(own)
	}
}

// evictFrom brings one list back to its bound. What has expired goes first, of
// whatever list.
func (m *Memory) evictFrom(used *list.List) {
	for m.excess(used) > 0 {
		expired := newTransaction(m)
		if expired.sweep(m.now(), m.excess(used)) == 0 {
			break
		}
		m.apply(expired.writes)
	}
	t := newTransaction(m)
	for range m.excess(used) {
		// Deleting looks the item up, which moves it from the back to the front.
		at := used.Back().Value.(*memoryItem).at
		t.Delete(at.bucket, at.key)
	}
	m.apply(t.writes)
}
