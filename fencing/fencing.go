// Package fencing decides whether a writer may still write: it hands out
// tokens that only ever grow and refuses a write that carries an older one
// than the newest seen.
//
// A lease alone cannot stop a holder that paused, lost its lease and woke up
// again: only the place that is written to can, by remembering the largest
// token it saw. See Martin Kleppmann, "How to do distributed locking" (2016).
//
// Marks and records are durable, linearizable, and never deleted. While the store fails
// no write passes: it fails closed.
package fencing

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
)

// A Token orders the holders of one resource: a later grant has a larger one.
// Tokens are 1 to [MaxToken], exact in JSON numbers.
type Token int64

// Bounds of a request.
const (
	MaxToken    Token = 1<<53 - 1
	MaxSequence int64 = 1<<53 - 1
	MaxValue          = 64 << 10 // bytes of compact JSON
)

// A Position orders the writes to one place: first by token, then by sequence.
type Position struct {
	Token    Token `json:"token"`
	Sequence int64 `json:"sequence,omitempty"` // 1 to MaxSequence, 0 where the writer named none
}

// Mode says what a protected record asks of a writer. The first write fixes it.
type Mode string

// The modes.
const (
	// Leased asks for the resource's latest grant besides, neither released nor
	// forced: a holder before is refused from the moment of takeover, whatever the
	// new one has written. A grant that expired and was not taken over still passes.
	// Where one lease guards several keys, this is the mode that is safe.
	Leased Mode = "lease"
	// HighWater asks for a position not below the record's own, and nothing more. The
	// record knows nothing of the resource's lease or mark: until a newer holder has
	// written to this record, an older one still may, and any token passes.
	HighWater Mode = "high_water"
)

// A Record is one protected value. The zero Record stands for one that was never written.
type Record struct {
	Position
	Value   []byte `json:"value"`   // compact JSON
	Version int64  `json:"version"` // how many writes were accepted, 1 for the first
	Mode    Mode   `json:"mode"`
}

// A WriteRequest asks to replace a protected value.
type WriteRequest struct {
	Position
	Mode    Mode   // Leased where empty
	LeaseID string // of the writer's grant: required in mode Leased, in no other
	Value   []byte // JSON, at most MaxValue when compact
}

// Refusals. A stale token is a [*StaleError].
var (
	ErrNotFound       = errors.New("fencing: nothing was written here")
	ErrNotGranted     = errors.New("fencing: the token is larger than any that was granted")
	ErrSequenceReused = errors.New("fencing: this token and sequence already wrote another value")
	ErrModeFixed      = errors.New("fencing: the record has another mode")
)

// ErrExhausted is what a lease returns for a resource whose next token would
// exceed [MaxToken], because a token that large was admitted. It is never granted again.
var ErrExhausted = errors.New("fencing: no token is left")

// A StaleError refuses a position below the one reached. A write without a
// sequence is also refused when its token's last sequence is taken, and in mode
// Leased one whose grant is not the latest or was released: HighWater is the newest
// token handed out then.
type StaleError struct{ HighWater Position }

func (e *StaleError) Error() string {
	return fmt.Sprintf("fencing: stale token: the mark is at %d", e.HighWater.Token)
}

// A Store keeps one [State] per resource, shared with the lease store over the
// same data, and one [Record] per key of a resource.
//
// Each method is one atomic step: Admit, Write, ResetMark and ResetRecord decide and
// store as [State.Admit], [Record.Write], [State.Reset] and [Record.Reset] do,
// against both states at that moment, and Mark and Read see every step that ended
// before they were called. Nothing is ever deleted, and absence is the zero value. A refusal is a verdict; an error
// is a fault, keytype.ErrUnavailable where nothing happened, else
// keytype.ErrOutcomeUnknown.
type Store interface {
	Admit(ctx context.Context, tenant, resource string, at Position) (Admission, error)
	Mark(ctx context.Context, tenant, resource string) (Position, error)
	Write(ctx context.Context, tenant, resource, key string, w Write) (Written, error)
	Read(ctx context.Context, tenant, resource, key string) (Record, error)
	ResetMark(ctx context.Context, tenant, resource string, to Token) (Admission, error)
	ResetRecord(ctx context.Context, tenant, resource, key string, r Reset) (Written, error)
}

