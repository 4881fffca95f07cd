// Package session decides whether a session is still good.
//
// A session belongs to one user of one tenant. What ends it is either in its own
// record (revoked, absolute and idle expiry) or in the user's (session version,
// disabled), so that logging a user out everywhere is one write to one record,
// whatever the number of sessions, and never depends on finding them.
//
// Sessions are durable. A store that does not answer is an error, never a verdict: it
// fails closed, and nobody is logged out by that. A cache before the store
// ([ReadThrough]) is behind an end by at most its Bound, 12 s by default, and what it
// loses costs reads alone.
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

	MaxSessionLimit = 100     // live sessions of a user that a login may be limited to
	MaxData         = 4 << 10 // bytes of a session's data

	// Grace is how long the token before a rotation still verifies, at its own level.
	Grace = 10 * time.Second
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
	PermissionEpoch int64 // the user's when the session was made or rotated
	TenantEpoch     int64 // the tenant's as the node knew it that made the session; see [Tenants]
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
	// MaxSessions refuses the login when the user has as many live sessions, 1 to
	// MaxSessionLimit, 0 = any number. Nobody is evicted. A session that went idle
	// at most D ago may count; one that does not is ended.
	MaxSessions int
	Data        []byte // JSON that is kept beside the session, at most MaxData bytes; nil = none
}

// A RotateRequest asks for a new token in place of the one that is sent.
type RotateRequest struct {
	// AAL is the level that the user has just proved, 1 to MaxAAL; one below the
	// session's leaves that as it is. 0 = no level was proved.
	AAL int
	// AMR are the methods that the user has just used, as in a CreateRequest; nil
	// keeps the old ones. Without AAL and AMR nothing was proved, and AuthAt stays, too.
	AMR []string
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
	Rotated     Reason = "rotated"      // the token was replaced by another, and its grace is over
	Revoked     Reason = "revoked"      // ended by itself
	Epoch       Reason = "epoch"        // the user was logged out everywhere
	Disabled    Reason = "disabled"     // the user is disabled
	Expired     Reason = "expired"      // absolute expiry; Unknown once the record is cleaned up
	IdleExpired Reason = "idle_expired" // not used for too long
	AAL         Reason = "aal"          // its assurance level is lower than demanded
	AuthAge     Reason = "auth_age"     // the user authenticated longer ago than demanded
)

// A Source says where a verdict comes from.
type Source string

// The sources.
const (
	FromStore Source = "store" // read consistently
	FromCache Source = "cache" // at most as old as the store promises
)

// A Verdict is the answer of Verify.
type Verdict struct {
	Active           bool
	Reason           Reason  // where not active
	Session          Session // where active; by a previous token with what that one stood for
	PermissionsStale bool    // where active: the user's permissions changed since the session was made or rotated
	// OldToken says that the session's previous token was used, in its grace
	// (active) or after it (Rotated): the client missed an answer, or somebody has its old token.
	OldToken bool
	Source   Source // FromStore where empty
	// Degraded says that a store did not answer: the cache, where the verdict is from the
	// durable store and exact; else the durable store, and the verdict, or the tenant's epoch, is older than it should be.
	Degraded bool
}

// Propagation says from when on a change shows in every verify.
type Propagation struct {
	Propagated  bool      // no cache answers with anything older any more
	EffectiveBy time.Time // at the latest then; from a Store, zero: from its answer on
}

// A Revocation is what came of the wish to end the session of a token.
type Revocation struct {
	Propagation
	Known bool // the token was one of the session, which has ended now or had before
}

// Changed is what a change of a user led to.
type Changed struct {
	Epochs
	Propagation
}

// A Rotation is what a rotation led to.
type Rotation struct {
	Token Token
	Session
	Propagation
}

// Data is what is kept beside a session: JSON, and a version that each write raises. Version 0 was never written.
type Data struct {
	Value   []byte
	Version int64
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
	ErrNotActive     = errors.New("session: the session is not active, or not by this token")
	ErrLimit         = errors.New("session: the user has as many sessions as are allowed")
	ErrDataVersion   = errors.New("session: the data's version is another")
)

