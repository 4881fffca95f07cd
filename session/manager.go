package session

import (
	"cmp"
	"context"
	"encoding/json"
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
	// Cursors seals the cursors of lists, so that nobody makes one up; nil shows them
	// as they are. A cursor that Open refuses, or of another tenant, is not allowed.
	Cursors interface {
		Seal(purpose, tenant string, plaintext []byte) string
		Open(purpose, tenant, sealed string) ([]byte, error)
	}
	Tenants *Tenants // where nil nobody can log out a whole tenant, and no session is held against it
}

// errStaleEpoch is met where the tenant's epoch cannot be read and the session can.
var errStaleEpoch = fmt.Errorf("session: the tenant's epoch is too old: %w", keytype.ErrUnavailable)

// A Manager checks requests, makes tokens, reads the clock and asks its store.
//
// A value that is not allowed is a [*keytype.ValueError] with the field's name in
// the HTTP API. Every other error that is not named is the store's; see [Store].
type Manager struct {
	store Store
	opts  Options // filled in
}

// New makes a manager over the store. It panics when the route key does not have
// 32 bytes: under another key than yesterday's no session is found.
func New(store Store, opts Options) *Manager {
	if len(opts.RouteKey) != routeKeyLen {
		panic(fmt.Sprintf("session: the route key has %d bytes, not %d", len(opts.RouteKey), routeKeyLen))
	}
	opts.RouteKey = slices.Clone(opts.RouteKey)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Manager{store: store, opts: opts}
}

// Create starts a session: ErrUserDisabled, ErrEpochMismatch, ErrLimit, *keytype.ValueError.
func (m *Manager) Create(ctx context.Context, tenant string, req CreateRequest) (Token, Session, error) {
	user, err := m.user(tenant, req.UserID)
	if err != nil {
		return Token{}, Session{}, err
	}
	record, err := req.record(m.clock())
	if err != nil {
		return Token{}, Session{}, err
	}
	if record.TenantEpoch, err = m.opts.Tenants.current(ctx, tenant); err != nil {
		return Token{}, Session{}, err
	}
	token, c := newToken(user.Tag)
	record.TokenHash = c.hash
	s, outcome, err := m.store.Create(ctx, CreateOp{
		User: user, ID: c.id, Record: record, Data: req.Data, ExpectedVersion: req.ExpectedVersion, MaxSessions: req.MaxSessions,
	})
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
	epoch, stale, err := m.opts.Tenants.orStale(ctx, tenant)
	if err != nil {
		return Verdict{}, err
	}
	v, err := m.store.Verify(ctx, VerifyOp{Key: Key{tenant, c.tag, c.id}, TokenHash: c.hash, VerifyRequest: req, TenantEpoch: epoch, Now: m.clock()})
	if err != nil {
		return Verdict{}, err
	}
	v.Source = cmp.Or(v.Source, FromStore)
	if stale && v.Source != FromCache { // an outage of this one item
		return Verdict{}, errStaleEpoch
	}
	v.Degraded = v.Degraded || stale
	return v, nil
}

// Rotate replaces the token: the session stays what it is, with the same end, and
// the old token verifies for [Grace] at its old level. ErrNotActive where the
// token is not the current one of a live session, *keytype.ValueError.
func (m *Manager) Rotate(ctx context.Context, tenant, token string, req RotateRequest) (Rotation, error) {
	for _, err := range []error{keytype.CheckRange("aal", int64(req.AAL), 0, MaxAAL), checkMethods(req.AMR)} {
		if err != nil {
			return Rotation{}, err
		}
	}
	c, ok := parseToken(token)
	if !ok {
		return Rotation{}, ErrNotActive
	}
	epoch, err := m.opts.Tenants.epoch(ctx, tenant)
	if err != nil {
		return Rotation{}, err
	}
	next, made := nextToken(c)
	op := RotateOp{Key: Key{tenant, c.tag, c.id}, TokenHash: c.hash, NewHash: made.hash, RotateRequest: req, TenantEpoch: epoch, Now: m.clock()}
	s, p, outcome, err := m.store.Rotate(ctx, op)
	if err != nil {
		return Rotation{}, err
	}
	if err := outcome.refusal(); err != nil {
		return Rotation{}, err
	}
	return Rotation{next, s, m.dated(p)}, nil
}

// Revoke ends the session of the token, or of the one that a rotation put in its
// place. A token of no live session is no error, nor is one from before that rotation;
// [Revocation] tells.
func (m *Manager) Revoke(ctx context.Context, tenant, token string) (Revocation, error) {
	c, ok := parseToken(token)
	if !ok {
		return Revocation{Propagation: m.dated(atOnce)}, nil
	}
	p, outcome, err := m.revoke(ctx, Key{tenant, c.tag, c.id}, c.hash)
	return Revocation{Propagation: p, Known: outcome == Done}, err
}