// A Manager checks requests and asks its store. Besides the refusals that each
// method names, its errors are [*keytype.ValueError], with the field's name in
// the HTTP API, and the store's faults.
type Manager struct {
	store Store
}

// New makes a manager over the store.
func New(store Store) *Manager { return &Manager{store: store} }

// Admit raises the resource's mark to the position and reports where it stands,
// or refuses with a *StaleError or ErrNotGranted. Without a sequence a token
// equal to the mark passes and leaves the mark as it is; with one, the position
// must be larger, or equal, which replays. A resource that was never leased here
// admits any token, also one that leaves none for a first grant: whoever lets others
// admit tokens from elsewhere bounds them.
func (m *Manager) Admit(ctx context.Context, tenant, resource string, at Position) (Position, error) {
	if err := checkResource(tenant, resource); err != nil {
		return Position{}, err
	}
	if err := at.check(); err != nil {
		return Position{}, err
	}
	a, err := m.store.Admit(ctx, tenant, resource, at)
	if err != nil {
		return Position{}, err
	}
	if err := a.Verdict.refusal(a.Mark); err != nil {
		return Position{}, err
	}
	return a.Mark, nil
}

// Mark reads the resource's mark, strongly consistent. ErrNotFound where nothing was admitted.
func (m *Manager) Mark(ctx context.Context, tenant, resource string) (Position, error) {
	if err := checkResource(tenant, resource); err != nil {
		return Position{}, err
	}
	mark, err := m.store.Mark(ctx, tenant, resource)
	if err == nil && mark == (Position{}) {
		err = ErrNotFound
	}
	return mark, err
}

// Write replaces the record's value, or refuses with a *StaleError,
// ErrSequenceReused, ErrModeFixed or, in mode Leased, ErrNotGranted. With a sequence the position must be larger
// than the record's, or equal, which replays the stored answer if the value is
// the same. Without one, the write takes the record's sequence plus 1, or 1
// after a larger token; it cannot be told from a repetition, so a caller that
// repeats writes names sequences.
func (m *Manager) Write(ctx context.Context, tenant, resource, key string, req WriteRequest) (Record, error) {
	if err := checkKey(tenant, resource, key); err != nil {
		return Record{}, err
	}
	value, err := req.check()
	if err != nil {
		return Record{}, err
	}
	w, err := m.store.Write(ctx, tenant, resource, key, Write{
		Position: req.Position, Mode: req.mode(), LeaseID: req.LeaseID, Value: value, ID: rand.Text(),
	})
	return w.answer(err)
}

// ResetMark sets the resource's mark to the token, by hand: for a mark that was raised
// by mistake and so refuses every writer. It refuses with ErrNotFound where
// nothing was admitted, and with ErrNotGranted a token that would shut out every
// holder. Writers between that token and the mark before may pass again.
func (m *Manager) ResetMark(ctx context.Context, tenant, resource string, to Token) (Position, error) {
	if err := checkResource(tenant, resource); err != nil {
		return Position{}, err
	}
	if err := (Position{Token: to}).check(); err != nil {
		return Position{}, err
	}
	a, err := m.store.ResetMark(ctx, tenant, resource, to)
	if err != nil {
		return Position{}, err
	}
	if err := a.Verdict.refusal(a.Mark); err != nil {
		return Position{}, err
	}
	return a.Mark, nil
}

// ResetRecord sets the record's position to the token without a sequence; its value,
// version and mode stay. ErrNotFound where nothing was written.
func (m *Manager) ResetRecord(ctx context.Context, tenant, resource, key string, to Token) (Record, error) {
	if err := checkKey(tenant, resource, key); err != nil {
		return Record{}, err
	}
	if err := (Position{Token: to}).check(); err != nil {
		return Record{}, err
	}
	w, err := m.store.ResetRecord(ctx, tenant, resource, key, Reset{Token: to, ID: rand.Text()})
	return w.answer(err)
}

// Read returns the record, strongly consistent. ErrNotFound where nothing was written.
func (m *Manager) Read(ctx context.Context, tenant, resource, key string) (Record, error) {
	if err := checkKey(tenant, resource, key); err != nil {
		return Record{}, err
	}
	r, err := m.store.Read(ctx, tenant, resource, key)
	if err == nil && r.Version == 0 {
		err = ErrNotFound
	}
	return r, err
}
