// Package session decides whether a session is still good.
package session

import (
	"context"
	"errors"
	"time"
)

// A Session is one login of a user.
type Session struct {
	Handle          string // ses_…: names the session, cannot authenticate
	UserID          string
	IssuedAt        time.Time
	ExpiresAt       time.Time // absolute, fixed at creation
	IdleExpiresAt   time.Time
	LastSeenAt      time.Time
	AAL             int
	AMR             []string
	AuthAt          time.Time
	SessionVersion  int64 // the user's when the session was made
	PermissionEpoch int64
	DeviceID        string
	IP              string
	UserAgent       string
}

// A Token authenticates its session. Its text leaves only through Reveal: every
// formatter prints a placeholder.
type Token struct{ text string }

// Reveal returns the token's text, to be handed to the client once.
func (t Token) Reveal() string { return t.text }

// A CreateRequest asks for a session of a user who has just authenticated.
type CreateRequest struct {
	UserID      string
	AAL         int      // authentication assurance level 1 to 3, 0 = 1
	AMR         []string // authentication methods
	DeviceID    string
	IP          string
	UserAgent   string
	AbsoluteTTL time.Duration // 500 ms to 1 year, 0 = 12 h
	IdleTTL     time.Duration // 500 ms to AbsoluteTTL, 0 = the smaller of 30 min and AbsoluteTTL
	// ExpectedVersion refuses the login when the user's session version is
	// another by now; nil asks for nothing.
	ExpectedVersion *int64
}

// A VerifyRequest says what the caller demands of the session.
type VerifyRequest struct {
	NoTouch    bool
	MinAAL     int           // 0 = any
	MaxAuthAge time.Duration // 0 = any
	UserID     string        // "" = any
}

// A Reason says why a session is not active. Only callers with their own scope see it.
type Reason string

// The reasons.
const (
	Unknown     Reason = "unknown"
	Expired     Reason = "expired"
	IdleExpired Reason = "idle_expired"
	Revoked     Reason = "revoked"
	Epoch       Reason = "epoch"
	Disabled    Reason = "disabled"
	AAL         Reason = "aal"
	AuthAge     Reason = "auth_age"
)

// A Verdict is the answer of Verify.
type Verdict struct {
	Active           bool
	Reason           Reason  // where not active
	Session          Session // where active
	PermissionsStale bool
}

// Epochs are the numbers of a user.
type Epochs struct {
	SessionVersion  int64
	PermissionEpoch int64
	Disabled        bool
}

// Refusals.
var (
	ErrNotFound      = errors.New("session: no such session")
	ErrUserDisabled  = errors.New("session: the user is disabled")
	ErrEpochMismatch = errors.New("session: the user's session version is another")
	ErrNotActive     = errors.New("session: the session to keep is not active")
)

// Options of a manager.
type Options struct {
	RouteKey []byte           // 32 bytes, fixed for the life of the data: routes a user to their keys
	Now      func() time.Time // time.Now where nil
}

// A Manager checks requests, makes tokens, reads the clock and asks its store.
type Manager struct {
	store Store
	opts  Options
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager { return &Manager{store: store, opts: opts} }

// Create starts a session: ErrUserDisabled, ErrEpochMismatch, *keytype.ValueError.
func (m *Manager) Create(ctx context.Context, tenant string, req CreateRequest) (Token, Session, error) {
	panic("to be written")
}

// Verify judges a token. An unusable token is a verdict, not an error.
func (m *Manager) Verify(ctx context.Context, tenant, token string, req VerifyRequest) (Verdict, error) {
	panic("to be written")
}

// Revoke ends the token's session. A token of no live session is no error.
func (m *Manager) Revoke(ctx context.Context, tenant, token string) error { panic("to be written") }

// RevokeHandle ends the session: ErrNotFound where there never was one in this tenant.
func (m *Manager) RevokeHandle(ctx context.Context, tenant, handle string) error {
	panic("to be written")
}

// Get reads a live session: ErrNotFound.
func (m *Manager) Get(ctx context.Context, tenant, handle string) (Session, error) {
	panic("to be written")
}

// A Page is one part of a list; Next is empty on the last, else the cursor of the next.
type Page struct {
	Sessions []Session
	Next     string
}

// List returns the user's live sessions in order of their ids, limit (1 to 100, 0 = 100) at a time, after the cursor of the page before.
func (m *Manager) List(ctx context.Context, tenant, user, cursor string, limit int) (Page, error) {
	panic("to be written")
}

// LogoutAll ends all sessions of the user but that of the token to keep, if one is named: ErrNotActive where that one is not active; nothing changed then.
func (m *Manager) LogoutAll(ctx context.Context, tenant, user, except string) (Epochs, error) {
	panic("to be written")
}

// Epochs reads the user's numbers.
func (m *Manager) Epochs(ctx context.Context, tenant, user string) (Epochs, error) {
	panic("to be written")
}

// BumpPermissions makes every session of the user report stale permissions.
func (m *Manager) BumpPermissions(ctx context.Context, tenant, user string) (Epochs, error) {
	panic("to be written")
}

// Disable refuses every session and login of the user.
func (m *Manager) Disable(ctx context.Context, tenant, user string) (Epochs, error) {
	panic("to be written")
}

// Enable allows new logins; sessions from before stay dead.
func (m *Manager) Enable(ctx context.Context, tenant, user string) (Epochs, error) {
	panic("to be written")
}

// Store is to be written.
type Store interface{}
