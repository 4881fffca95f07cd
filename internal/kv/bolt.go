package kv

import "context"

// Bolt is a Store in one bbolt file.
type Bolt struct{}

// Open opens or creates the file.
func Open(path string, opts BoltOptions) (*Bolt, error) { panic("to be written") }

// BoltOptions tunes a file store; the zero value is what the service uses.
type BoltOptions struct {
	NoSync bool // skips the fsync of each commit: for the test that shows that the fsync matters
}

// Update implements Store.
func (b *Bolt) Update(ctx context.Context, fn func(Tx) error) error { panic("to be written") }

// View implements Store.
func (b *Bolt) View(ctx context.Context, fn func(Tx) error) error { panic("to be written") }

// Close implements Store.
func (b *Bolt) Close() error { return nil }
