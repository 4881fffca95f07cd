package session

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The records that the tables vary: issued at second 1,000, absolute 60 s, idle 10 s, so D = 2 s.
const (
	base     = int64(1_000_000)
	absolute = int64(60_000)
	idle     = int64(10_000)
	slack    = idle / 5
)

var (
	theHash  = []byte("the hash of the session's token.")
	badHash  = []byte("the hash of the session's tokem.")
	theUser  = UserKey{Tenant: "acme", User: "ann", Tag: "tag"}
	theKey   = Key{Tenant: "acme", Tag: "tag", ID: "id"}
	goodUser = User{Tenant: "acme", User: "ann", SessionVersion: 3, PermissionEpoch: 5, Version: 9}
	goodRec  = Record{
		TokenHash: theHash, State: StateActive, SessionVersion: 3, PermissionEpoch: 5,
		IssuedAt: base, Absolute: base + absolute, Idle: idle, Seen: base, AAL: 2, AuthAt: base,
	}
)

func at(ms int64) time.Time { return instant(base + ms) }

func ptr(n int64) *int64 { return &n }

func TestVerifyTransition(t *testing.T) {
	type state struct {
		u User
		r Record
	}
	for _, step := range []struct {
		why   string
		alter func(*state, *VerifyOp)
		at    int64
		want  Reason
	}{
		{"just made", nil, 0, ""},
		{"a clock behind the one that made it", nil, -5_000, ""},
		{"used within idle + D", nil, idle + slack - 1, ""},
		{"idle + D without a use", nil, idle + slack, IdleExpired},
		{"idle, and past its absolute end: the latter is for good", nil, absolute, Expired},
		{"used all along, a millisecond before its absolute end", func(s *state, _ *VerifyOp) { s.r.Seen = base + absolute - 10 }, absolute - 1, ""},
		{"used all along, at its absolute end", func(s *state, _ *VerifyOp) { s.r.Seen = base + absolute - 10 }, absolute, Expired},
		{"no record", func(s *state, _ *VerifyOp) { s.r = Record{} }, 0, Unknown},
		{"no record and no hash", func(s *state, op *VerifyOp) { s.r, op.TokenHash = Record{}, nil }, 0, Unknown},
		{"a record without a hash opens to nobody", func(s *state, op *VerifyOp) { s.r.TokenHash, op.TokenHash = nil, nil }, 0, Unknown},
		{"no user record", func(s *state, _ *VerifyOp) { s.u = User{} }, 0, Unknown},
		{"another secret", func(_ *state, op *VerifyOp) { op.TokenHash = badHash }, 0, Unknown},
		{"no hash", func(_ *state, op *VerifyOp) { op.TokenHash = nil }, 0, Unknown},
		{"part of the hash", func(_ *state, op *VerifyOp) { op.TokenHash = theHash[:31] }, 0, Unknown},
		{"another tenant", func(_ *state, op *VerifyOp) { op.Tenant = "bolt" }, 0, Unknown},
		{"no tenant", func(_ *state, op *VerifyOp) { op.Tenant = "" }, 0, Unknown},
		{"asked for its user", func(_ *state, op *VerifyOp) { op.UserID = "ann" }, 0, ""},
		{"asked for another user", func(_ *state, op *VerifyOp) { op.UserID = "bob" }, 0, Unknown},
		{"revoked", func(s *state, _ *VerifyOp) { s.r.State = StateRevoked }, 0, Revoked},
		{"a state nobody writes is not active", func(s *state, _ *VerifyOp) { s.r.State = "x" }, 0, Revoked},
		{"logged out everywhere", func(s *state, _ *VerifyOp) { s.u.SessionVersion++ }, 0, Epoch},
		{"newer than the user's record", func(s *state, _ *VerifyOp) { s.r.SessionVersion++ }, 0, Epoch},
		{"of the tenant's epoch", func(s *state, op *VerifyOp) { s.r.TenantEpoch, op.TenantEpoch = 2, 2 }, 0, ""},
		{"its tenant logged out", func(s *state, op *VerifyOp) { s.r.TenantEpoch, op.TenantEpoch = 2, 3 }, slack, Epoch},
		{"disabled", func(s *state, _ *VerifyOp) { s.u.Disabled = true }, 0, Disabled},
		{"as strong as demanded", func(_ *state, op *VerifyOp) { op.MinAAL = 2 }, 0, ""},
		{"weaker than demanded", func(_ *state, op *VerifyOp) { op.MinAAL = 3 }, 0, AAL},
		{"authenticated as lately as demanded", func(_ *state, op *VerifyOp) { op.MaxAuthAge = time.Second }, 1_000, ""},
		{"authenticated too long ago", func(_ *state, op *VerifyOp) { op.MaxAuthAge = time.Second }, 1_001, AuthAge},

		{"order: unknown before revoked", func(s *state, op *VerifyOp) { op.TokenHash, s.r.State = badHash, StateRevoked }, 0, Unknown},
		{"order: another user before revoked", func(s *state, op *VerifyOp) { op.UserID, s.r.State = "bob", StateRevoked }, 0, Unknown},
		{"order: another tenant before revoked", func(s *state, op *VerifyOp) { op.Tenant, s.r.State = "bolt", StateRevoked }, 0, Unknown},
		{"order: revoked before epoch", func(s *state, _ *VerifyOp) { s.r.State = StateRevoked; s.u.SessionVersion++ }, 0, Revoked},
		{"order: epoch before disabled", func(s *state, _ *VerifyOp) { s.u.Disabled = true; s.u.SessionVersion++ }, 0, Epoch},
		{"order: revoked before the tenant's epoch", func(s *state, op *VerifyOp) { s.r.State, op.TenantEpoch = StateRevoked, 1 }, 0, Revoked},
		{"order: the tenant's epoch before disabled", func(s *state, op *VerifyOp) { s.u.Disabled, op.TenantEpoch = true, 1 }, 0, Epoch},
		{"order: the tenant's epoch before expired", func(_ *state, op *VerifyOp) { op.TenantEpoch = 1 }, absolute, Epoch},
		{"order: the tenant's epoch before idle", func(_ *state, op *VerifyOp) { op.TenantEpoch = 1 }, idle + slack, Epoch},
		{"order: the tenant's epoch before aal", func(_ *state, op *VerifyOp) { op.TenantEpoch, op.MinAAL = 1, 3 }, 0, Epoch},
		{"order: the tenant's epoch before auth_age", func(_ *state, op *VerifyOp) { op.TenantEpoch, op.MaxAuthAge = 1, time.Millisecond }, 2, Epoch},
		{"order: disabled before expired", func(s *state, _ *VerifyOp) { s.u.Disabled = true }, absolute, Disabled},
		{"order: idle before aal", func(_ *state, op *VerifyOp) { op.MinAAL = 3 }, idle + slack, IdleExpired},
		{"order: aal before auth_age", func(_ *state, op *VerifyOp) { op.MinAAL, op.MaxAuthAge = 3, time.Millisecond }, 2, AAL},
	} {
		s := state{goodUser, goodRec}
		op := VerifyOp{Key: theKey, TokenHash: theHash, Now: at(step.at)}
		if step.alter != nil {
			step.alter(&s, &op)
		}
		next, v := Verify(s.u, s.r, op, DurableTracking(s.r.Idle))
		if v.Reason != step.want || v.Active != (step.want == "") {
			t.Errorf("%s: %v %q, want %q", step.why, v.Active, v.Reason, step.want)
		}
		if !v.Active && (!reflect.DeepEqual(next, s.r) || !reflect.DeepEqual(v, Verdict{Reason: step.want})) {
			t.Errorf("%s: a refusal changed the record or tells more than its reason: %+v", step.why, v)
		}
	}
}

