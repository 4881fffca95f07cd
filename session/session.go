// Package session decides whether a session is still good.
//
// A session belongs to one user of one tenant. What ends it is either in its own
// record (revoked, absolute and idle expiry) or in the user's (session version,
// disabled), so that logging a user out everywhere is one write to one record,
// whatever the number of sessions, and never depends on finding them.
package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds of a request. Durations count in whole milliseconds.
const (
	MinTTL     = 500 * time.Millisecond
	MaxTTL     = 365 * 24 * time.Hour
	DefaultTTL = 12 * time.Hour
	// DefaultIdleTTL holds where the absolute one is not shorter.
	DefaultIdleTTL = 30 * time.Minute

	MaxAAL       = 3
	MaxMethods   = 10  // entries of AMR
	MaxMethod    = 64  // bytes of one
	MaxIP        = 64  // bytes; kept as text for people, not parsed
	MaxUserAgent = 512 // bytes
	MaxPage      = 100 // sessions in one page of a list
)

// A Session is one login of a user. Its instants are whole milliseconds, UTC.
type Session struct {
	Handle    string // ses_…: names the session, cannot authenticate
	UserID    string
	IssuedAt  time.Time
	ExpiresAt time.Time // absolute, fixed at creation
	// IdleExpiresAt is when the session ends if nobody uses it any more, as Verify
	// enforces it, never after ExpiresAt. A store that writes down only some of the
	// uses gives the session that much longer; see [Durable].
	IdleExpiresAt   time.Time
	LastSeenAt      time.Time // the last use that was recorded
	AAL             int
	AMR             []string
	AuthAt          time.Time
	SessionVersion  int64 // the user's when the session was made, or kept by a logout-all
	PermissionEpoch int64 // the user's when the session was made
	DeviceID        string
	IP              string
	UserAgent       string
}

// A CreateRequest asks for a session of a user who has just authenticated.
type CreateRequest struct {
	UserID      string        // an id as in [keytype.CheckID]
	AAL         int           // authentication assurance level 1 to MaxAAL, 0 = 1
	AMR         []string      // authentication methods: at most MaxMethods different ids of at most MaxMethod bytes
	DeviceID    string        // "" or an id
	IP          string        // at most MaxIP bytes without control characters
	UserAgent   string        // at most MaxUserAgent bytes without control characters
	AbsoluteTTL time.Duration // MinTTL to MaxTTL, 0 = DefaultTTL
	IdleTTL     time.Duration // MinTTL to AbsoluteTTL, 0 = the smaller of DefaultIdleTTL and AbsoluteTTL
	// ExpectedVersion refuses the login when the user's session version is
	// another by now; nil asks for nothing. The version of a user without any
	// record is 1.
	ExpectedVersion *int64
}

// A VerifyRequest says what the caller demands of the session.
type VerifyRequest struct {
	NoTouch    bool          // do not count this as a use
	MinAAL     int           // 1 to MaxAAL, 0 = any
	MaxAuthAge time.Duration // 1 ms to MaxTTL since the user authenticated, 0 = any
	UserID     string        // "" = any; a session of somebody else is Unknown
}

// A Reason says why a session is not active. Only callers with their own scope see it.
type Reason string

// The reasons, in the order in which they are looked for.
//
// Unknown comes first and is all that a caller learns who does not hold the whole
// token, asks in another tenant or for another user. Then comes what ended the
// session for good, from the narrowest cause to the widest, so that whoever holds
// an ended session learns nothing about the account since; then what passing time
// ends. AAL and AuthAge are said of sessions that are otherwise good.
const (
	Unknown     Reason = "unknown"      // no such session here, or not by this token
	Revoked     Reason = "revoked"      // ended by itself
	Epoch       Reason = "epoch"        // the user was logged out everywhere
	Disabled    Reason = "disabled"     // the user is disabled
	Expired     Reason = "expired"      // absolute expiry; Unknown once the record is cleaned up
	IdleExpired Reason = "idle_expired" // not used for too long
	AAL         Reason = "aal"          // its assurance level is lower than demanded
	AuthAge     Reason = "auth_age"     // the user authenticated longer ago than demanded
)

// A Verdict is the answer of Verify.
type Verdict struct {
	Active           bool
	Reason           Reason  // where not active
	Session          Session // where active
	PermissionsStale bool    // where active: the user's permissions changed since the session was made
}

// Epochs are the numbers of a user. A user without any record has the versions 1
// and 1, which a first login then carries.
type Epochs struct {
	SessionVersion  int64
	PermissionEpoch int64
	Disabled        bool
}

// A Page is one part of a list; Next is empty on the last, else the cursor of the next.
type Page struct {
	Sessions []Session
	Next     string
}

