// Package quota decides whether so many units may still be used.
//
// A quota is a limit of units per window: a day, a month, for ever. Units are
// consumed at once, or reserved first and later committed or cancelled; a
// reservation that nobody ends expires, and its units return. At every instant
// available + reserved + used = limit.
//
// Quotas are durable and linearizable. While the store fails no unit is taken: it fails
// closed.
package quota

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Bounds of a request.
const (
	MaxAmount = int64(1)<<53 - 1 // of a limit or an amount
	MinTTL    = 100 * time.Millisecond
	MaxTTL    = 24 * time.Hour
)

// Retention is how long a window is kept after its end, for the reservations that
// outlive it: a reservation lasts MaxTTL at most.
const Retention = 7 * 24 * time.Hour

// An ID names a quota: what is limited, and for whom.
type ID struct{ Tenant, Name, Subject string }

// A Definition is what an operator sets.
type Definition struct {
	Limit  int64  `json:"limit"` // 1 to MaxAmount
	Window Window `json:"window"`
	Zone   string `json:"zone"` // an IANA time zone; empty means UTC
}

// A Quota is one window of a quota as it stands. Available is below 0 only after
// the limit was lowered.
type Quota struct {
	Limit, Available, Reserved, Used int64

	Window   Window
	Zone     string
	ResetsAt time.Time // when the next window begins, zero = never
}

// A ReserveRequest asks for units to be set aside.
type ReserveRequest struct {
	Amount    int64         // 1 to MaxAmount
	RequestID string        // required: the same one gets the same reservation
	TTL       time.Duration // MinTTL to MaxTTL, in whole milliseconds, fractions are dropped
}

// A Granted is a reservation as its holder sees it.
type Granted struct {
	Quota
	Reservation string        // names it when it is committed or cancelled
	ValidFor    time.Duration // at most the TTL: count it from when the request was sent
}

// Refusals. Units that are not there are an [*ExceededError], a commit of more
// than is reserved is a *keytype.ValueError.
var (
	ErrUnset         = errors.New("quota: never set")
	ErrMismatch      = errors.New("quota: the first result was another")
	ErrNoReservation = errors.New("quota: no such reservation")
	ErrExpired       = errors.New("quota: the reservation has expired")
)

// An ExceededError refuses units that are not available.
type ExceededError struct {
	Available  int64
	RetryAfter time.Duration // until the next window; 0 where that does not help: there is none, or Never
	Never      bool          // the limit itself is below the amount
}

func (e *ExceededError) Error() string {
	return fmt.Sprintf("quota: exceeded: %d units are available", e.Available)
}

// A Store keeps, for each quota, one [Setting], one [Account] per window, and the
// receipts and reservations that changed it.
//
// Set, Use and Settle are one atomic step each: they decide and store as the
// method of [State] of the same name does, against the state at that moment, and
// Get sees every step that ended before it was called. A step is never
// carried out twice, however often the store sends it. A window that nothing
// happened in, and what was never stored or is past its time, is the zero value. A
// refusal is a verdict; an error is a fault, keytype.ErrUnavailable where nothing
// happened, else keytype.ErrOutcomeUnknown.
//
// Due lists at most limit active reservations that expired at cutoff or before,
// found by an index. It may lag behind the steps. What it cannot read it skips: then
// it returns an error beside the others.
type Store interface {
	Set(ctx context.Context, id ID, d Definition, now time.Time) (Outcome, error)
	Get(ctx context.Context, id ID, now time.Time) (Outcome, error)
	Use(ctx context.Context, id ID, req Use) (Outcome, error)
	Settle(ctx context.Context, id ID, req Settle) (Outcome, error)
	Due(ctx context.Context, cutoff time.Time, limit int) ([]Due, error)
}

// A Due is a reservation that has expired.
type Due struct {
	ID          ID
	Reservation string
}

// Options of a manager; the zero value works.
type Options struct {
	Guard time.Duration    // a reservation is swept only this long after its expiry; 0 where one clock decides
	Now   func() time.Time // time.Now where nil
	// Skewed reports that this node's clock may be further off than the guard allows:
	// it sweeps nothing then. Never where nil.
	Skewed func() bool
}

// A Manager checks requests, reads the clock and asks its store. Besides the
// refusals that each method names, its errors are [*keytype.ValueError], with
// the field's name in the HTTP API, and the store's faults.
type Manager struct {
	store  Store
	guard  time.Duration
	now    func() time.Time
	skewed func() bool
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	m := &Manager{store: store, guard: opts.Guard.Truncate(time.Millisecond), now: opts.Now, skewed: opts.Skewed}
	if m.now == nil {
		m.now = time.Now
	}
	if m.skewed == nil {
		m.skewed = func() bool { return false }
	}
	return m
}