func TestTouchTransition(t *testing.T) {
	exact := Tracking{Every: 1_000}
	for _, step := range []struct {
		why      string
		tracking Tracking
		noTouch  bool
		seen, at int64
		wantSeen int64
		wantIdle int64 // when the session goes idle, as reported
	}{
		{"a use within D leaves no trace", DurableTracking(idle), false, 0, slack - 1, 0, idle + slack},
		{"a use D after the last one", DurableTracking(idle), false, 0, slack, slack, slack + idle + slack},
		{"not counted as a use", DurableTracking(idle), true, 0, slack, 0, idle + slack},
		{"within the slack of an idle session", DurableTracking(idle), false, 0, idle + slack - 1, idle + slack - 1, 2*idle + 2*slack - 1},
		{"a clock that went back", DurableTracking(idle), false, 5_000, 1_000, 5_000, 5_000 + idle + slack},
		{"a clock that went back by hours", DurableTracking(idle), false, 5_000, -9_000_000, 5_000, 5_000 + idle + slack},
		{"never beyond the absolute end", DurableTracking(idle), false, absolute - 5_000, absolute - 1, absolute - 1, absolute},
		{"without slack, just in time", exact, false, 0, idle - 1, idle - 1, 2*idle - 1},
		{"without slack, an early use", exact, false, 0, 999, 0, idle},
	} {
		r := goodRec
		r.Seen = base + step.seen
		op := VerifyOp{Key: theKey, TokenHash: theHash, Now: at(step.at), VerifyRequest: VerifyRequest{NoTouch: step.noTouch}}
		next, v := Verify(goodUser, r, op, step.tracking)
		if !v.Active {
			t.Errorf("%s: %s", step.why, v.Reason)
			continue
		}
		if next.Seen != base+step.wantSeen || !v.Session.LastSeenAt.Equal(at(step.wantSeen)) || !v.Session.IdleExpiresAt.Equal(at(step.wantIdle)) {
			t.Errorf("%s: seen %d, answered %v and idle at %v", step.why, next.Seen-base, v.Session.LastSeenAt, v.Session.IdleExpiresAt)
		}
		// What was answered is what is enforced from now on.
		for _, later := range []struct {
			at   time.Time
			live bool
		}{{v.Session.IdleExpiresAt.Add(-time.Millisecond), true}, {v.Session.IdleExpiresAt, false}} {
			if got := Judge(goodUser, next, "acme", later.at, step.tracking.Slack); (got == "") != later.live {
				t.Errorf("%s: judged %q at %v", step.why, got, later.at)
			}
		}
		if next.Seen = r.Seen; !reflect.DeepEqual(next, r) {
			t.Errorf("%s: a touch changed more than seen", step.why)
		}
	}
	if _, v := Verify(goodUser, goodRec, VerifyOp{Key: theKey, TokenHash: theHash, Now: at(idle)}, exact); v.Reason != IdleExpired {
		t.Errorf("without slack, at idle: %q", v.Reason)
	}
}

