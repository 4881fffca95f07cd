// Package lease decides who may work on a resource, and until when.
//
// A lease is exclusive in time only as far as clocks can be trusted. What holds
// under any clock is its fencing token: every grant has a larger one than all
// before it, across release, expiry and restart.
package lease

import (
	"context"
	"crypto/rand"
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

// A Lease is the latest grant of a resource. Instants are UTC, in whole milliseconds.
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

// An AcquireRequest asks for a resource. Durations count in whole milliseconds, fractions are dropped.
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
	RetryAfter time.Duration // until the resource is free by this node's clock, at least 1 ms
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease: held until %s", e.HeldUntil.UTC().Format(time.RFC3339Nano))
}

// A Store keeps one [State] per resource, and beside it the fencing.State that it
// shares with the fencing store over the same data.
//
// Each method is one atomic step: it decides and stores as the method of [State]
// of the same name does, against the state at that moment, and Get sees every
// step that ended before it was called. Nothing is ever deleted, and absence is
// the zero State. A refusal is a verdict; an error is a fault,
// keytype.ErrUnavailable where nothing happened, else keytype.ErrOutcomeUnknown.
type Store interface {
	Acquire(ctx context.Context, tenant, resource string, req Acquire) (Outcome, error)
	Renew(ctx context.Context, tenant, resource string, req Renew) (Outcome, error)
	Release(ctx context.Context, tenant, resource string, holder Holder) (Outcome, error)
	Get(ctx context.Context, tenant, resource string) (State, error)
}

// Options of a manager; the zero value works.
type Options struct {
	Guard time.Duration    // a lease is taken over only this long after its expiry; 0 where one clock decides
	Now   func() time.Time // time.Now where nil
}

// A Manager checks requests, reads the clock and asks its store. Besides the
// refusals that each method names, its errors are [*keytype.ValueError], with
// the field's name in the HTTP API, and the store's faults.
type Manager struct {
	store Store
	guard time.Duration
	now   func() time.Time
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	m := &Manager{store: store, guard: opts.Guard.Truncate(time.Millisecond), now: opts.Now}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// Acquire grants the resource, or refuses with a *HeldError, ErrRequestExpired or
// fencing.ErrExhausted. The same owner and request id as the latest grant's are a
// repetition: they get that grant again while it lasts, whatever else they ask for.
func (m *Manager) Acquire(ctx context.Context, tenant, resource string, req AcquireRequest) (Grant, error) {
	if err := req.check(tenant, resource); err != nil {
		return Grant{}, err
	}
	now := m.clock()
	out, err := m.store.Acquire(ctx, tenant, resource, Acquire{
		Owner: req.Owner, RequestID: req.RequestID, ID: "lse_" + rand.Text(),
		Now: now, TTL: wholeMillis(req.TTL), MaxHold: wholeMillis(req.maxHold()), Guard: m.guard,
	})
	return m.grant(resource, out, err, now)
}

// Renew moves the grant's expiry to now + ttl, never back and never past the
// grant's MaxHold. It refuses with ErrLost or ErrExpired.
func (m *Manager) Renew(ctx context.Context, tenant, resource string, holder Holder, ttl time.Duration) (Grant, error) {
	if err := checkRenew(tenant, resource, holder, ttl); err != nil {
		return Grant{}, err
	}
	now := m.clock()
	out, err := m.store.Renew(ctx, tenant, resource, Renew{Holder: holder, Now: now, TTL: wholeMillis(ttl)})
	return m.grant(resource, out, err, now)
}

// Release ends the grant, also an expired one; again is no error. It refuses with ErrLost.
func (m *Manager) Release(ctx context.Context, tenant, resource string, holder Holder) error {
	if err := checkHolder(tenant, resource, holder); err != nil {
		return err
	}
	out, err := m.store.Release(ctx, tenant, resource, holder)
	if err != nil {
		return err
	}
	return m.refusal(out, time.Time{})
}

// Get reads the latest grant, strongly consistent. ErrNotFound where there never was one.
func (m *Manager) Get(ctx context.Context, tenant, resource string) (Lease, error) {
	if err := checkResource(tenant, resource); err != nil {
		return Lease{}, err
	}
	s, err := m.store.Get(ctx, tenant, resource)
	if err != nil {
		return Lease{}, err
	}
	if s.Token == 0 {
		return Lease{}, ErrNotFound
	}
	return s.lease(resource, m.clock()), nil
}

func (m *Manager) clock() time.Time { return time.UnixMilli(m.now().UnixMilli()).UTC() }

func wholeMillis(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }

func (m *Manager) grant(resource string, out Outcome, err error, now time.Time) (Grant, error) {
	if err != nil {
		return Grant{}, err
	}
	if err := m.refusal(out, now); err != nil {
		return Grant{}, err
	}
	s := out.State
	return Grant{Lease: s.lease(resource, now), ID: s.ID, ValidFor: s.ExpiresAt.Sub(now)}, nil
}

func (m *Manager) refusal(out Outcome, now time.Time) error {
	switch out.Verdict {
	case Done:
		return nil
	case Held:
		until := out.State.ExpiresAt.Add(m.guard)
		return &HeldError{HeldUntil: until, RetryAfter: until.Sub(now) + time.Millisecond}
	case RequestExpired:
		return ErrRequestExpired
	case Lost:
		return ErrLost
	case Expired:
		return ErrExpired
	case Exhausted:
		return fencing.ErrExhausted
	}
	panic("lease: a store returned no verdict")
}
