package sessiontest

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/histories"
	"github.com/coordsvc/coordsvc/session"
)

// History drives the stores with the same random histories. All must answer the
// same, and the answers must keep the invariants of sessions: nothing that ended is
// active again, an active session is within its lives, a live one is never refused.
func History(t *testing.T, opens ...Open) {
	stores := make([]session.Store, len(opens))
	for i, open := range opens {
		stores[i] = open(t)
	}
	counts := map[string]int{}
	wanted := []string{"create", "verify active", "verify unknown", "verify revoked", "verify epoch", "verify disabled", "verify expired", "verify idle_expired", "verify aal", "verify auth_age", "verify rotated", "verify by the previous token", "revoke", "keep", "list", "rotate", "limit", "create within a limit", "read data", "write data"}
	histories.Check(t, counts, wanted, func(rt *rapid.T) {
		h := &history{T: rt, test: t, stores: stores, now: time.Now().Truncate(time.Millisecond).UTC(), users: map[session.UserKey]*userFacts{}, counts: counts}
		tenants := []string{newTenant(), newTenant()}
		for _, tenant := range tenants {
			for _, user := range []string{"ann", "bob"} {
				u := userKey(tenant, user)
				h.keys = append(h.keys, u)
				h.users[u] = &userFacts{Epochs: session.Epochs{SessionVersion: 1, PermissionEpoch: 1}}
			}
		}
		steps := []func(*rapid.T){
			h.create, h.create, h.verify, h.verify, h.verify, h.verify, h.verify, h.revoke, h.change, h.keep,
			h.get, h.list, h.epochs, h.pass, h.pass, h.rotate, h.rotate, h.readData, h.writeData,
		}
		for range 60 {
			rapid.SampledFrom(steps).Draw(rt, "step")(rt)
		}
	})
}

// The stores see tags, ids and hashes only as bytes of the right length.
func text(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s)))[:22] }

func id(s string) string { return text("id " + s) }

func hash(s string) []byte {
	h := sha256.Sum256([]byte("token " + s))
	return h[:]
}

func userKey(tenant, user string) session.UserKey {
	return session.UserKey{Tenant: tenant, User: user, Tag: text(fmt.Sprintf("%d:%s%s", len(tenant), tenant, user))}
}

func record(now time.Time, token string) session.Record {
	at := now.UnixMilli()
	return session.Record{
		TokenHash: hash(token), IssuedAt: at, Absolute: at + absolute.Milliseconds(), Idle: idleTime.Milliseconds(),
		Seen: at, AAL: 2, AMR: []string{"pwd"}, AuthAt: at,
	}
}

// A history knows what the answers so far amount to, without any of the stores' rules.
type history struct {
	*rapid.T
	test     *testing.T
	stores   []session.Store
	now      time.Time
	keys     []session.UserKey
	users    map[session.UserKey]*userFacts
	sessions []*sessionFacts
	counts   map[string]int
	tokens   int // how many were made, or data written
}

type userFacts struct{ session.Epochs }

type sessionFacts struct {
	user     session.UserKey
	id       string
	level          // of the token
	previous level // of the one before
	grace    time.Time
	ended    bool // for good
	doubted  bool // it may have been ended as idle
	made     time.Time
	lastUse  time.Time // the latest that was answered with active
	seenLast time.Time
	session.Data
}

// A level is a token and what it stands for.
type level struct {
	hash   []byte
	aal    int
	authAt time.Time
	pe     int64
}

func (s *sessionFacts) key() session.Key {
	return session.Key{Tenant: s.user.Tenant, Tag: s.user.Tag, ID: s.id}
}

// ask puts the same question to all stores and demands one answer.
func ask[T any](h *history, what string, question func(session.Store) (T, error)) T {
	var first T
	for i, store := range h.stores {
		got, err := question(store)
		if err != nil {
			h.Fatalf("%s: store %d: %v", what, i, err)
		}
		if i == 0 {
			first = got
		} else if !reflect.DeepEqual(got, first) {
			h.Fatalf("%s: store %d answers\n%+v, store 0\n%+v", what, i, got, first)
		}
	}
	return first
}

type answer[T any] struct {
	value   T
	outcome session.Outcome
}

func (h *history) user(t *rapid.T) session.UserKey { return rapid.SampledFrom(h.keys).Draw(t, "user") }

