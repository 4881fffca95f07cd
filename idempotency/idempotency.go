// Package idempotency decides who may carry out a request that came more than once,
// and what is answered to the others.
//
// What it promises is at most one completion per key, not one execution: an executor
// that stops between its effect and its completion is followed by another. Each
// claim of a key has a larger attempt than all before it, which a fence can
// compare, so that the effect of an executor that was followed can be refused.
//
// Records are durable until their TTL is over, and linearizable per key. While the store
// fails nobody may execute: it fails closed.
package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Bounds of a request.
const (
	MinTTL      = 100 * time.Millisecond
	MaxTTL      = 30 * 24 * time.Hour
	MaxLockTTL  = 24 * time.Hour
	MaxResponse = 32 << 10 // bytes of compact JSON
)

// Retention is how long a store keeps a record beyond its end, so that an executor that
// slept through it is still told by its attempt from the executor of the next record.
const Retention = MaxLockTTL

// An ID names what must not be completed twice.
type ID struct {
	Tenant string
	Space  string // keeps keys of different origin apart
	Key    string // the caller's own
}

// A ClaimRequest asks to be the executor. Durations count in whole milliseconds, fractions are dropped.
type ClaimRequest struct {
	Fingerprint string        // of all that makes the request what it is: another one under the same key is refused
	LockTTL     time.Duration // MinTTL to MaxLockTTL: after it others may claim
	TTL         time.Duration // MinTTL to MaxTTL: how long the record lasts, never shorter than its lock
	RequestID   string        // optional: the same one gets the same claim again while its lock lasts
}

// A Claimed is what comes of a claim: the right to execute or, where Completed, the
// response that somebody completed the key with.
type Claimed struct {
	Completed bool
	Response  string // JSON, where Completed

	ID       string        // proves the claim: keep it secret
	Attempt  int64         // larger than that of every claim before
	ValidFor time.Duration // of the lock, at most what was asked for: count it from when the request was sent
}

// Refusals. A key that somebody executes is an [*InFlightError].
var (
	ErrMismatch  = errors.New("idempotency: the key belongs to another request, or to another response")
	ErrLost      = errors.New("idempotency: the claim is not the latest, or has ended")
	ErrClockSkew = errors.New("idempotency: this node's clock is too far off to tell whether the lock, or the record, is over")
)

// An InFlightError refuses a key whose executor may still be at work.
type InFlightError struct {
	RetryAfter time.Duration // until the lock is over by this node's clock, guard included, at least 1 ms
}

func (e *InFlightError) Error() string {
	return fmt.Sprintf("idempotency: in flight for another %v", e.RetryAfter)
}

// A Store keeps one [State] per key.
//
// Each method is one atomic step: it decides and stores as the method of [State]
// of the same name does, against the state at that moment. Absence is the zero
// State, and so may be, for no longer a record lasts, a state more than Retention
// past its end. A refusal is a verdict; an error is a fault, keytype.ErrUnavailable
// where nothing happened, else keytype.ErrOutcomeUnknown.
type Store interface {
	Claim(ctx context.Context, id ID, req Claim) (Outcome, error)
	Extend(ctx context.Context, id ID, req Extend) (Outcome, error)
	Complete(ctx context.Context, id ID, req Complete) (Outcome, error)
	Abandon(ctx context.Context, id ID, req Abandon) (Outcome, error)
}

// Options of a manager; the zero value works.
type Options struct {
	Space string           // its keys are apart from those of managers with another
	Guard time.Duration    // others may claim only this long after a lock's end; 0 where one clock decides
	Now   func() time.Time // time.Now where nil
	// Skewed reports that this node's clock may be further off than the guard allows:
	// by it no claim follows another's lock or record. Never where nil.
	Skewed func() bool
}

// A Manager checks requests, reads the clock and asks its store. Besides the
// refusals that each method names, its errors are [*keytype.ValueError], with
// the field's name in the HTTP API, and the store's faults.
type Manager struct {
	store  Store
	space  string
	guard  time.Duration
	now    func() time.Time
	skewed func() bool
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	m := &Manager{store: store, space: opts.Space, guard: opts.Guard.Truncate(time.Millisecond), now: opts.Now, skewed: opts.Skewed}
	if m.now == nil {
		m.now = time.Now
	}
	if m.skewed == nil {
		m.skewed = func() bool { return false }
	}
	return m
}