func TestDurableTracking(t *testing.T) {
	for _, step := range []struct {
		idle time.Duration
		want time.Duration
	}{
		{500 * time.Millisecond, 100 * time.Millisecond},
		{10 * time.Second, 2 * time.Second},
		{25 * time.Minute, 5 * time.Minute},
		{30 * time.Minute, 5 * time.Minute},
		{365 * 24 * time.Hour, 5 * time.Minute},
	} {
		d := step.want.Milliseconds()
		if got := DurableTracking(step.idle.Milliseconds()); got != (Tracking{Every: d, Slack: d}) {
			t.Errorf("%v: %+v, want %v twice", step.idle, got, step.want)
		}
	}
}

func TestCreateTransition(t *testing.T) {
	disabled := goodUser
	disabled.Disabled = true
	for _, step := range []struct {
		why      string
		user     User
		expected *int64
		want     Outcome
		wantSE   int64
	}{
		{"a first login makes the user", User{}, nil, Done, 1},
		{"a first login that expects the version of nobody yet", User{}, ptr(1), Done, 1},
		{"a first login that expects another", User{}, ptr(0), RefusedVersion, 0},
		{"a known user", goodUser, nil, Done, 3},
		{"as expected", goodUser, ptr(3), Done, 3},
		{"logged out everywhere since the password was checked", goodUser, ptr(2), RefusedVersion, 0},
		{"a version from the future", goodUser, ptr(4), RefusedVersion, 0},
		{"disabled", disabled, nil, RefusedDisabled, 0},
		{"disabled comes before the version", disabled, ptr(2), RefusedDisabled, 0},
	} {
		given := goodRec
		given.State, given.SessionVersion, given.PermissionEpoch = "", 0, 0
		u, r, got := Create(step.user, CreateOp{User: theUser, ID: "id", Record: given, ExpectedVersion: step.expected})
		if got != step.want {
			t.Errorf("%s: outcome %d, want %d", step.why, got, step.want)
			continue
		}
		if got != Done {
			continue
		}
		if r.State != StateActive || r.SessionVersion != step.wantSE || r.SessionVersion != u.SessionVersion || r.PermissionEpoch != u.PermissionEpoch {
			t.Errorf("%s: %+v for %+v", step.why, r, u)
		}
		if step.user == (User{}) {
			want := NewUser(theUser)
			if want.Creates = 1; u != want {
				t.Errorf("%s: user %+v, want %+v", step.why, u, want)
			}
		} else if step.user.Creates++; u != step.user {
			t.Errorf("%s: the user's record changed to %+v", step.why, u)
		}
	}
}

