// Package lease decides who may work on a resource, and until when.
//
// A lease is exclusive in time only as far as clocks can be trusted. What holds
// under any clock is its fencing token: every grant has a larger one than all
// before it, across release, expiry and restart.
//
// Leases are durable, linearizable per resource, and never deleted. While the store
// fails nobody is granted anything: it fails closed.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
)

// Bounds of a request.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
	// MaxHold is how long one grant can be kept by renewing it.
	MaxHold = 7 * 24 * time.Hour
	MaxData = 4 << 10 // bytes of compact JSON
)

// FloorDelay is how long after the floor was raised a node may still grant a token
// below it: it caches the floor for most of that, and may then be in the midst of a
// grant.
const FloorDelay = 45 * time.Second

// A Lease is the latest grant of a resource. Instants are UTC, in whole milliseconds.
type Lease struct {
	Resource   string
	Held       bool // neither released nor expired
	Owner      string
	Token      fencing.Token
	AcquiredAt time.Time
	ExpiresAt  time.Time
	Data       string // JSON that the grant was asked for with, empty where it came without
}

// A Grant is a lease as its holder sees it.
type Grant struct {
	Lease
	ID       string        // proves the holder: keep it secret
	ValidFor time.Duration // count it from when the request was sent; never more than the request's TTL, also where the lease expires later
}

// An AcquireRequest asks for a resource. Durations count in whole milliseconds, fractions are dropped.
type AcquireRequest struct {
	Owner     string        // who asks, for people: proves nothing
	TTL       time.Duration // MinTTL to MaxTTL
	RequestID string        // optional: the same owner and request id get the same grant again
	MaxHold   time.Duration // how far renewals may reach from the grant: TTL to MaxHold, 0 = MaxHold
	NotAfter  time.Time     // once past, no new grant comes of this request; zero = never past
	Wait      time.Duration // how long to wait for a resource that is held: 0 to MaxWait
	Data      string        // optional: JSON, at most MaxData when compact, that everybody who reads the lease sees
	// StillMay is asked before each try of a caller who waits, and after a grant: an error
	// ends the wait, and is what it ends with, and the grant. It is for a caller whose rights may end meanwhile; nil = they do not.
	StillMay func(context.Context) error
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
	ErrMismatch       = errors.New("lease: the request id was granted other resources together")
	ErrClockSkew      = errors.New("lease: this node's clock is too far off to tell whether the lease has expired")
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
	Force(ctx context.Context, tenant, resource string, req Force) (Outcome, error)
	Get(ctx context.Context, tenant, resource string) (State, error)

	// Together decides over all the resources, 1 to MaxSet different ones, against their
	// states at one moment, and stores all that comes of it if every verdict is Done, else
	// nothing. It asks decide in the order of the list, and may ask again, from the first,
	// where a state has moved meanwhile.
	Together(ctx context.Context, tenant string, resources []string, decide Decision) ([]Outcome, error)

	// List returns leases of the tenant, among them every one of the owner that was not
	// released, unless it was granted just now: others are to be skipped. The cursor is
	// where to go on, empty where there is nothing more.
	List(ctx context.Context, tenant string, op ListOp) (owned []Owned, next string, err error)

	// RaiseFloor has no token up to the floor handed out for any resource of any tenant:
	// from now on by this store, by others over the same data FloorDelay later. It
	// returns the floor in force, which never falls.
	RaiseFloor(ctx context.Context, to fencing.Token) (fencing.Token, error)
}

// Options of a manager; the zero value works.
type Options struct {
	Guard time.Duration    // a lease is taken over only this long after its expiry; 0 where one clock decides
	Now   func() time.Time // time.Now where nil
	// Skewed reports that this node's clock may be further off than the guard allows:
	// it takes over no lease then. Never where nil.
	Skewed func() bool
	Done   <-chan struct{} // once closed, nobody waits any more; nil = never
	// Cursors seals the cursors of lists, so that nobody makes one up; nil shows them
	// as they are, which are resources.
	Cursors Sealer
}

// A Sealer makes texts that only it reads, and only for the same purpose and tenant.
type Sealer interface {
	Seal(purpose, tenant string, plaintext []byte) string
	Open(purpose, tenant, sealed string) ([]byte, error)
}

// A Manager checks requests, reads the clock and asks its store. Besides the
// refusals that each method names, its errors are [*keytype.ValueError], with
// the field's name in the HTTP API, and the store's faults.
type Manager struct {
	store  Store
	guard  time.Duration
	now    func() time.Time
	skewed func() bool
	done   <-chan struct{}
	sealer Sealer // nil = none
	lines  lines
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	m := &Manager{store: store, guard: opts.Guard.Truncate(time.Millisecond), now: opts.Now, skewed: opts.Skewed, done: opts.Done, sealer: opts.Cursors, lines: lines{at: map[place]*line{}}}
	if m.now == nil {
		m.now = time.Now
	}
	if m.skewed == nil {
		m.skewed = func() bool { return false }
	}
	return m
}