// A Store keeps the records of users and sessions and decides about them as the
// functions of this package do: [Create], [Verify], [Rotate], [Revoke], [Change],
// [WriteData], [Judge].
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
// remove a session's record at any time after its absolute expiry, and only then,
// and those of an erased user as soon as its record says so.
// No operation but Create makes a session's record.
type Store interface {
	// Create puts the session and its data, and the user's record where there is
	// none. It refuses with RefusedDisabled, RefusedVersion or RefusedLimit, and
	// never replaces a session: an id in use is a fault. Two logins at once do not exceed the limit.
	Create(ctx context.Context, op CreateOp) (Session, Outcome, error)
	// Verify judges by one consistent state. It records the use only of an active
	// session and only when due; a use that cannot be recorded does not change the verdict.
	Verify(ctx context.Context, op VerifyOp) (Verdict, error)
	// Rotate puts the new token in place of the current one. It refuses with RefusedNotActive.
	Rotate(ctx context.Context, op RotateOp) (Session, Propagation, Outcome, error)
	// Revoke ends the session. It refuses with RefusedUnknown where it finds none;
	// a session that has ended already stays as it is.
	Revoke(ctx context.Context, op RevokeOp) (Propagation, Outcome, error)
	// Get reads a live session and refuses with RefusedUnknown.
	Get(ctx context.Context, op GetOp) (Session, Outcome, error)
	// List reads op.Limit live sessions of the user in order of their ids; only the
	// last page may be shorter. Next is the id of the last session, or empty where
	// no other lives after it.
	List(ctx context.Context, op ListOp) (Page, error)
	// Change alters the user's record, and makes it first where there is none. It
	// refuses with RefusedNotActive, without effect, where the session to keep is not
	// active. Erase removes the user's sessions and their data after that; where it
	// fails half way it is keytype.ErrOutcomeUnknown, and is to be repeated.
	Change(ctx context.Context, op ChangeOp) (Changed, Outcome, error)
	// Epochs reads the user's numbers.
	Epochs(ctx context.Context, user UserKey) (Epochs, error)
	// ReadData reads the data of a live session and refuses with RefusedUnknown.
	ReadData(ctx context.Context, op GetOp) (Data, Outcome, error)
	// WriteData replaces the data of a live session and answers with the version
	// that it has then. It refuses with RefusedUnknown or RefusedDataVersion.
	WriteData(ctx context.Context, op WriteDataOp) (version int64, outcome Outcome, err error)
	// TenantEpoch reads the tenant's epoch, 0 where it was never raised, and
	// RaiseTenantEpoch raises it by one, durably. Both are linearizable per tenant.
	// The store does not hold sessions against it by itself: see [Tenants].
	TenantEpoch(ctx context.Context, tenant string) (int64, error)
	RaiseTenantEpoch(ctx context.Context, tenant string) (int64, error)
}

// Durable is a Store that is the truth, so that a cache can be filled from it.
type Durable interface {
	Store
	// Load reads the user's record, then the session's, each strongly consistent:
	// both as one transaction left them, or the session's from a later one. Where
	// the session shows that the user's is older (its version is larger) it is read again. A record that is not there is the zero one.
	Load(ctx context.Context, key Key) (User, Record, error)
	// LoadUser reads the user's record, strongly consistent; the zero one where there is none.
	LoadUser(ctx context.Context, tag string) (User, error)
	// Touch records a use in Unix milliseconds: only of a session that is in state
	// active and whose recorded use is older. It never makes a record. What it cannot record is no error.
	Touch(ctx context.Context, key Key, seen int64) error
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
	Data            []byte // nil = none
	ExpectedVersion *int64
	MaxSessions     int // 0 = any number
}

// At is the instant of the login.
func (op CreateOp) At() time.Time { return instant(op.Record.IssuedAt) }

// A VerifyOp is a token to judge.
type VerifyOp struct {
	Key
	TokenHash []byte
	VerifyRequest
	TenantEpoch int64 // a session with a smaller one is dead
	Now         time.Time
}

// A RotateOp is a token to replace.
type RotateOp struct {
	Key
	TokenHash []byte // of the current token
	NewHash   []byte
	RotateRequest
	TenantEpoch int64 // a session with a smaller one is dead
	Now         time.Time
}

// A WriteDataOp is data to keep in place of those with the version.
type WriteDataOp struct {
	Key
	Data    []byte
	Version int64 // 0 = nothing was written yet

	TenantEpoch int64 // a session with a smaller one is dead
	Now         time.Time
}

// A RevokeOp is a session to end.
type RevokeOp struct {
	Key
	TokenHash []byte // nil where the key alone is enough
}

// A GetOp is a session to read.
type GetOp struct {
	Key
	TenantEpoch int64 // a session with a smaller one is dead
	Now         time.Time
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
	ID          string
	TokenHash   []byte
	TenantEpoch int64 // a session with a smaller one is dead
}

// A ChangeKind says what happens to a user.
type ChangeKind uint8

// The changes of a user.
const (
	LogoutAll ChangeKind = iota + 1
	BumpPermissions
	Disable
	Enable
	Erase // disables, and removes sessions and their data
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
	RefusedLimit
	RefusedDataVersion
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
	case RefusedLimit:
		return ErrLimit
	case RefusedDataVersion:
		return ErrDataVersion
	}
	return fmt.Errorf("session: the store answered with outcome %d", o)
}