// any picks one of the latest sessions, nil before the first was made.
func (h *history) any(t *rapid.T) *sessionFacts {
	if len(h.sessions) == 0 {
		return nil
	}
	back := rapid.IntRange(0, min(6, len(h.sessions)-1)).Draw(t, "session")
	return h.sessions[len(h.sessions)-1-back]
}

func (h *history) endAll(u session.UserKey, kept *sessionFacts) {
	for _, s := range h.sessions {
		s.ended = s.ended || s.user == u && s != kept
	}
}

// live says whether the session must be active, must not be, or may be either
// because the store records only some of the uses.
func (h *history) live(s *sessionFacts) (must, may bool) {
	if s.ended || h.users[s.user].Disabled || !h.now.Before(s.made.Add(absolute)) {
		return false, false
	}
	return !s.doubted && h.now.Before(s.lastUse.Add(idleTime)), h.now.Before(s.lastUse.Add(idleTime + slack))
}

func (h *history) check(what string, s *sessionFacts, active bool) {
	if must, may := h.live(s); active && !may || !active && must {
		h.Fatalf("%s: active %v, must be %v, may be %v: %+v", what, active, must, may, s)
	}
}

func (h *history) pass(t *rapid.T) {
	ms := rapid.OneOf(rapid.Int64Range(-3_000, 3_000), rapid.Int64Range(0, 13_000), rapid.Int64Range(55_000, 65_000)).Draw(t, "ms")
	h.now = h.now.Add(time.Duration(ms) * time.Millisecond)
}

func (h *history) create(t *rapid.T) {
	u := h.user(t)
	facts := h.users[u]
	h.tokens++
	name := fmt.Sprint(u, h.tokens)
	op := session.CreateOp{User: u, ID: id(name), Record: record(h.now, name)}
	if rapid.Bool().Draw(t, "expects") {
		expected := facts.SessionVersion - rapid.Int64Range(0, 1).Draw(t, "behind")
		op.ExpectedVersion = &expected
	}
	op.MaxSessions = rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "limit")
	if rapid.Bool().Draw(t, "with data") {
		op.Data = []byte(`1`)
	}
	got := ask(h, "create", func(s session.Store) (answer[session.Session], error) {
		made, outcome, err := s.Create(h.test.Context(), op)
		return answer[session.Session]{made, outcome}, err
	})
	want := session.Done
	switch {
	case facts.Disabled:
		want = session.RefusedDisabled
	case op.ExpectedVersion != nil && *op.ExpectedVersion != facts.SessionVersion:
		want = session.RefusedVersion
	}
	if want == session.Done && op.MaxSessions > 0 {
		want = h.limited(u, op.MaxSessions, got.outcome)
	}
	if got.outcome != want {
		h.Fatalf("create: outcome %d, want %d", got.outcome, want)
	}
	if want != session.Done {
		return
	}
	if got.value.SessionVersion != facts.SessionVersion || got.value.PermissionEpoch != facts.PermissionEpoch {
		h.Fatalf("create: %+v for %+v", got.value, facts)
	}
	h.counts["create"]++
	made := &sessionFacts{
		user: u, id: op.ID, level: level{op.Record.TokenHash, 2, h.now, facts.PermissionEpoch}, made: h.now, lastUse: h.now, seenLast: h.now,
	}
	if op.Data != nil {
		made.Data = session.Data{Value: op.Data, Version: 1}
	}
	h.sessions = append(h.sessions, made)
}

// limited says how a login with a limit must be answered; got counts where the
// store may know fewer uses than were made.
func (h *history) limited(u session.UserKey, limit int, got session.Outcome) session.Outcome {
	must, may := 0, 0
	for _, s := range h.sessions {
		if s.user != u {
			continue
		}
		sure, possible := h.live(s)
		if sure {
			must++
		}
		if possible {
			may++
		}
		s.doubted = s.doubted || got == session.Done && !sure
	}
	switch {
	case must >= limit:
		h.counts["limit"]++
		return session.RefusedLimit
	case may < limit:
		h.counts["create within a limit"]++
		return session.Done
	}
	return got
}