// RevokeHandle ends the session: ErrNotFound where there never was one in this
// tenant, or its record is cleaned up since it expired.
func (m *Manager) RevokeHandle(ctx context.Context, tenant, handle string) (Propagation, error) {
	tag, id, ok := parseHandle(handle)
	if !ok {
		return Propagation{}, ErrNotFound
	}
	p, outcome, err := m.revoke(ctx, Key{tenant, tag, id}, nil)
	if err != nil {
		return Propagation{}, err
	}
	return p, outcome.refusal()
}

func (m *Manager) revoke(ctx context.Context, key Key, tokenHash []byte) (Propagation, Outcome, error) {
	p, outcome, err := m.store.Revoke(ctx, RevokeOp{Key: key, TokenHash: tokenHash})
	if err != nil {
		return Propagation{}, 0, err
	}
	return m.dated(p), outcome, nil
}

// dated fills in the instant of a change that shows from now on.
func (m *Manager) dated(p Propagation) Propagation {
	if p.EffectiveBy.IsZero() {
		p.EffectiveBy = m.clock()
	}
	return p
}

// Get reads a live session: ErrNotFound. It is no use of the session.
func (m *Manager) Get(ctx context.Context, tenant, handle string) (Session, error) {
	tag, id, ok := parseHandle(handle)
	if !ok {
		return Session{}, ErrNotFound
	}
	epoch, err := m.opts.Tenants.epoch(ctx, tenant)
	if err != nil {
		return Session{}, err
	}
	s, outcome, err := m.store.Get(ctx, GetOp{Key: Key{tenant, tag, id}, TenantEpoch: epoch, Now: m.clock()})
	if err != nil {
		return Session{}, err
	}
	return s, outcome.refusal()
}

// Data reads what is kept beside a live session: ErrNotFound.
func (m *Manager) Data(ctx context.Context, tenant, handle string) (Data, error) {
	tag, id, ok := parseHandle(handle)
	if !ok {
		return Data{}, ErrNotFound
	}
	epoch, err := m.opts.Tenants.epoch(ctx, tenant)
	if err != nil {
		return Data{}, err
	}
	d, outcome, err := m.store.ReadData(ctx, GetOp{Key: Key{tenant, tag, id}, TenantEpoch: epoch, Now: m.clock()})
	if err != nil {
		return Data{}, err
	}
	return d, outcome.refusal()
}

// SetData replaces the data of a live session, at most MaxData bytes of JSON, where
// they have the version (0 = nothing was written yet), and returns the version they
// have then: ErrNotFound, ErrDataVersion, *keytype.ValueError.
func (m *Manager) SetData(ctx context.Context, tenant, handle string, version int64, data []byte) (int64, error) {
	if err := checkData(data); err != nil {
		return 0, err
	}
	tag, id, ok := parseHandle(handle)
	if !ok {
		return 0, ErrNotFound
	}
	epoch, err := m.opts.Tenants.epoch(ctx, tenant)
	if err != nil {
		return 0, err
	}
	next, outcome, err := m.store.WriteData(ctx, WriteDataOp{
		Key: Key{tenant, tag, id}, Data: data, Version: version, TenantEpoch: epoch, Now: m.clock(),
	})
	if err != nil {
		return 0, err
	}
	return next, outcome.refusal()
}

// List returns the user's live sessions in order of their ids, limit (1 to
// MaxPage, 0 = MaxPage) at a time, after the cursor of the page before. Pages that
// are read while sessions come and go show each session that was there all along once.
// A page may be shorter, and not the last, after a whole tenant was logged out.
func (m *Manager) List(ctx context.Context, tenant, user, cursor string, limit int) (Page, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Page{}, err
	}
	after, ok := m.openCursor(u, cursor)
	if !ok {
		return Page{}, &keytype.ValueError{Field: "cursor", Reason: "is not one that this list answered with"}
	}
	if limit == 0 {
		limit = MaxPage
	}
	if err := keytype.CheckRange("limit", int64(limit), 1, MaxPage); err != nil {
		return Page{}, err
	}
	epoch, err := m.opts.Tenants.epoch(ctx, tenant)
	if err != nil {
		return Page{}, err
	}
	page, err := m.store.List(ctx, ListOp{User: u, After: after, Limit: limit, Now: m.clock()})
	page.Sessions = slices.DeleteFunc(page.Sessions, func(s Session) bool { return s.TenantEpoch < epoch })
	page.Next = m.sealCursor(u, page.Next)
	return page, err
}

