// Package auth decides who is calling and what they may do.
//
// A caller presents the text of an API key. Only its SHA-256 is kept: a key's id
// is half of that hash, so a text finds its record with one read, and the whole
// hash is then compared.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// A Key is one API key, without its secret.
type Key struct {
	ID        string
	Tenant    string
	Name      string
	Scopes    []Scope // sorted
	CreatedAt time.Time
	ExpiresAt time.Time // zero = never
	RevokedAt time.Time // zero = not revoked
}

// Allows reports whether the key has the scope.
func (k Key) Allows(s Scope) bool { return slices.Contains(k.Scopes, s) }

// live reports whether the key counts at the instant.
func (k Key) live(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

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

// A Record is what is stored of a key. Its instants are whole milliseconds.
type Record struct {
	Key
	Hash [sha256.Size]byte // of the text
}

// A Store keeps records by id, for ever: a revoked one stays, marked.
//
// Instants and ids come from the caller, scopes sorted. A failure wraps
// keytype.ErrUnavailable or keytype.ErrOutcomeUnknown.
type Store interface {
	// Get returns the record, revoked or expired as it may be, and false where
	// there is none. It sees every Insert and Revoke that returned before it began.
	Get(ctx context.Context, id string) (Record, bool, error)
	// Insert stores the record unless its id is taken, in one step, and returns
	// the record that now stands there, which is the older one where it was taken.
	Insert(ctx context.Context, rec Record) (Record, error)
	// List returns the tenant's records that are not revoked, by id. It may lag
	// behind Insert and Revoke.
	List(ctx context.Context, tenant string) ([]Record, error)
	// Revoke marks the record as revoked at the instant, in one step, or leaves
	// it as it is where it was revoked before. It reports false, and changes
	// nothing, where the tenant has no such key.
	Revoke(ctx context.Context, tenant, id string, at time.Time) (bool, error)
}

// Options of a manager; the zero value works.
type Options struct {
	Now func() time.Time // time.Now where nil
}

// A Manager makes, finds and revokes keys, and remembers what it found for at most 30 s.
type Manager struct {
	store Store
	now   func() time.Time
	cache *cache
}

// New makes a manager over the store.
func New(store Store, opts Options) *Manager {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Manager{store: store, now: opts.Now, cache: newCache(store, opts.Now)}
}

// Authenticate finds the key that the text is: ErrUnauthenticated where it is unknown, expired or revoked.
//
// What other nodes did may show late: a revocation by at most 30 s, a new key by
// at most 5 s. What this node did shows at once. A key that was found is good
// for the same 30 s while the store fails, then the answer is keytype.ErrUnavailable.
func (m *Manager) Authenticate(ctx context.Context, secret string) (Key, error) {
	hash, ok := digestOf(secret)
	if !ok {
		return Key{}, ErrUnauthenticated
	}
	rec, found, err := m.cache.get(ctx, hash.id())
	switch {
	case err != nil:
		return Key{}, readFault(ctx, "authenticate", err)
	case !found,
		subtle.ConstantTimeCompare(rec.Hash[:], hash[:]) != 1,
		!rec.live(m.instant()):
		return Key{}, ErrUnauthenticated
	}
	return rec.key(), nil
}

// Create makes a key in the tenant. A by that is not nil limits it to by's own
// scopes and tenant: ErrScope. Whether by may create keys at all is the caller's
// question. A request that is not allowed is a *keytype.ValueError.
func (m *Manager) Create(ctx context.Context, tenant string, by *Key, req NewKey) (Secret, Key, error) {
	key, err := m.draft(tenant, req)
	if err != nil {
		return Secret{}, Key{}, err
	}
	if by != nil && !by.covers(key) {
		return Secret{}, Key{}, ErrScope
	}
	if by != nil && !by.ExpiresAt.IsZero() && (key.ExpiresAt.IsZero() || key.ExpiresAt.After(by.ExpiresAt)) {
		return Secret{}, Key{}, &keytype.ValueError{Field: "expires_at", Reason: "must not be later than that of the key that asks"}
	}
	secret := NewSecret()
	rec, err := m.insert(ctx, key, secret.Reveal())
	if err != nil {
		return Secret{}, Key{}, fmt.Errorf("create key: %w", err)
	}
	return secret, rec.key(), nil
}

// Add registers a key whose text exists already, with every scope of this and
// later versions, unless it was ever registered before. It returns the key as it
// stands: one that was revoked stays revoked, and says so in RevokedAt.
//
// The text is csk_ and 20 to 200 characters of A–Z a–z 0–9 _ and -, else it is a
// *keytype.ValueError. It must be random: the id, which is no secret, is a hash of it.
func (m *Manager) Add(ctx context.Context, tenant, name, secret string) (Key, error) {
	if _, ok := digestOf(secret); !ok {
		return Key{}, &keytype.ValueError{Field: "key", Reason: "must be csk_ and 20 to 200 characters of A-Z a-z 0-9 _ -"}
	}
	if err := checkNames(tenant, name); err != nil {
		return Key{}, err
	}
	key := Key{Tenant: tenant, Name: name, Scopes: []Scope{everyScope}, CreatedAt: m.instant()}
	rec, err := m.insert(ctx, key, secret)
	if err != nil {
		return Key{}, fmt.Errorf("add key: %w", err)
	}
	return rec.key(), nil
}

// List returns the tenant's keys that are not revoked, by id, expired ones
// included. With DynamoDB a change may show late, by a second or so.
func (m *Manager) List(ctx context.Context, tenant string) ([]Key, error) {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return nil, err
	}
	recs, err := m.store.List(ctx, tenant)
	if err != nil {
		return nil, readFault(ctx, "list keys", err)
	}
	keys := make([]Key, len(recs))
	for i, rec := range recs {
		keys[i] = rec.key()
	}
	return keys, nil
}