func (h *history) verify(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	op := session.VerifyOp{Key: s.key(), TokenHash: h.hash(t, s), Now: h.now}
	as, wrong := s.level, false
	previous := s.previous.hash != nil && reflect.DeepEqual(op.TokenHash, s.previous.hash)
	switch {
	case previous:
		as = s.previous
	case !reflect.DeepEqual(op.TokenHash, s.hash):
		wrong = true
	}
	op.NoTouch = rapid.Bool().Draw(t, "no touch")
	op.MinAAL = rapid.SampledFrom([]int{0, 0, 0, 2, 3}).Draw(t, "aal")
	op.MaxAuthAge = rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "age")
	switch rapid.IntRange(0, 9).Draw(t, "place") {
	case 7:
		op.UserID = s.user.User
	case 8:
		op.UserID, wrong = "carl", true
	case 9:
		op.Tenant, wrong = h.otherTenant(s), true
	}
	v := ask(h, "verify", func(store session.Store) (session.Verdict, error) { return store.Verify(h.test.Context(), op) })
	if v.Active {
		h.counts["verify active"]++
	} else {
		h.counts["verify "+string(v.Reason)]++
	}
	if wrong || previous && !h.now.Before(s.grace) {
		h.wrongToken(v, wrong)
		return
	}
	if v.OldToken != previous {
		h.Fatalf("verify: old token %v, want %v", v.OldToken, previous)
	}
	demanded := op.MinAAL > as.aal || op.MaxAuthAge > 0 && h.now.Sub(as.authAt) > op.MaxAuthAge
	if demanded && v.Active {
		h.Fatalf("verify: active against the demand %+v", op.VerifyRequest)
	}
	h.check("verify", s, v.Active || v.Reason == session.AAL || v.Reason == session.AuthAge)
	if !v.Active {
		return
	}
	if previous {
		h.counts["verify by the previous token"]++
	}
	if !op.NoTouch && h.now.After(s.lastUse) {
		s.lastUse = h.now
	}
	seen := v.Session.LastSeenAt
	if !v.Session.ExpiresAt.Equal(s.made.Add(absolute)) || seen.Before(s.seenLast) || seen.After(s.lastUse) || v.Session.AAL != as.aal {
		h.Fatalf("verify: %+v of %+v", v.Session, s)
	}
	s.seenLast = seen
	if stale := as.pe < h.users[s.user].PermissionEpoch; v.PermissionsStale != stale {
		h.Fatalf("permissions stale %v, want %v", v.PermissionsStale, stale)
	}
}

// wrongToken checks the verdict for who has not the token, or had it once.
func (h *history) wrongToken(v session.Verdict, never bool) {
	want := session.Rotated
	if never {
		want = session.Unknown
	}
	if v.Reason != want || v.OldToken == never {
		h.Fatalf("verify by who has not the token: %+v, want %q", v, want)
	}
}

// hash is mostly the session's own.
func (h *history) hash(t *rapid.T, s *sessionFacts) []byte {
	return rapid.SampledFrom([][]byte{s.hash, s.hash, s.hash, s.hash, s.previous.hash, s.previous.hash, hash("forged"), nil, {}}).Draw(t, "hash")
}

func (h *history) otherTenant(s *sessionFacts) string {
	for _, u := range h.keys {
		if u.Tenant != s.user.Tenant {
			return u.Tenant
		}
	}
	return ""
}

func (h *history) revoke(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	op := session.RevokeOp{Key: s.key(), TokenHash: h.hash(t, s)}
	if rapid.IntRange(0, 5).Draw(t, "place") == 5 {
		op.Tenant = h.otherTenant(s)
	}
	want := session.Done
	known := op.TokenHash == nil || reflect.DeepEqual(op.TokenHash, s.hash) || reflect.DeepEqual(op.TokenHash, s.previous.hash)
	if op.Tenant != s.user.Tenant || !known {
		want = session.RefusedUnknown
	}
	if got := ask(h, "revoke", func(store session.Store) (session.Outcome, error) {
		_, outcome, err := store.Revoke(h.test.Context(), op)
		return outcome, err
	}); got != want {
		h.Fatalf("revoke: outcome %d, want %d", got, want)
	}
	h.counts["revoke"]++
	s.ended = s.ended || want == session.Done
}