func TestRevokeTransition(t *testing.T) {
	for _, step := range []struct {
		why     string
		alter   func(*User, *Record, *RevokeOp)
		want    Outcome
		changes bool
	}{
		{"by its token", nil, Done, true},
		{"by its handle", func(_ *User, _ *Record, op *RevokeOp) { op.TokenHash = nil }, Done, true},
		{"by another secret", func(_ *User, _ *Record, op *RevokeOp) { op.TokenHash = badHash }, RefusedUnknown, false},
		{"by an empty hash", func(_ *User, _ *Record, op *RevokeOp) { op.TokenHash = []byte{} }, RefusedUnknown, false},
		{"from another tenant", func(_ *User, _ *Record, op *RevokeOp) { op.Tenant = "bolt" }, RefusedUnknown, false},
		{"by handle from another tenant", func(_ *User, _ *Record, op *RevokeOp) { op.Tenant, op.TokenHash = "bolt", nil }, RefusedUnknown, false},
		{"no record", func(_ *User, r *Record, _ *RevokeOp) { *r = Record{} }, RefusedUnknown, false},
		{"no record, by handle", func(_ *User, r *Record, op *RevokeOp) { *r, op.TokenHash = Record{}, nil }, RefusedUnknown, false},
		{"no user record", func(u *User, _ *Record, op *RevokeOp) { *u, op.Tenant = User{}, "" }, RefusedUnknown, false},
		{"already revoked", func(_ *User, r *Record, _ *RevokeOp) { r.State = StateRevoked }, Done, false},
		{"dead by the epoch", func(u *User, _ *Record, _ *RevokeOp) { u.SessionVersion++ }, Done, true},
		{"of a disabled user", func(u *User, _ *Record, _ *RevokeOp) { u.Disabled = true }, Done, true},
	} {
		u, r, op := goodUser, goodRec, RevokeOp{Key: theKey, TokenHash: theHash}
		if step.alter != nil {
			step.alter(&u, &r, &op)
		}
		gotU, gotR, got := Revoke(u, r, op)
		if got != step.want {
			t.Errorf("%s: outcome %d, want %d", step.why, got, step.want)
		}
		wantU, wantR := u, r
		if step.changes {
			wantU.Version++
			wantR.State = StateRevoked
		}
		if gotU != wantU || !reflect.DeepEqual(gotR, wantR) {
			t.Errorf("%s: %+v %+v", step.why, gotU, gotR)
		}
	}
}