// Claim makes the caller the key's executor, or returns the response that the key was
// completed with. It refuses with ErrMismatch, before anything else, where the key came with another
// fingerprint, with an *InFlightError while the latest executor's lock lasts, and with
// ErrClockSkew where a skewed clock says that the lock, or the record, is over.
func (m *Manager) Claim(ctx context.Context, tenant, key string, req ClaimRequest) (Claimed, error) {
	if err := req.check(tenant, key); err != nil {
		return Claimed{}, err
	}
	now := m.clock()
	out, err := m.store.Claim(ctx, m.id(tenant, key), Claim{
		ID: "clm_" + rand.Text(), RequestID: req.RequestID, Fingerprint: req.Fingerprint,
		Now: now, LockTTL: wholeMillis(req.LockTTL), TTL: wholeMillis(max(req.TTL, req.LockTTL)), Guard: m.guard, NoSteal: m.skewed(),
	})
	return m.claimed(out, err, now, wholeMillis(req.LockTTL))
}

// Extend moves the end of the claim's lock to now + lockTTL, never back. It refuses with ErrLost.
func (m *Manager) Extend(ctx context.Context, tenant, key, claimID string, lockTTL time.Duration) (Claimed, error) {
	if err := errors.Join(checkClaim(tenant, key, claimID), checkLockTTL(lockTTL)); err != nil {
		return Claimed{}, err
	}
	now := m.clock()
	out, err := m.store.Extend(ctx, m.id(tenant, key), Extend{ID: claimID, Now: now, LockTTL: wholeMillis(lockTTL)})
	return m.claimed(out, err, now, wholeMillis(lockTTL))
}

// Complete stores the response, which every further claim of the key gets. Again is no
// error. It refuses with ErrLost, where somebody else claimed the key since or the
// record has ended, and with ErrMismatch where this claim was completed with another response. A
// lock that is over does not matter as long as nobody else has claimed.
func (m *Manager) Complete(ctx context.Context, tenant, key, claimID, response string) error {
	if err := checkClaim(tenant, key, claimID); err != nil {
		return err
	}
	response, err := compact(response)
	if err != nil {
		return err
	}
	now := m.clock()
	out, err := m.store.Complete(ctx, m.id(tenant, key), Complete{ID: claimID, Now: now, Response: response})
	if err != nil {
		return err
	}
	return m.refusal(out, now)
}

// Abandon ends the claim without a response, so that others need not wait for its lock. The
// key stays with its fingerprint. Again is no error. It refuses with ErrLost.
func (m *Manager) Abandon(ctx context.Context, tenant, key, claimID string) error {
	if err := checkClaim(tenant, key, claimID); err != nil {
		return err
	}
	now := m.clock()
	out, err := m.store.Abandon(ctx, m.id(tenant, key), Abandon{ID: claimID, Now: now})
	if err != nil {
		return err
	}
	return m.refusal(out, now)
}

func (m *Manager) id(tenant, key string) ID { return ID{Tenant: tenant, Space: m.space, Key: key} }

func (m *Manager) clock() time.Time { return time.UnixMilli(m.now().UnixMilli()).UTC() }

func wholeMillis(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }

// claimed is what the caller is told. No longer than it asked for: the lock's end may be by
// a clock that is ahead of this one.
func (m *Manager) claimed(out Outcome, err error, now time.Time, asked time.Duration) (Claimed, error) {
	if err != nil {
		return Claimed{}, err
	}
	if out.Verdict == Completed {
		return Claimed{Completed: true, Response: out.State.Response}, nil
	}
	if err := m.refusal(out, now); err != nil {
		return Claimed{}, err
	}
	s := out.State
	return Claimed{ID: s.ClaimID, Attempt: s.Attempt, ValidFor: min(asked, s.LockedUntil.Sub(now))}, nil
}

func (m *Manager) refusal(out Outcome, now time.Time) error {
	switch out.Verdict {
	case Done, Completed:
		return nil
	case InFlight:
		return &InFlightError{RetryAfter: out.State.LockedUntil.Add(m.guard).Sub(now) + time.Millisecond}
	case Mismatch:
		return ErrMismatch
	case Lost:
		return ErrLost
	case Skewed:
		return ErrClockSkew
	}
	panic("idempotency: a store returned no verdict")
}
