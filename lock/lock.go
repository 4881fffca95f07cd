// Package lock decides who of several may go first, to save work that would be done twice.
//
// A lock is for efficiency only: it may be granted twice, after its store lost it,
// failed over, or its holder slept through its end. It carries no fencing token, so
// nothing tells the two holders apart. What must not be done twice needs a lease
// and its fencing token.
//
// Locks are ephemeral. While the store fails none is granted: it fails closed.
package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// Bounds of a request.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Warning is what every grant says.
const Warning = "advisory only: the lock may be granted twice and has no fencing token; use a lease where that matters"

// A Grant is a lock as its holder sees it.
type Grant struct {
	ID       string        // proves the holder: keep it secret
	ValidFor time.Duration // count it from when the request was sent
	Warning  string
}

// ErrLost refuses a holder whose lock has ended, or is somebody else's.
var ErrLost = errors.New("lock: not held by this id")

// A HeldError refuses a lock that somebody holds.
type HeldError struct {
	RetryAfter time.Duration // until it ends unless it is renewed, at least 1 ms
}

func (e *HeldError) Error() string { return fmt.Sprintf("lock: held for another %v", e.RetryAfter) }

// A Store keeps one [State] per lock, until its end or until it loses it.
//
// Each method is one atomic step: it decides and stores as the method of [State]
// of the same name does, by the request's instant or by a clock of its own. A
// refusal is a verdict; an error is a fault, keytype.ErrUnavailable where nothing
// happened, else keytype.ErrOutcomeUnknown.
type Store interface {
	Acquire(ctx context.Context, tenant, name string, req Acquire) (Outcome, error)
	Renew(ctx context.Context, tenant, name string, req Renew) (Outcome, error)
	Release(ctx context.Context, tenant, name string, req Release) (Outcome, error)
}

// Options of a manager; the zero value works.
type Options struct {
	Now func() time.Time // time.Now where nil
}

// A Manager checks requests, reads the clock and asks its store. Besides the
// refusals that each method names, its errors are [*keytype.ValueError], with
// the field's name in the HTTP API, and the store's faults.
type Manager struct {
	store Store
	now   func() time.Time
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	m := &Manager{store: store, now: opts.Now}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// Acquire grants the lock for ttl, MinTTL to MaxTTL, or refuses with a *HeldError. The owner is for
// people and proves nothing: who lost the answer waits like anybody else.
func (m *Manager) Acquire(ctx context.Context, tenant, name, owner string, ttl time.Duration) (Grant, error) {
	if err := cmp.Or(checkName(tenant, name), keytype.CheckID("owner", owner), checkTTL(ttl)); err != nil {
		return Grant{}, err
	}
	id := "lck_" + rand.Text()
	out, err := m.store.Acquire(ctx, tenant, name, Acquire{ID: id, Owner: owner, Now: m.clock(), TTL: ttl.Truncate(time.Millisecond)})
	return grant(id, out, err)
}

// Renew has the lock end ttl from now, 0 for the ttl that it was acquired with. It refuses with ErrLost.
func (m *Manager) Renew(ctx context.Context, tenant, name, id string, ttl time.Duration) (Grant, error) {
	if err := checkLock(tenant, name, id); err != nil {
		return Grant{}, err
	}
	if ttl != 0 {
		if err := checkTTL(ttl); err != nil {
			return Grant{}, err
		}
	}
	out, err := m.store.Renew(ctx, tenant, name, Renew{ID: id, Now: m.clock(), TTL: ttl.Truncate(time.Millisecond)})
	return grant(id, out, err)
}

// Release ends the lock, and is no error where nobody holds it any more. It refuses with ErrLost where
// somebody else does.
func (m *Manager) Release(ctx context.Context, tenant, name, id string) error {
	if err := checkLock(tenant, name, id); err != nil {
		return err
	}
	out, err := m.store.Release(ctx, tenant, name, Release{ID: id, Now: m.clock()})
	if err != nil {
		return err
	}
	return refusal(out)
}

func (m *Manager) clock() time.Time { return time.UnixMilli(m.now().UnixMilli()).UTC() }

func grant(id string, out Outcome, err error) (Grant, error) {
	if err != nil {
		return Grant{}, err
	}
	if err := refusal(out); err != nil {
		return Grant{}, err
	}
	return Grant{ID: id, ValidFor: out.Left, Warning: Warning}, nil
}

func refusal(out Outcome) error {
	switch out.Verdict {
	case Done:
		return nil
	case Held:
		return &HeldError{RetryAfter: max(time.Millisecond, out.Left)}
	case Lost:
		return ErrLost
	}
	panic("lock: a store returned no verdict")
}

func checkLock(tenant, name, id string) error {
	return cmp.Or(checkName(tenant, name), keytype.CheckID("lock_id", id))
}

func checkName(tenant, name string) error {
	return cmp.Or(keytype.CheckID("tenant", tenant), keytype.CheckID("name", name))
}

func checkTTL(ttl time.Duration) error {
	return keytype.CheckRange("ttl_ms", ttl.Milliseconds(), MinTTL.Milliseconds(), MaxTTL.Milliseconds())
}