func (h *history) changeUser(op session.ChangeOp) session.Outcome {
	got := ask(h, "change", func(store session.Store) (answer[session.Epochs], error) {
		c, outcome, err := store.Change(h.test.Context(), op)
		return answer[session.Epochs]{c.Epochs, outcome}, err
	})
	if facts := h.users[op.User]; got.outcome == session.Done && got.value != facts.Epochs {
		h.Fatalf("change %d: %+v, want %+v", op.Kind, got.value, facts.Epochs)
	}
	return got.outcome
}

func (h *history) change(t *rapid.T) {
	op := session.ChangeOp{User: h.user(t), Now: h.now}
	op.Kind = rapid.SampledFrom([]session.ChangeKind{
		session.BumpPermissions, session.BumpPermissions, session.LogoutAll, session.Disable, session.Enable, session.Enable, session.Erase,
	}).Draw(t, "kind")
	facts := h.users[op.User]
	switch op.Kind {
	case session.LogoutAll:
		facts.SessionVersion++
	case session.BumpPermissions:
		facts.PermissionEpoch++
	case session.Disable:
		facts.Disabled = true
	case session.Enable:
		facts.Disabled = false
		facts.SessionVersion++
	case session.Erase:
		facts.Disabled = true
		facts.SessionVersion++
		h.sessions = slices.DeleteFunc(h.sessions, func(s *sessionFacts) bool { return s.user == op.User })
	}
	if op.Kind != session.BumpPermissions {
		h.endAll(op.User, nil)
	}
	if outcome := h.changeUser(op); outcome != session.Done {
		h.Fatalf("change %d: outcome %d", op.Kind, outcome)
	}
}

// keep is a logout-all that may be refused, so what it did is known from its answer.
func (h *history) keep(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	op := session.ChangeOp{User: s.user, Kind: session.LogoutAll, Keep: &session.Kept{ID: s.id, TokenHash: h.hash(t, s)}, Now: h.now}
	facts := h.users[op.User]
	facts.SessionVersion++
	done := h.changeUser(op) == session.Done
	if wrong := !reflect.DeepEqual(op.Keep.TokenHash, s.hash); wrong && done {
		h.Fatal("kept a session by a wrong token")
	} else if !wrong {
		h.check("keep", s, done)
	}
	if !done {
		facts.SessionVersion--
		return
	}
	h.counts["keep"]++
	h.endAll(op.User, s)
}

func (h *history) get(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	got := ask(h, "get", func(store session.Store) (answer[session.Session], error) {
		read, outcome, err := store.Get(h.test.Context(), session.GetOp{Key: s.key(), Now: h.now})
		return answer[session.Session]{read, outcome}, err
	})
	h.check("get", s, got.outcome == session.Done)
}

func (h *history) list(t *rapid.T) {
	u := h.user(t)
	op := session.ListOp{User: u, Limit: rapid.IntRange(1, 4).Draw(t, "limit"), Now: h.now}
	listed, last := map[string]bool{}, ""
	for {
		page := ask(h, "list", func(store session.Store) (session.Page, error) { return store.List(h.test.Context(), op) })
		for _, s := range page.Sessions {
			if s.Handle <= last {
				h.Fatalf("list: %s after %s", s.Handle, last)
			}
			last = s.Handle
			listed[last] = true
		}
		if len(page.Sessions) > op.Limit || page.Next != "" && len(page.Sessions) < op.Limit {
			h.Fatalf("list: a page of %d, limit %d, next %q", len(page.Sessions), op.Limit, page.Next)
		}
		if op.After = page.Next; op.After == "" {
			break
		}
		h.counts["list"]++
	}
	found := 0
	for _, s := range h.sessions {
		if s.user == u {
			h.check("list", s, listed["ses_"+u.Tag+s.id])
		}
		if listed["ses_"+s.user.Tag+s.id] {
			found++
		}
	}
	if found != len(listed) {
		h.Fatalf("list: %d sessions that nobody made", len(listed)-found)
	}
}

func (h *history) epochs(t *rapid.T) {
	u := h.user(t)
	got := ask(h, "epochs", func(store session.Store) (session.Epochs, error) { return store.Epochs(h.test.Context(), u) })
	if got != h.users[u].Epochs {
		h.Fatalf("epochs: %+v, want %+v", got, h.users[u].Epochs)
	}
}