func TestChangeTransition(t *testing.T) {
	disabled := goodUser
	disabled.Disabled = true
	for _, step := range []struct {
		why  string
		user User
		kind ChangeKind
		want User
	}{
		{"logout-all", goodUser, LogoutAll, annWith(4, 5, false, 10)},
		{"logout-all of nobody yet", User{}, LogoutAll, annWith(2, 1, false, 2)},
		{"logout-all of a disabled user leaves them disabled", disabled, LogoutAll, annWith(4, 5, true, 10)},
		{"new permissions", goodUser, BumpPermissions, annWith(3, 6, false, 10)},
		{"new permissions of nobody yet", User{}, BumpPermissions, annWith(1, 2, false, 2)},
		{"disable", goodUser, Disable, annWith(3, 5, true, 10)},
		{"disable again", disabled, Disable, annWith(3, 5, true, 10)},
		{"disable nobody yet", User{}, Disable, annWith(1, 1, true, 2)},
		{"erase", goodUser, Erase, User{Tenant: "acme", User: "ann", SessionVersion: 4, PermissionEpoch: 5, Disabled: true, Version: 10, Until: base + MaxTTL.Milliseconds()}},
		{"enable after an erasure", User{Tenant: "acme", User: "ann", SessionVersion: 4, PermissionEpoch: 5, Disabled: true, Version: 10, Until: 7}, Enable, annWith(5, 5, false, 11)},
		{"enable raises the session version", disabled, Enable, annWith(4, 5, false, 10)},
		{"enable who was not disabled", goodUser, Enable, annWith(4, 5, false, 10)},
	} {
		u, r, got := Change(step.user, Record{}, ChangeOp{User: theUser, Kind: step.kind, Now: at(0)}, Tracking{})
		if got != Done || u != step.want || !reflect.DeepEqual(r, Record{}) {
			t.Errorf("%s: outcome %d, %+v, %+v", step.why, got, u, r)
		}
	}
}

func TestKeepTransition(t *testing.T) {
	for _, step := range []struct {
		why   string
		alter func(*User, *Record, *ChangeOp)
		at    int64
		want  Outcome
	}{
		{"an active session", nil, 0, Done},
		{"within the slack of idle", nil, idle + slack - 1, Done},
		{"idle", nil, idle + slack, RefusedNotActive},
		{"expired", func(_ *User, r *Record, _ *ChangeOp) { r.Seen = base + absolute }, absolute, RefusedNotActive},
		{"revoked", func(_ *User, r *Record, _ *ChangeOp) { r.State = StateRevoked }, 0, RefusedNotActive},
		{"of the logout-all before this one", func(u *User, _ *Record, _ *ChangeOp) { u.SessionVersion++ }, 0, RefusedNotActive},
		{"stamped ahead of the user", func(_ *User, r *Record, _ *ChangeOp) { r.SessionVersion++ }, 0, RefusedNotActive},
		{"of a disabled user", func(u *User, _ *Record, _ *ChangeOp) { u.Disabled = true }, 0, RefusedNotActive},
		{"another secret", func(_ *User, _ *Record, op *ChangeOp) { op.Keep.TokenHash = badHash }, 0, RefusedNotActive},
		{"no hash", func(_ *User, _ *Record, op *ChangeOp) { op.Keep.TokenHash = nil }, 0, RefusedNotActive},
		{"no record", func(_ *User, r *Record, op *ChangeOp) { *r, op.Keep.TokenHash = Record{}, nil }, 0, RefusedNotActive},
		{"no user record", func(u *User, _ *Record, _ *ChangeOp) { *u = User{} }, 0, RefusedNotActive},
		{"another tenant", func(_ *User, _ *Record, op *ChangeOp) { op.User.Tenant = "bolt" }, 0, RefusedNotActive},
	} {
		u, r := goodUser, goodRec
		op := ChangeOp{User: theUser, Kind: LogoutAll, Keep: &Kept{ID: "id", TokenHash: theHash}, Now: at(step.at)}
		if step.alter != nil {
			step.alter(&u, &r, &op)
		}
		gotU, gotR, got := Change(u, r, op, DurableTracking(r.Idle))
		if got != step.want {
			t.Errorf("%s: outcome %d, want %d", step.why, got, step.want)
		}
		if got != Done {
			if !reflect.DeepEqual(gotR, r) || u.Version != 0 && gotU != u {
				t.Errorf("%s: refused, yet changed to %+v %+v", step.why, gotU, gotR)
			}
			continue
		}
		r.SessionVersion = 4
		if want := annWith(4, 5, false, 10); gotU != want || !reflect.DeepEqual(gotR, r) {
			t.Errorf("%s: %+v %+v", step.why, gotU, gotR)
		}
	}
	// Only a logout-all keeps: the other changes leave the session's record alone.
	op := ChangeOp{User: theUser, Kind: BumpPermissions, Keep: &Kept{ID: "id", TokenHash: theHash}, Now: at(0)}
	if _, r, got := Change(goodUser, goodRec, op, Tracking{}); got != Done || !reflect.DeepEqual(r, goodRec) {
		t.Errorf("a permission bump changed the session: %d %+v", got, r)
	}
}

