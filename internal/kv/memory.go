package kv

import (
	"context"
	"sync"
)

// Memory is a Store in process memory.
type Memory struct {
	mu sync.Mutex
}

// MemoryOptions bounds a memory store; the zero value does not.
type MemoryOptions struct {
	MaxItems int // the least recently used item beyond this many is evicted; 0 = no bound
}

// NewMemory opens an empty store.
func NewMemory(opts MemoryOptions) *Memory { return &Memory{} }

// Update implements Store.
func (m *Memory) Update(ctx context.Context, fn func(Tx) error) error { panic("to be written") }

// View implements Store.
func (m *Memory) View(ctx context.Context, fn func(Tx) error) error { panic("to be written") }

// Close implements Store.
func (m *Memory) Close() error { return nil }
