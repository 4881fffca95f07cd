package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coordsvc/coordsvc/keytype"
)

// routeKeyLen is the length of a route key in bytes.
const routeKeyLen = 32

// Options of a manager.
type Options struct {
	RouteKey []byte           // 32 bytes, fixed for the life of the data: routes a user to their records
	Now      func() time.Time // time.Now where nil
}

// A Manager checks requests, makes tokens, reads the clock and asks its store.
//
// A value that is not allowed is a [*keytype.ValueError] with the field's name in
// the HTTP API. Every other error that is not named is the store's; see [Store].
type Manager struct {
	store    Store
	routeKey []byte
	now      func() time.Time
}

// New makes a manager over the store. It panics when the route key does not have
// 32 bytes: under another key than yesterday's no session is found.
func New(store Store, opts Options) *Manager {
	if len(opts.RouteKey) != routeKeyLen {
		panic(fmt.Sprintf("session: the route key has %d bytes, not %d", len(opts.RouteKey), routeKeyLen))
	}
	m := &Manager{store: store, routeKey: slices.Clone(opts.RouteKey), now: opts.Now}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// Create starts a session: ErrUserDisabled, ErrEpochMismatch, *keytype.ValueError.
func (m *Manager) Create(ctx context.Context, tenant string, req CreateRequest) (Token, Session, error) {
	user, err := m.user(tenant, req.UserID)
	if err != nil {
		return Token{}, Session{}, err
	}
	record, err := req.record(m.clock())
	if err != nil {
		return Token{}, Session{}, err
	}
	token, c := newToken(user.Tag)
	record.TokenHash = c.hash
	s, outcome, err := m.store.Create(ctx, CreateOp{User: user, ID: c.id, Record: record, ExpectedVersion: req.ExpectedVersion})
	if err != nil {
		return Token{}, Session{}, err
	}
	if err := outcome.refusal(); err != nil {
		return Token{}, Session{}, err
	}
	return token, s, nil
}

// Verify judges a token. An unusable token is a verdict, not an error; one that
// is not even a token costs no read.
func (m *Manager) Verify(ctx context.Context, tenant, token string, req VerifyRequest) (Verdict, error) {
	if err := req.check(); err != nil {
		return Verdict{}, err
	}
	c, ok := parseToken(token)
	if !ok {
		return Verdict{Reason: Unknown}, nil
	}
	return m.store.Verify(ctx, VerifyOp{Key: Key{tenant, c.tag, c.id}, TokenHash: c.hash, VerifyRequest: req, Now: m.clock()})
}

// Revoke ends the token's session. A token of no live session is no error.
func (m *Manager) Revoke(ctx context.Context, tenant, token string) error {
	c, ok := parseToken(token)
	if !ok {
		return nil
	}
	_, err := m.store.Revoke(ctx, RevokeOp{Key: Key{tenant, c.tag, c.id}, TokenHash: c.hash})
	return err
}

// RevokeHandle ends the session: ErrNotFound where there never was one in this
// tenant, or its record is cleaned up since it expired.
func (m *Manager) RevokeHandle(ctx context.Context, tenant, handle string) error {
	tag, id, ok := parseHandle(handle)
	if !ok {
		return ErrNotFound
	}
	outcome, err := m.store.Revoke(ctx, RevokeOp{Key: Key{tenant, tag, id}})
	if err != nil {
		return err
	}
	return outcome.refusal()
}

// Get reads a live session: ErrNotFound. It is no use of the session.
func (m *Manager) Get(ctx context.Context, tenant, handle string) (Session, error) {
	tag, id, ok := parseHandle(handle)
	if !ok {
		return Session{}, ErrNotFound
	}
	s, outcome, err := m.store.Get(ctx, GetOp{Key: Key{tenant, tag, id}, Now: m.clock()})
	if err != nil {
		return Session{}, err
	}
	return s, outcome.refusal()
}

// List returns the user's live sessions in order of their ids, limit (1 to
// MaxPage, 0 = MaxPage) at a time, after the cursor of the page before. Pages that
// are read while sessions come and go show each session that was there all along once.
func (m *Manager) List(ctx context.Context, tenant, user, cursor string, limit int) (Page, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Page{}, err
	}
	if cursor != "" && (len(cursor) != idWidth || !fits62(cursor, idBytes/4)) {
		return Page{}, &keytype.ValueError{Field: "cursor", Reason: "is not one that this list answered with"}
	}
	if limit == 0 {
		limit = MaxPage
	}
	if err := keytype.CheckRange("limit", int64(limit), 1, MaxPage); err != nil {
		return Page{}, err
	}
	return m.store.List(ctx, ListOp{User: u, After: cursor, Limit: limit, Now: m.clock()})
}

// LogoutAll ends all sessions of the user but that of the token to keep, if one
// is named: ErrNotActive where that one is not active; nothing changed then. It
// counts also for a user without sessions: a login under way is before or after it.
func (m *Manager) LogoutAll(ctx context.Context, tenant, user, except string) (Epochs, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Epochs{}, err
	}
	op := ChangeOp{User: u, Kind: LogoutAll}
	if except != "" {
		c, ok := parseToken(except)
		if !ok || c.tag != u.Tag {
			return Epochs{}, ErrNotActive
		}
		op.Keep = &Kept{ID: c.id, TokenHash: c.hash}
	}
	return m.change(ctx, op)
}