// Refusals.
var (
	ErrNotFound      = errors.New("session: no such session")
	ErrUserDisabled  = errors.New("session: the user is disabled")
	ErrEpochMismatch = errors.New("session: the user's session version is another")
	ErrNotActive     = errors.New("session: the session to keep is not active")
)

// A Store keeps the records of users and sessions and decides about them as the
// functions of this package do: [Create], [Verify], [Revoke], [Change], [Judge].
//
// Everything from outside (instants, ids, hashes) comes with the operation, so a
// repeated operation is the same operation. A refusal is an [Outcome] or a
// [Verdict]; an error is a fault that wraps keytype.ErrUnavailable where the
// operation had no effect and keytype.ErrOutcomeUnknown where it may have
// happened, or the context's error.
//
// Each change is one transaction over the user's record and at most one session's.
// Operations on one user are linearizable: an operation that starts after another
// returned sees its effect. A change that can alter the answer of a later Verify
// raises the user record's Version in the same transaction.
//
// A record whose tenant is another than the asker's is as one that does not exist.
// Expiry is decided by comparing instants with the operation's own; a store may
// remove a session's record at any time after its absolute expiry, and only then.
// No operation but Create makes a session's record.
type Store interface {
	// Create puts the session, and the user's record where there is none. It
	// refuses with RefusedDisabled or RefusedVersion, and never replaces a session:
	// an id in use is a fault.
	Create(ctx context.Context, op CreateOp) (Session, Outcome, error)
	// Verify judges by one consistent state. It records the use only of an active
	// session and only when due; a use that cannot be recorded does not change the verdict.
	Verify(ctx context.Context, op VerifyOp) (Verdict, error)
	// Revoke ends the session. It refuses with RefusedUnknown where it finds none;
	// a session that has ended already stays as it is.
	Revoke(ctx context.Context, op RevokeOp) (Outcome, error)
	// Get reads a live session and refuses with RefusedUnknown.
	Get(ctx context.Context, op GetOp) (Session, Outcome, error)
	// List reads op.Limit live sessions of the user in order of their ids; only the
	// last page may be shorter. Next is the id of the last session, or empty where
	// no other lives after it.
	List(ctx context.Context, op ListOp) (Page, error)
	// Change alters the user's record, and makes it first where there is none. It
	// refuses with RefusedNotActive, without effect, where the session to keep is not active.
	Change(ctx context.Context, op ChangeOp) (Epochs, Outcome, error)
	// Epochs reads the user's numbers.
	Epochs(ctx context.Context, user UserKey) (Epochs, error)
}

// A UserKey names a user. Tag is where their records are; tenant and user are
// compared with what is found there.
type UserKey struct{ Tenant, User, Tag string }

// A Key names a session as its token and its handle do.
type Key struct{ Tenant, Tag, ID string }

// A CreateOp is a login to decide and to store.
type CreateOp struct {
	User            UserKey
	ID              string
	Record          Record // without what the user's record decides: State, SessionVersion, PermissionEpoch
	ExpectedVersion *int64
}

// A VerifyOp is a token to judge.
type VerifyOp struct {
	Key
	TokenHash []byte
	VerifyRequest
	Now time.Time
}

// A RevokeOp is a session to end.
type RevokeOp struct {
	Key
	TokenHash []byte // nil where the key alone is enough
}

// A GetOp is a session to read.
type GetOp struct {
	Key
	Now time.Time
}

// A ListOp is a page to read: at most Limit sessions with ids after After.
type ListOp struct {
	User  UserKey
	After string
	Limit int
	Now   time.Time
}

// A ChangeOp is a change of a user's record.
type ChangeOp struct {
	User UserKey
	Kind ChangeKind
	Keep *Kept // with LogoutAll: the session that lives on
	Now  time.Time
}

// Kept is the session that a logout-all leaves alive.
type Kept struct {
	ID        string
	TokenHash []byte
}

// A ChangeKind says what happens to a user.
type ChangeKind uint8

// The changes of a user.
const (
	LogoutAll ChangeKind = iota + 1
	BumpPermissions
	Disable
	Enable
)

// An Outcome is how a store answers: done, or why it refused.
type Outcome uint8

// The outcomes.
const (
	Done Outcome = iota + 1
	RefusedUnknown
	RefusedDisabled
	RefusedVersion
	RefusedNotActive
)

// refusal is the outcome as the manager's callers know it.
func (o Outcome) refusal() error {
	switch o {
	case Done:
		return nil
	case RefusedUnknown:
		return ErrNotFound
	case RefusedDisabled:
		return ErrUserDisabled
	case RefusedVersion:
		return ErrEpochMismatch
	case RefusedNotActive:
		return ErrNotActive
	}
	return fmt.Errorf("session: the store answered with outcome %d", o)
}
