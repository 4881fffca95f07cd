// Package fencing decides whether a writer may still write: it hands out
// tokens that only ever grow and refuses a write that carries an older one
// than the newest seen.
//
// A lease alone cannot stop a holder that paused, lost its lease and woke up
// again: only the place that is written to can, by remembering the largest
// token it saw. See Martin Kleppmann, "How to do distributed locking" (2016).
package fencing

import (
	"context"
	"errors"
	"fmt"
)

// A Token orders the holders of one resource: a later grant has a larger one.
// Tokens are 1 to [MaxToken], exact in JSON numbers.
type Token int64

// MaxToken is the largest token, 2^53 − 1.
const MaxToken Token = 1<<53 - 1

// A Position orders the writes to one place: first by token, then by sequence.
type Position struct {
	Token    Token
	Sequence int64 // 0 where the writer named none
}

// Mode says what a protected record asks of a writer. The first write fixes it.
type Mode string

// HighWater asks for a position not below the record's.
const HighWater Mode = "high_water"

// A Record is one protected value.
type Record struct {
	Position
	Value   []byte // compact JSON
	Version int64  // how many writes were accepted, 1 for the first
	Mode    Mode
}

// A WriteRequest asks to replace a protected value.
type WriteRequest struct {
	Position
	Mode  Mode
	Value []byte // JSON
}

// Refusals. A stale token is a [*StaleError].
var (
	ErrNotFound       = errors.New("fencing: nothing was written here")
	ErrNotGranted     = errors.New("fencing: the token is larger than any that was granted")
	ErrSequenceReused = errors.New("fencing: this token and sequence already wrote another value")
	ErrModeFixed      = errors.New("fencing: the record has another mode")
)

// A StaleError refuses a position below the one reached.
type StaleError struct{ HighWater Position }

func (e *StaleError) Error() string {
	return fmt.Sprintf("fencing: stale token: the mark is at %d", e.HighWater.Token)
}

// A Manager checks requests and asks its store.
type Manager struct {
	store Store
}

// New makes a manager over the store.
func New(store Store) *Manager { return &Manager{store: store} }

// Admit raises the resource's mark to the position and reports where it stands, or refuses: *StaleError,
// ErrNotGranted, *keytype.ValueError. Without a sequence a token equal to the
// mark passes; with one, the position must be larger, or equal, which replays.
func (m *Manager) Admit(ctx context.Context, tenant, resource string, at Position) (Position, error) {
	panic("to be written")
}

// Mark reads the resource's mark, strongly consistent. ErrNotFound where nothing was admitted.
func (m *Manager) Mark(ctx context.Context, tenant, resource string) (Position, error) {
	panic("to be written")
}

// Write replaces the record's value, or refuses: *StaleError, ErrSequenceReused, ErrModeFixed, *keytype.ValueError.
func (m *Manager) Write(ctx context.Context, tenant, resource, key string, req WriteRequest) (Record, error) {
	panic("to be written")
}

// Read returns the record, strongly consistent. ErrNotFound where nothing was written.
func (m *Manager) Read(ctx context.Context, tenant, resource, key string) (Record, error) {
	panic("to be written")
}

// Store is to be written.
type Store interface{}