// Set makes the quota, or changes it. A new limit leaves what is reserved and used
// as it is. Another window or zone begins with nothing used, or where it stood when
// the quota last had it; reservations made before go on in the window that they were made in.
func (m *Manager) Set(ctx context.Context, id ID, d Definition) (Quota, error) {
	if d.Zone == "" {
		d.Zone = "UTC"
	}
	if err := errors.Join(id.check(), d.check()); err != nil {
		return Quota{}, err
	}
	out, err := m.store.Set(ctx, id, d, m.clock())
	return m.quota(out, err, 0, time.Time{})
}

// Get reads the current window, strongly consistent, or refuses with ErrUnset.
func (m *Manager) Get(ctx context.Context, id ID) (Quota, error) {
	if err := id.check(); err != nil {
		return Quota{}, err
	}
	out, err := m.store.Get(ctx, id, m.clock())
	return m.quota(out, err, 0, time.Time{})
}

// Consume uses units at once. It refuses with an *ExceededError or ErrUnset. The
// request id is remembered until the window ends, 24 h where it never does: again
// it gets the first answer again, or ErrMismatch where the request is another.
func (m *Manager) Consume(ctx context.Context, id ID, amount int64, requestID string) (Quota, error) {
	if err := errors.Join(id.check(), checkUse(amount, requestID)); err != nil {
		return Quota{}, err
	}
	now := m.clock()
	out, err := m.store.Use(ctx, id, Use{Amount: amount, RequestID: requestID, Now: now})
	return m.quota(out, err, amount, now)
}

// Reserve sets units aside until they are committed or cancelled, or the TTL is
// over. It refuses as Consume does, and remembers its request ids among Consume's.
func (m *Manager) Reserve(ctx context.Context, id ID, req ReserveRequest) (Granted, error) {
	if err := errors.Join(id.check(), checkUse(req.Amount, req.RequestID), checkTTL(req.TTL)); err != nil {
		return Granted{}, err
	}
	now := m.clock()
	out, err := m.store.Use(ctx, id, Use{
		Amount: req.Amount, RequestID: req.RequestID, Now: now,
		Reservation: "rsv_" + rand.Text(), TTL: req.TTL.Truncate(time.Millisecond),
	})
	q, err := m.quota(out, err, req.Amount, now)
	if err != nil {
		return Granted{}, err
	}
	return Granted{Quota: q, Reservation: out.Reservation, ValidFor: min(req.TTL.Truncate(time.Millisecond), max(0, out.Until.Sub(now)))}, nil
}

// Commit ends a reservation of which amount was used, 0 for all; the rest returns.
// Again it gets the first answer again, or ErrMismatch with another amount, for 24 h
// at least. It refuses with ErrNoReservation or ErrExpired. The answer is the window that
// the reservation was made in.
func (m *Manager) Commit(ctx context.Context, id ID, reservation string, amount int64) (Quota, error) {
	if amount != 0 {
		if err := checkAmount("amount", amount); err != nil {
			return Quota{}, err
		}
	}
	return m.settle(ctx, id, Settle{Reservation: reservation, Action: Commit, Amount: amount})
}

// Cancel ends a reservation of which nothing was used: it is the commit of no unit.
func (m *Manager) Cancel(ctx context.Context, id ID, reservation string) (Quota, error) {
	return m.settle(ctx, id, Settle{Reservation: reservation, Action: Cancel})
}

func (m *Manager) settle(ctx context.Context, id ID, req Settle) (Quota, error) {
	if err := errors.Join(id.check(), checkReservation(req.Reservation)); err != nil {
		return Quota{}, err
	}
	req.Now = m.clock()
	out, err := m.store.Settle(ctx, id, req)
	return m.quota(out, err, req.Amount, req.Now)
}

func (m *Manager) clock() time.Time { return time.UnixMilli(m.now().UnixMilli()).UTC() }

// quota is what the caller is told of an outcome.
func (m *Manager) quota(out Outcome, err error, amount int64, now time.Time) (Quota, error) {
	if err != nil {
		return Quota{}, err
	}
	if err := out.refusal(amount, now); err != nil {
		return Quota{}, err
	}
	a := out.Account
	return Quota{
		Limit: a.Limit, Available: a.Available, Reserved: a.Reserved, Used: a.Used,
		Window: a.Window, Zone: a.Zone, ResetsAt: a.Ends,
	}, nil
}
