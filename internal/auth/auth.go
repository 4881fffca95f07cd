// Package auth decides who is calling and what they may do.
package auth

import (
	"context"
	"errors"
	"time"
)

// A Scope allows one group of routes.
type Scope string

// The scopes.
const (
	SessionsCreate   Scope = "sessions:create"
	SessionsVerify   Scope = "sessions:verify"
	SessionsRevoke   Scope = "sessions:revoke"
	SessionsRead     Scope = "sessions:read"
	SessionsExplain  Scope = "sessions:explain"
	UsersRevoke      Scope = "users:revoke"
	UsersPermissions Scope = "users:permissions"
	UsersDisable     Scope = "users:disable"
	RatelimitCheck   Scope = "ratelimit:check"
	LeasesUse        Scope = "leases:use"
	LeasesRead       Scope = "leases:read"
	FencingWrite     Scope = "fencing:write"
	FencingRead      Scope = "fencing:read"
	KeysAdmin        Scope = "keys:admin"
)

// A Key is one API key, without its secret.
type Key struct {
	ID        string
	Tenant    string
	Name      string
	Scopes    []Scope
	CreatedAt time.Time
	ExpiresAt time.Time // zero = never
	RevokedAt time.Time // zero = not revoked
}

// A Secret is the text a caller presents. It leaves only through Reveal: every formatter prints a placeholder.
type Secret struct{ text string }

// Reveal returns the key's text, to be shown once.
func (s Secret) Reveal() string { return s.text }

// A NewKey asks for a key.
type NewKey struct {
	Name      string
	Scopes    []Scope
	ExpiresAt time.Time // zero = never
}

// Refusals.
var (
	ErrUnauthenticated = errors.New("auth: no such key")
	ErrScope           = errors.New("auth: the key lacks the scope")
	ErrNotFound        = errors.New("auth: no such key in this tenant")
)

// Options of a manager; the zero value works.
type Options struct {
	Now func() time.Time // time.Now where nil
}

// A Manager makes, finds and revokes keys, and remembers what it found for at most 30 s.
type Manager struct {
	store Store
	opts  Options
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager { return &Manager{store: store, opts: opts} }

// Authenticate finds the key that the text is: ErrUnauthenticated where it is unknown, expired or revoked.
func (m *Manager) Authenticate(ctx context.Context, secret string) (Key, error) {
	panic("to be written")
}

// Allows reports whether the key has the scope.
func (k Key) Allows(s Scope) bool { panic("to be written") }

// Create makes a key in the tenant. A by that is not nil limits the scopes to its own: ErrScope. *keytype.ValueError.
func (m *Manager) Create(ctx context.Context, tenant string, by *Key, req NewKey) (Secret, Key, error) {
	panic("to be written")
}

// Add registers a key whose text exists already, with every scope, unless it was ever registered before: a revoked key stays revoked.
func (m *Manager) Add(ctx context.Context, tenant, name, secret string) (Key, error) {
	panic("to be written")
}

// List returns the tenant's keys that are not revoked, by id.
func (m *Manager) List(ctx context.Context, tenant string) ([]Key, error) { panic("to be written") }

// Revoke ends the key, at once on this node: ErrNotFound.
func (m *Manager) Revoke(ctx context.Context, tenant, id string) error { panic("to be written") }

// AllScopes returns every scope, sorted.
func AllScopes() []Scope { panic("to be written") }

// Store is to be written.
type Store interface{}
