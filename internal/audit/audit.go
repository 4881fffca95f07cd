// Package audit decides what is remembered of who did what, and shows each
// tenant its own: events are appended, read, and removed after [Retention],
// never changed.
//
// An event is recorded once the change it tells of is durable. When it cannot be
// stored the change stands, and the event goes to the caller, who logs it whole:
// see [Manager.Record].
package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
)

const (
	// Retention is how long an event is kept and shown.
	Retention = 400 * 24 * time.Hour
	// MaxPage is the number of events in the longest page.
	MaxPage = 100
)

// What Record spends on a store that fails: 3 × 600 ms and the pauses between
// are less than 2 s, and a hanging first try still leaves room for two.
const (
	tries      = 3
	tryTimeout = 600 * time.Millisecond
	firstPause = 50 * time.Millisecond // the next one is twice as long
)

// ahead is how far the clock of the node that recorded an event may be ahead of
// the one that shows it.
const ahead = 24 * time.Hour

// A Store keeps events by tenant and id.
//
// Ids come from the caller. A failure wraps keytype.ErrUnavailable or
// keytype.ErrOutcomeUnknown.
type Store interface {
	// Append stores the event, on disk when it returns, until Retention after its
	// instant at the least. An event that stands there already is left as it is, so
	// that an append whose answer was lost can be repeated; another event under the
	// same tenant and id is left as well, and is an error.
	Append(ctx context.Context, e Event) error
	// Page returns the tenant's events whose ids are oldest or larger and smaller
	// than before, the largest first. There are limit of them, or fewer where
	// there are no more. It sees every Append that returned before it began. It
	// may take longer the further oldest and before are apart: keep them within
	// some Retention.
	Page(ctx context.Context, tenant string, oldest, before ID, limit int) ([]Event, error)
}

// An UnrecordedError is an event that the store did not take, or may not have
// taken. The event is as it would have been stored: log it.
type UnrecordedError struct {
	Event Event
	Err   error
}

func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("audit: %s (%s) was not recorded: %v", e.Event.ID, e.Event.Action, e.Err)
}

func (e *UnrecordedError) Unwrap() error { return e.Err }

// Options of a manager; the zero value works.
type Options struct {
	Now func() time.Time // time.Now where nil
}

// A Manager records events and shows them.
type Manager struct {
	store   Store
	sealer  *seal.Sealer
	now     func() time.Time
	ids     ids
	repeats repeats
}

// New makes a manager over the store. The sealer, whose keys all nodes share, seals cursors.
func New(store Store, sealer *seal.Sealer, opts Options) *Manager {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Manager{store: store, sealer: sealer, now: opts.Now}
}

// Record stores the event under a new id. Call it once the change is durable and
// before the caller is answered; also where the change was refused or its
// outcome is unknown, and the event says so.
//
// A store that fails is tried three times within 2 s, whatever became of the
// request: a client that hangs up does not keep its act out of the log. What is
// not stored then comes back as an [*UnrecordedError], the only error there is,
// to be logged whole and counted. It is no reason to refuse: the change has
// happened, and whoever is told otherwise would do it again or give up.
//
// Of events that change nothing, [Denied], [OldTokenUsed], refusals, and a [Revoke] of
// the same session, like ones within a minute are counted in the next one's Repeats
// and not stored.
func (m *Manager) Record(ctx context.Context, e Event) error {
	now := m.now()
	e = e.redacted()
	e.ID = m.ids.next(now)
	if err := e.check(); err != nil {
		return &UnrecordedError{e, err}
	}
	leftOut, ok := m.repeats.admit(e, now)
	if !ok {
		return nil
	}
	e.Repeats = leftOut
	if err := m.append(context.WithoutCancel(ctx), e); err != nil {
		return &UnrecordedError{e, err}
	}
	return nil
}

func (m *Manager) append(ctx context.Context, e Event) (err error) {
	for n := range tries {
		if n > 0 {
			time.Sleep(firstPause << (n - 1))
		}
		if err = m.try(ctx, e); err == nil {
			return nil
		}
	}
	return err
}

func (m *Manager) try(ctx context.Context, e Event) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return m.store.Append(ctx, e)
}

// A Page is one part of a list; Next is empty on the last, else the cursor of the next.
type Page struct {
	Events []Event
	Next   string
}

// List returns the tenant's events of the last [Retention], the newest first,
// limit (1 to MaxPage, 0 = MaxPage) at a time, after the cursor of the page
// before. Only the last page may be shorter. A walk along the cursors shows every
// event that was there when it began once, unless it reaches its end meanwhile.
// An event that took a second try, or whose node's clock is behind, may come to
// lie behind newer ones that were shown already, as far as 2 s and the clocks allow.
//
// A cursor opens for the tenant that it was given to, on every node that has the
// key; another is a *keytype.ValueError.
func (m *Manager) List(ctx context.Context, tenant, cursor string, limit int) (Page, error) {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return Page{}, err
	}
	if limit == 0 {
		limit = MaxPage
	}
	if err := keytype.CheckRange("limit", int64(limit), 1, MaxPage); err != nil {
		return Page{}, err
	}
	now := m.now()
	before := FirstID(now.Add(ahead))
	if cursor != "" {
		var err error
		if before, err = m.openCursor(tenant, cursor); err != nil {
			return Page{}, err
		}
	}
	// One more than is shown tells whether there is a next page.
	events, err := m.store.Page(ctx, tenant, FirstID(now.Add(-Retention)), before, limit+1)
	if err != nil {
		return Page{}, readFault(ctx, err)
	}
	if len(events) <= limit {
		return Page{Events: events}, nil
	}
	events = events[:limit]
	return Page{Events: events, Next: m.sealCursor(tenant, events[limit-1].ID)}, nil
}

// purpose keeps other lists' cursors apart from these.
const purpose = "audit events"

// A cursor is the id of the last event that was shown.
func (m *Manager) sealCursor(tenant string, last ID) string {
	return m.sealer.Seal(purpose, tenant, last[:])
}

func (m *Manager) openCursor(tenant, cursor string) (last ID, err error) {
	raw, err := m.sealer.Open(purpose, tenant, cursor)
	if err != nil || len(raw) != len(last) {
		return ID{}, &keytype.ValueError{Field: "cursor", Reason: "is not one that this list answered with"}
	}
	return ID(raw), nil
}

// readFault says of a read that failed that it had no effect, which a store
// cannot always tell. The asker's own end passes through.
func readFault(ctx context.Context, err error) error {
	if ctx.Err() == nil && (errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("list events: %w: %v", keytype.ErrUnavailable, err) //nolint:errorlint // what is behind it says the opposite
	}
	return fmt.Errorf("list events: %w", err)
}
