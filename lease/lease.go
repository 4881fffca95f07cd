// Package lease decides who may work on a resource, and until when.
//
// A lease is exclusive in time only as far as clocks can be trusted. What holds
// under any clock is its fencing token: every grant has a larger one than all
// before it, across release, expiry and restart.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
)

// Bounds of a request.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
	// MaxHold is how long one grant can be kept by renewing it.
	MaxHold = 7 * 24 * time.Hour
)

// A Lease is the latest grant of a resource.
type Lease struct {
	Resource   string
	Held       bool // neither released nor expired
	Owner      string
	Token      fencing.Token
	AcquiredAt time.Time
	ExpiresAt  time.Time
}

// A Grant is a lease as its holder sees it.
type Grant struct {
	Lease
	ID       string        // proves the holder: keep it secret
	ValidFor time.Duration // count it from when the request was sent
}

// An AcquireRequest asks for a resource.
type AcquireRequest struct {
	Owner     string        // who asks, for people: proves nothing
	TTL       time.Duration // MinTTL to MaxTTL
	RequestID string        // optional: the same owner and request id get the same grant again
	MaxHold   time.Duration // how far renewals may reach from the grant: TTL to MaxHold, 0 = MaxHold
}

// A Holder proves which grant is meant.
type Holder struct {
	ID    string
	Token fencing.Token
}

// Refusals. A resource that somebody holds is a [*HeldError].
var (
	ErrNotFound       = errors.New("lease: never granted")
	ErrLost           = errors.New("lease: another grant, or none, is the latest")
	ErrExpired        = errors.New("lease: expired")
	ErrRequestExpired = errors.New("lease: the grant of this request id has ended")
)

// A HeldError refuses a resource that is held, or not yet safely free.
type HeldError struct {
	HeldUntil  time.Time     // expiry plus the clock guard
	RetryAfter time.Duration // until then, on this node's clock
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease: held until %s", e.HeldUntil.UTC().Format(time.RFC3339Nano))
}

// Options of a manager; the zero value works.
type Options struct {
	Guard time.Duration    // a lease is taken over only this long after its expiry; 0 where one clock decides
	Now   func() time.Time // time.Now where nil
}

// A Manager checks requests, reads the clock and asks its store.
type Manager struct {
	store Store
	opts  Options
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager { return &Manager{store: store, opts: opts} }

// Acquire grants the resource, or refuses: *HeldError, ErrRequestExpired, *keytype.ValueError.
func (m *Manager) Acquire(ctx context.Context, tenant, resource string, req AcquireRequest) (Grant, error) {
	panic("to be written")
}

// Renew moves the grant's expiry to now + ttl, never back and never past the grant's MaxHold. It refuses with ErrLost or ErrExpired.
func (m *Manager) Renew(ctx context.Context, tenant, resource string, holder Holder, ttl time.Duration) (Grant, error) {
	panic("to be written")
}

// Release ends the grant, also an expired one; again is no error. It refuses with ErrLost.
func (m *Manager) Release(ctx context.Context, tenant, resource string, holder Holder) error {
	panic("to be written")
}

// Get reads the latest grant, strongly consistent. ErrNotFound where there never was one.
func (m *Manager) Get(ctx context.Context, tenant, resource string) (Lease, error) {
	panic("to be written")
}

// Store is to be written.
type Store interface{}