// Revoke ends the key, at once on this node: ErrNotFound where the tenant never
// had it. A key that is revoked already is no error, so that a lost answer can be
// asked for again. A key may be revoked by any key of its tenant that may
// administer keys, by itself too.
func (m *Manager) Revoke(ctx context.Context, tenant, id string) error {
	if err := keytype.CheckID("id", id); err != nil {
		return err
	}
	found, err := m.store.Revoke(ctx, tenant, id, m.instant())
	m.cache.forget(id) // also after a failure: it may have happened
	switch {
	case err != nil:
		return fmt.Errorf("revoke key: %w", err)
	case !found:
		return ErrNotFound
	}
	return nil
}

// draft checks the request and returns the key it asks for, without an id.
func (m *Manager) draft(tenant string, req NewKey) (Key, error) {
	if err := checkNames(tenant, req.Name); err != nil {
		return Key{}, err
	}
	scopes, err := checkScopes(req.Scopes)
	if err != nil {
		return Key{}, err
	}
	now := m.instant()
	expires := toMilli(req.ExpiresAt)
	if !expires.IsZero() && !expires.After(now) {
		return Key{}, &keytype.ValueError{Field: "expires_at", Reason: "must be in the future"}
	}
	return Key{Tenant: tenant, Name: req.Name, Scopes: scopes, CreatedAt: now, ExpiresAt: expires}, nil
}

// insert stores the key under the text's hash and returns the record that stands there.
func (m *Manager) insert(ctx context.Context, key Key, text string) (Record, error) {
	hash, _ := digestOf(text)
	key.ID = hash.id()
	rec, err := m.store.Insert(ctx, Record{Key: key, Hash: hash})
	m.cache.forget(key.ID) // somebody may have asked for it before it was there
	if err != nil {
		return Record{}, err
	}
	if rec.Hash != hash {
		return Record{}, fmt.Errorf("auth: another text has the id %s", key.ID)
	}
	return rec, nil
}

// instant is now as it is stored and decided: in whole milliseconds.
func (m *Manager) instant() time.Time { return toMilli(m.now()) }

// covers reports whether the key may make the other one.
func (k Key) covers(other Key) bool {
	return k.Tenant == other.Tenant && !slices.ContainsFunc(other.Scopes, func(s Scope) bool { return !k.Allows(s) })
}

// key returns the record as callers see it; they may keep and change it.
func (r Record) key() Key {
	key := r.Key
	key.Scopes = granted(key.Scopes)
	return key
}

func checkNames(tenant, name string) error {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return err
	}
	return keytype.CheckID("name", name)
}

// readFault says of a read that failed that it had no effect, which a store
// cannot always tell. The asker's own end passes through.
func readFault(ctx context.Context, op string, err error) error {
	if ctx.Err() == nil && (errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("%s: %w: %v", op, keytype.ErrUnavailable, err) //nolint:errorlint // what is behind it says the opposite
	}
	return fmt.Errorf("%s: %w", op, err)
}

func toMilli(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(t.UnixMilli()).UTC()
}