// Acquire grants the resource, or refuses with a *HeldError, ErrRequestExpired, also
// after NotAfter, fencing.ErrExhausted, or ErrClockSkew where an expired lease would have
// to be taken over. The same owner and request id as the latest grant's are a
// repetition: they get that grant again while it lasts, whatever else they ask for.
//
// With Wait it stands in line with this manager's other waiters for the resource,
// first come first; the first of them asks every half second, and at once after a
// release by this manager. When the time is over, the *HeldError is of the last time
// that somebody asked.
func (m *Manager) Acquire(ctx context.Context, tenant, resource string, req AcquireRequest) (Grant, error) {
	data, err := req.check(tenant, resource)
	if err != nil {
		return Grant{}, err
	}
	try := func(ctx context.Context) (Grant, error) {
		now := m.clock()
		out, err := m.store.Acquire(ctx, tenant, resource, Acquire{
			Owner: req.Owner, RequestID: req.RequestID, ID: "lse_" + rand.Text(),
			Now: now, TTL: wholeMillis(req.TTL), MaxHold: wholeMillis(req.maxHold()), Guard: m.guard,
			NotAfter: req.NotAfter, Data: data, NoSteal: m.skewed(),
		})
		return m.grant(resource, out, err, now, req.TTL)
	}
	if req.Wait == 0 {
		return try(ctx)
	}
	return m.wait(ctx, place{tenant, resource}, req, try)
}

// Renew moves the grant's expiry to now + ttl, never back and never past the
// grant's MaxHold. It refuses with ErrLost or ErrExpired.
func (m *Manager) Renew(ctx context.Context, tenant, resource string, holder Holder, ttl time.Duration) (Grant, error) {
	if err := checkRenew(tenant, resource, holder, ttl); err != nil {
		return Grant{}, err
	}
	now := m.clock()
	out, err := m.store.Renew(ctx, tenant, resource, Renew{Holder: holder, Now: now, TTL: wholeMillis(ttl)})
	return m.grant(resource, out, err, now, ttl)
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
	return m.released(tenant, resource, out)
}

// released wakes whoever waits for what was released.
func (m *Manager) released(tenant, resource string, out Outcome) error {
	if err := m.refusal(out, time.Time{}); err != nil {
		return err
	}
	m.lines.wake(place{tenant, resource})
	return nil
}

// ForceRelease ends the grant with the token, whoever holds it, and returns a larger
// token that nobody holds: what its holder still writes is refused, by the fence in
// mode lease at once, elsewhere once the larger token was admitted. The same request
// id, which is optional, gets the same answer again until the resource is granted anew.
// It refuses with ErrLost where the token is not the latest, so also after that, and
// with fencing.ErrExhausted.
func (m *Manager) ForceRelease(ctx context.Context, tenant, resource string, token fencing.Token, requestID string) (fencing.Token, error) {
	if err := checkForce(tenant, resource, token, requestID); err != nil {
		return 0, err
	}
	if requestID == "" {
		requestID = "frc_" + rand.Text()
	}
	out, err := m.store.Force(ctx, tenant, resource, Force{Token: token, RequestID: requestID})
	if err != nil {
		return 0, err
	}
	if err := m.released(tenant, resource, out); err != nil {
		return 0, err
	}
	return out.State.Token, nil
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

// RaiseFloor has every token that is granted from now on, for any resource of any
// tenant, exceed the floor, 1 to fencing.MaxToken − 1; on other nodes FloorDelay
// later. It is for data that was lost or restored from a copy, whose counters would
// hand out tokens again. It returns the floor in force, which never falls.
func (m *Manager) RaiseFloor(ctx context.Context, to fencing.Token) (fencing.Token, error) {
	if err := keytype.CheckRange("floor", int64(to), 1, int64(fencing.MaxToken)-1); err != nil {
		return 0, err
	}
	return m.store.RaiseFloor(ctx, to)
}

func (m *Manager) clock() time.Time { return time.UnixMilli(m.now().UnixMilli()).UTC() }

func wholeMillis(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }

// grant promises no more than was asked for: where the expiry is another node's, and this
// one's clock is behind, what is left of it looks like more.
func (m *Manager) grant(resource string, out Outcome, err error, now time.Time, ttl time.Duration) (Grant, error) {
	if err != nil {
		return Grant{}, err
	}
	if err := m.refusal(out, now); err != nil {
		return Grant{}, err
	}
	s := out.State
	return Grant{Lease: s.lease(resource, now), ID: s.ID, ValidFor: min(s.ExpiresAt.Sub(now), wholeMillis(ttl))}, nil
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
	case Skewed:
		return ErrClockSkew
	case Exhausted:
		return fencing.ErrExhausted
	case Mismatch:
		return ErrMismatch
	}
	panic("lease: a store returned no verdict")
}