// listPurpose keeps other lists' cursors apart from these.
const listPurpose = "sessions of a user"

// A cursor is the id of the last session that was shown, sealed with its user's tag.
func (m *Manager) sealCursor(u UserKey, id string) string {
	if id == "" || m.opts.Cursors == nil {
		return id
	}
	return m.opts.Cursors.Seal(listPurpose, u.Tenant, []byte(u.Tag+id))
}

func (m *Manager) openCursor(u UserKey, cursor string) (id string, ok bool) {
	if cursor != "" && m.opts.Cursors != nil {
		raw, err := m.opts.Cursors.Open(listPurpose, u.Tenant, cursor)
		if id, ok = strings.CutPrefix(string(raw), u.Tag); err != nil || !ok {
			return "", false
		}
		cursor = id
	}
	return cursor, cursor == "" || len(cursor) == idWidth && fits62(cursor, idBytes/4)
}

// LogoutAll ends all sessions of the user but that of the token to keep, if one
// is named: ErrNotActive where that one is not active; nothing changed then. It
// counts also for a user without sessions: a login under way is before or after it.
func (m *Manager) LogoutAll(ctx context.Context, tenant, user, except string) (Changed, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Changed{}, err
	}
	op := ChangeOp{User: u, Kind: LogoutAll}
	if except != "" {
		c, ok := parseToken(except)
		if !ok || c.tag != u.Tag {
			return Changed{}, ErrNotActive
		}
		epoch, err := m.opts.Tenants.epoch(ctx, tenant)
		if err != nil {
			return Changed{}, err
		}
		op.Keep = &Kept{ID: c.id, TokenHash: c.hash, TenantEpoch: epoch}
	}
	return m.change(ctx, op)
}

// BumpPermissions makes every session of the user report stale permissions.
func (m *Manager) BumpPermissions(ctx context.Context, tenant, user string) (Changed, error) {
	return m.changeUser(ctx, tenant, user, BumpPermissions)
}

// Disable refuses every session and login of the user.
func (m *Manager) Disable(ctx context.Context, tenant, user string) (Changed, error) {
	return m.changeUser(ctx, tenant, user, Disable)
}

// Enable allows new logins; sessions from before stay dead. It raises the session
// version each time, also where the user was not disabled.
func (m *Manager) Enable(ctx context.Context, tenant, user string) (Changed, error) {
	return m.changeUser(ctx, tenant, user, Enable)
}

// Erase disables the user and removes their sessions and what is kept beside them. The
// user's record stays until the longest session could end, so that nothing comes back.
// Where it fails half way the user is disabled: repeat it.
func (m *Manager) Erase(ctx context.Context, tenant, user string) (Changed, error) {
	return m.changeUser(ctx, tenant, user, Erase)
}

// Epochs reads the user's numbers.
func (m *Manager) Epochs(ctx context.Context, tenant, user string) (Epochs, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Epochs{}, err
	}
	return m.store.Epochs(ctx, u)
}

func (m *Manager) changeUser(ctx context.Context, tenant, user string, kind ChangeKind) (Changed, error) {
	u, err := m.user(tenant, user)
	if err != nil {
		return Changed{}, err
	}
	return m.change(ctx, ChangeOp{User: u, Kind: kind})
}

func (m *Manager) change(ctx context.Context, op ChangeOp) (Changed, error) {
	op.Now = m.clock()
	c, outcome, err := m.store.Change(ctx, op)
	if err != nil {
		return Changed{}, err
	}
	if err := outcome.refusal(); err != nil {
		return Changed{}, err
	}
	c.Propagation = m.dated(c.Propagation)
	return c, nil
}

// clock reads the time to decide by, in whole milliseconds, so that what is
// stored is what is answered.
func (m *Manager) clock() time.Time { return instant(m.opts.Now().UnixMilli()) }

func (m *Manager) user(tenant, user string) (UserKey, error) {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return UserKey{}, err
	}
	if err := keytype.CheckID("user_id", user); err != nil {
		return UserKey{}, err
	}
	return UserKey{Tenant: tenant, User: user, Tag: userTag(m.opts.RouteKey, tenant, user)}, nil
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
		keytype.CheckRange("max_sessions", int64(req.MaxSessions), 0, MaxSessionLimit),
		checkOptionalData(req.Data),
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

func checkOptionalData(data []byte) error {
	if data == nil {
		return nil
	}
	return checkData(data)
}

func checkData(data []byte) error {
	switch {
	case len(data) > MaxData:
		return &keytype.ValueError{Field: "data", Reason: fmt.Sprintf("is longer than %d bytes", MaxData)}
	case !json.Valid(data):
		return &keytype.ValueError{Field: "data", Reason: "is not JSON"}
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