// BumpPermissions makes every session of the user report stale permissions.
func (m *Manager) BumpPermissions(ctx context.Context, tenant, user string) (Epochs, error) {
	return m.changeUser(ctx, tenant, user, BumpPermissions)
}

// Disable refuses every session and login of the user.
func (m *Manager) Disable(ctx context.Context, tenant, user string) (Epochs, error) {
	return m.changeUser(ctx, tenant, user, Disable)
}

// Enable allows new logins; sessions from before stay dead. It raises the session
// version each time, also where the user was not disabled.
func (m *Manager) Enable(ctx context.Context, tenant, user string) (Epochs, error) {
	return m.changeUser(ctx, tenant, user, Enable)
}

// Epochs reads the user's numbers.
func (m *Manager) Epochs(ctx context.Context, tenant, user string) (Epochs, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Epochs{}, err
	}
	return m.store.Epochs(ctx, u)
}

func (m *Manager) changeUser(ctx context.Context, tenant, user string, kind ChangeKind) (Epochs, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Epochs{}, err
	}
	return m.change(ctx, ChangeOp{User: u, Kind: kind})
}

func (m *Manager) change(ctx context.Context, op ChangeOp) (Epochs, error) {
	op.Now = m.clock()
	e, outcome, err := m.store.Change(ctx, op)
	if err != nil {
		return Epochs{}, err
	}
	if err := outcome.refusal(); err != nil {
		return Epochs{}, err
	}
	return e, nil
}

// clock reads the time to decide by, in whole milliseconds, so that what is
// stored is what is answered.
func (m *Manager) clock() time.Time { return instant(m.now().UnixMilli()) }

func (m *Manager) user(tenant, user string) (UserKey, error) {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return UserKey{}, err
	}
	if err := keytype.CheckID("user_id", user); err != nil {
		return UserKey{}, err
	}
	return UserKey{Tenant: tenant, User: user, Tag: userTag(m.routeKey, tenant, user)}, nil
}

// record is the login as it will be stored, but for what the user's record and
// the token decide.
func (req CreateRequest) record(now time.Time) (Record, error) {
	aal := req.AAL
	if aal == 0 {
		aal = 1
	}
	absolute := orDefault(req.AbsoluteTTL, DefaultTTL).Milliseconds()
	idle := orDefault(req.IdleTTL, min(DefaultIdleTTL, time.Duration(absolute)*time.Millisecond)).Milliseconds()
	for _, err := range []error{
		keytype.CheckRange("aal", int64(aal), 1, MaxAAL),
		checkMethods(req.AMR),
		checkOptionalID("device_id", req.DeviceID),
		checkText("ip", req.IP, MaxIP),
		checkText("user_agent", req.UserAgent, MaxUserAgent),
		keytype.CheckRange("absolute_ttl_ms", absolute, MinTTL.Milliseconds(), MaxTTL.Milliseconds()),
		keytype.CheckRange("idle_ttl_ms", idle, MinTTL.Milliseconds(), absolute),
	} {
		if err != nil {
			return Record{}, err
		}
	}
	at := now.UnixMilli()
	return Record{
		IssuedAt: at, Absolute: at + absolute, Idle: idle, Seen: at,
		AAL: aal, AMR: append([]string(nil), req.AMR...), AuthAt: at,
		DeviceID: req.DeviceID, IP: req.IP, UserAgent: req.UserAgent,
	}, nil
}

func (req VerifyRequest) check() error {
	if err := keytype.CheckRange("min_aal", int64(req.MinAAL), 0, MaxAAL); err != nil {
		return err
	}
	if req.MaxAuthAge != 0 {
		if err := keytype.CheckRange("max_auth_age_ms", req.MaxAuthAge.Milliseconds(), 1, MaxTTL.Milliseconds()); err != nil {
			return err
		}
	}
	return checkOptionalID("user_id", req.UserID)
}

// checkMethods refuses a method that is named twice: a factor used twice is one
// factor, and must not look like two to who reads the list.
func checkMethods(amr []string) error {
	if len(amr) > MaxMethods {
		return &keytype.ValueError{Field: "amr", Reason: fmt.Sprintf("names more than %d methods", MaxMethods)}
	}
	for i, method := range amr {
		if err := keytype.CheckID("amr", method); err != nil {
			return err
		}
		if len(method) > MaxMethod {
			return &keytype.ValueError{Field: "amr", Reason: fmt.Sprintf("has a method longer than %d bytes", MaxMethod)}
		}
		if slices.Contains(amr[:i], method) {
			return &keytype.ValueError{Field: "amr", Reason: "names a method twice"}
		}
	}
	return nil
}

func checkOptionalID(field, id string) error {
	if id == "" {
		return nil
	}
	return keytype.CheckID(field, id)
}

func checkText(field, text string, limit int) error {
	switch {
	case len(text) > limit:
		return &keytype.ValueError{Field: field, Reason: fmt.Sprintf("is longer than %d bytes", limit)}
	case !utf8.ValidString(text):
		return &keytype.ValueError{Field: field, Reason: "is not valid UTF-8"}
	case strings.ContainsFunc(text, unicode.IsControl):
		return &keytype.ValueError{Field: field, Reason: "contains a control character"}
	}
	return nil
}

func orDefault(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return d
}