// Whatever comes, what has ended stays ended, and no number goes back.
func TestTransitionsNeverRevive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u, r, outcome := Create(User{}, CreateOp{User: theUser, ID: "id", Record: goodRec})
		if outcome != Done {
			t.Fatalf("create: %d", outcome)
		}
		ended := false
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now := at(rapid.Int64Range(-5_000, absolute+5_000).Draw(t, "now"))
			oldU, oldR := u, r
			hash := rapid.SampledFrom([][]byte{theHash, badHash, nil}).Draw(t, "hash")
			switch rapid.SampledFrom([]string{"verify", "revoke", "change", "keep"}).Draw(t, "what") {
			case "verify":
				var v Verdict
				r, v = Verify(u, r, VerifyOp{Key: theKey, TokenHash: hash, Now: now}, DurableTracking(r.Idle))
				if v.Active && (ended || now.UnixMilli() >= base+absolute || !reflect.DeepEqual(hash, theHash)) {
					t.Fatalf("active at %v, ended %v, hash %q", now, ended, hash)
				}
			case "revoke":
				u, r, outcome = Revoke(u, r, RevokeOp{Key: theKey, TokenHash: hash})
				ended = ended || outcome == Done
			case "change":
				kind := ChangeKind(rapid.IntRange(int(LogoutAll), int(Enable)).Draw(t, "kind"))
				u, _, _ = Change(u, Record{}, ChangeOp{User: theUser, Kind: kind, Now: now}, Tracking{})
				ended = ended || kind != BumpPermissions
			case "keep":
				u, r, outcome = Change(u, r, ChangeOp{User: theUser, Kind: LogoutAll, Keep: &Kept{ID: "id", TokenHash: hash}, Now: now}, DurableTracking(r.Idle))
				if outcome == Done && ended {
					t.Fatal("kept what had ended")
				}
			}
			if ended && Judge(u, r, "acme", at(0), 0) == "" {
				t.Fatalf("ended and good again: %+v %+v", u, r)
			}
			if r.Seen < oldR.Seen || u.Version < oldU.Version || u.SessionVersion < oldU.SessionVersion || u.PermissionEpoch < oldU.PermissionEpoch {
				t.Fatalf("a number went back: %+v %+v from %+v %+v", u, r, oldU, oldR)
			}
			if u.Version == oldU.Version && (u != oldU || r.State != oldR.State || r.SessionVersion != oldR.SessionVersion) {
				t.Fatalf("changed without raising the version: %+v %+v from %+v %+v", u, r, oldU, oldR)
			}
			if r.Absolute != base+absolute || !reflect.DeepEqual(r.TokenHash, theHash) {
				t.Fatalf("abs or token changed: %+v", r)
			}
		}
	})
}

func annWith(sv, pv int64, disabled bool, ver int64) User {
	return User{Tenant: "acme", User: "ann", SessionVersion: sv, PermissionEpoch: pv, Disabled: disabled, Version: ver}
}
