package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"
)

// children are the metrics of a vector, by label values that come again and again: to
// find one by its labels costs a hash of all of them, and allocates.
type children[L comparable, M any] struct {
	find  func(L) M
	known atomic.Pointer[map[L]M] // never changed, but replaced
	mu    sync.Mutex              // of those who replace it
}

func childrenOf[L comparable, M any](find func(L) M) *children[L, M] {
	c := &children[L, M]{find: find}
	c.known.Store(&map[L]M{})
	return c
}

func (c *children[L, M]) of(labels L) M {
	if child, ok := (*c.known.Load())[labels]; ok {
		return child
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	child := c.find(labels)
	more := maps.Clone(*c.known.Load())
	more[labels] = child
	c.known.Store(&more)
	return child
}
