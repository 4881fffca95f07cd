package sessiontest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// S1S2S3LateTouch is a use of a session, due to be recorded, after it has ended.
func S1S2S3LateTouch(t *testing.T, open Open) {
	w := start(t, open)
	for _, step := range []struct {
		why  string
		end  func(token string, s session.Session) error
		want session.Reason
	}{
		{"revoked", func(token string, _ session.Session) error { return second(w.m.Revoke(t.Context(), w.tenant, token)) }, session.Revoked},
		{"revoked by handle", func(_ string, s session.Session) error {
			return second(w.m.RevokeHandle(t.Context(), w.tenant, s.Handle))
		}, session.Revoked},
		{"logged out everywhere", func(string, session.Session) error {
			_, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", "")
			return err
		}, session.Epoch},
		{"disabled", func(string, session.Session) error {
			_, err := w.m.Disable(t.Context(), w.tenant, "ann")
			return err
		}, session.Disabled},
	} {
		_, err := w.m.Enable(t.Context(), w.tenant, "ann")
		w.must("enable", err)
		token, s := w.login("ann")
		w.pass(slack)
		w.must(step.why, step.end(token, s))
		for range 3 {
			if v := w.verify(token, session.VerifyRequest{}); v.Reason != step.want {
				t.Errorf("%s: a late use is answered %q", step.why, v.Reason)
			}
			w.pass(slack)
		}
		w.want(step.why, token, s, step.want)
	}
}

// S5S6AbsoluteNeverMoves is about the absolute end: uses up to it do not move it.
func S5S6AbsoluteNeverMoves(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	end := w.instant().Add(absolute)
	for left := absolute; left > time.Second; left -= time.Second {
		w.pass(time.Second)
		v := w.verify(token, session.VerifyRequest{})
		if !v.Active || !v.Session.ExpiresAt.Equal(end) || v.Session.IdleExpiresAt.After(end) {
			t.Fatalf("%v before the end: %+v", left-time.Second, v)
		}
	}
	w.logoutAll("ann", token)
	w.pass(time.Second - time.Millisecond)
	if v := w.verify(token, session.VerifyRequest{}); !v.Active || !v.Session.ExpiresAt.Equal(end) {
		t.Errorf("1 ms before the end: %+v", v)
	}
	w.pass(time.Millisecond)
	w.want("at the end", token, s, session.Expired)
}

// S10ExpiredIsFiltered is about a record that nothing has removed yet: it is dead by its instants.
func S10ExpiredIsFiltered(t *testing.T, open Open) {
	w := start(t, open)
	token, s, err := w.create(session.CreateRequest{UserID: "ann", AbsoluteTTL: session.MinTTL, IdleTTL: session.MinTTL})
	w.must("create", err)
	w.pass(session.MinTTL - time.Millisecond)
	w.want("the last moment", token, s, "")
	w.pass(time.Millisecond)
	w.want("expired", token, s, session.Expired)
	w.pass(72 * time.Hour)
	w.want("expired for days", token, s, session.Expired)
	if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", token); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping an expired session: %v", err)
	}
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
}

// S22ForeignID is about a token that a client made up: it is not adopted.
func S22ForeignID(t *testing.T, open Open) {
	w := start(t, open)
	_, s := w.login("ann")
	tag := s.Handle[len("ses_"):][:22]
	id := strings.Repeat("7", 22)
	made := forge("ses_"+tag+id, strings.Repeat("0", 43))
	elsewhere := forge("ses_"+strings.Repeat("0", 44), strings.Repeat("0", 43))
	for _, token := range []string{made, elsewhere} {
		if got := w.verify(token, session.VerifyRequest{}).Reason; got != session.Unknown {
			t.Errorf("a made-up token is answered %q", got)
		}
		w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
		if got := w.verify(token, session.VerifyRequest{}).Reason; got != session.Unknown {
			t.Errorf("after its revocation it is answered %q", got)
		}
	}
	for _, handle := range []string{"ses_" + tag + id, "ses_" + strings.Repeat("0", 44), "ses_", ""} {
		if err := second(w.m.RevokeHandle(t.Context(), w.tenant, handle)); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("revoke of %q: %v", handle, err)
		}
		if _, err := w.m.Get(t.Context(), w.tenant, handle); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("get of %q: %v", handle, err)
		}
	}
	if got := w.list("ann"); len(got) != 1 || got[0].Handle != s.Handle {
		t.Errorf("listed %+v", got)
	}
}

// S27S28Assurance is the level: it is demanded on each verify, and the same factor
// twice does not raise it.
func S27S28Assurance(t *testing.T, open Open) {
	w := start(t, open)
	weak, _, err := w.create(session.CreateRequest{UserID: "ann", AAL: 1, AMR: []string{"pwd", "otp"}})
	w.must("create", err)
	strong, _, err := w.create(session.CreateRequest{UserID: "ann", AAL: 2, AMR: []string{"pwd", "otp"}})
	w.must("create", err)
	for range 3 { // an answer without a demand is never taken for one with it
		for _, step := range []struct {
			token string
			min   int
			want  session.Reason
		}{{weak, 0, ""}, {weak, 1, ""}, {weak, 2, session.AAL}, {strong, 2, ""}, {strong, 3, session.AAL}} {
			if got := w.verify(step.token, session.VerifyRequest{MinAAL: step.min}).Reason; got != step.want {
				t.Errorf("at least %d: %q, want %q", step.min, got, step.want)
			}
		}
		w.pass(slack)
	}
	if _, _, err = w.create(session.CreateRequest{UserID: "ann", AAL: 2, AMR: []string{"otp", "otp"}}); err == nil {
		t.Error("the same factor twice was taken")
	}
}

// S30Epoch is what ends all sessions: it ends those that are under way, too.
func S30Epoch(t *testing.T, open Open) {
	w := start(t, open)
	before := w.epochs("ann").SessionVersion // as read when the password was checked
	_, first, err := w.create(session.CreateRequest{UserID: "ann", ExpectedVersion: &before})
	w.must("a first login as announced", err)
	if first.SessionVersion != before {
		t.Errorf("announced version %d, made with %d", before, first.SessionVersion)
	}
	old, s := w.login("ann")
	if e := w.logoutAll("ann", ""); e.SessionVersion != before+1 || w.epochs("ann") != e {
		t.Errorf("after logout-all: %+v", e)
	}
	w.want("from before the reset", old, s, session.Epoch)
	if _, _, err := w.create(session.CreateRequest{UserID: "ann", ExpectedVersion: &before}); !errors.Is(err, session.ErrEpochMismatch) {
		t.Errorf("a login that checked the old password: %v", err)
	}
	now := before + 1
	if _, _, err := w.create(session.CreateRequest{UserID: "ann", ExpectedVersion: &now}); err != nil {
		t.Errorf("a login that checked the new password: %v", err)
	}
	// It counts for a user who has nothing yet.
	w.logoutAll("carl", "")
	if _, _, err := w.create(session.CreateRequest{UserID: "carl", ExpectedVersion: &before}); !errors.Is(err, session.ErrEpochMismatch) {
		t.Errorf("a first login from before logout-all: %v", err)
	}
}

// S31PermissionsStale is how a session says that its permissions are old.
func S31PermissionsStale(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	bumped, err := w.m.BumpPermissions(t.Context(), w.tenant, "ann")
	w.must("bump", err)
	e := bumped.Epochs
	if e != (session.Epochs{SessionVersion: 1, PermissionEpoch: 2}) || w.epochs("ann") != e {
		t.Errorf("bumped: %+v", e)
	}
	for range 2 {
		if v := w.verify(token, session.VerifyRequest{}); !v.Active || !v.PermissionsStale || v.Session.PermissionEpoch != 1 {
			t.Errorf("verdict %+v", v)
		}
		w.pass(slack) // nor does a recorded use renew them
	}
	w.want("stays good", token, s, "")
	next, err := w.m.Rotate(t.Context(), w.tenant, token, session.RotateRequest{})
	w.must("rotate", err)
	if v := w.verify(next.Token.Reveal(), session.VerifyRequest{}); !v.Active || v.PermissionsStale || v.Session.PermissionEpoch != 2 {
		t.Errorf("a rotation renews them: %+v", v)
	}
	if v := w.verify(token, session.VerifyRequest{}); !v.Active || !v.PermissionsStale || v.Session.PermissionEpoch != 1 {
		t.Errorf("the token before it is what it was: %+v", v)
	}
	fresh, _ := w.login("ann")
	if v := w.verify(fresh, session.VerifyRequest{}); v.PermissionsStale || v.Session.PermissionEpoch != 2 {
		t.Errorf("a new session: %+v", v)
	}
}

// S32IDsAreNotReused is about a session's id: a logout does not stand in the way of
// the next login, and no login takes a session's place.
func S32IDsAreNotReused(t *testing.T, open Open) {
	w := start(t, open)
	seen := map[string]bool{}
	for range 20 {
		token, s := w.login("ann")
		if seen[s.Handle] || seen[token] {
			t.Fatal("an id came twice")
		}
		seen[s.Handle], seen[token] = true, true
		w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
		w.want("logged out", token, s, session.Revoked)
	}
	u := userKey(w.tenant, "bob")
	op := session.CreateOp{User: u, ID: id("1"), Record: record(w.instant(), "1")}
	if _, outcome, err := w.store.Create(t.Context(), op); outcome != session.Done || err != nil {
		t.Fatalf("create: %d %v", outcome, err)
	}
	op.Record = record(w.instant(), "2")
	if _, _, err := w.store.Create(t.Context(), op); err == nil {
		t.Error("a session's id was given to another")
	}
	v, err := w.store.Verify(t.Context(), session.VerifyOp{Key: session.Key{Tenant: w.tenant, Tag: u.Tag, ID: op.ID}, TokenHash: hash("1"), Now: w.instant()})
	if err != nil || !v.Active {
		t.Errorf("the first owner of the id: %+v %v", v, err)
	}
}

// S36SecretDecides is about who knows all of a token but the secret: they have nothing.
func S36SecretDecides(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	other, _ := w.login("ann")
	own := token[len("cst_")+44:][:43]
	near := own[:42] + "0"
	if near == own {
		near = own[:42] + "1"
	}
	for why, secret := range map[string]string{
		"another session's": other[len("cst_")+44:][:43],
		"zeros":             strings.Repeat("0", 43),
		"all but a digit":   near,
	} {
		forged := forge(s.Handle, secret)
		if got := w.verify(forged, session.VerifyRequest{}).Reason; got != session.Unknown {
			t.Errorf("%s: answered %q", why, got)
		}
		w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, forged)))
	}
	if forge(s.Handle, own) != token {
		t.Error("the forger cannot write tokens, so this shows nothing")
	}
	w.want("revoked by nobody", token, s, "")
}

// S41OddIDs is about ids: they are compared byte for byte, whatever they contain.
func S41OddIDs(t *testing.T, open Open) {
	w := start(t, open)
	users := []string{
		"}{x}", "{}", "*", "?", "a:b", "1:a", "a b", "ann", "Ann", "ann ", "%2e", "\u00e9", "e\u0301", "\U0001f600", "\ufeff", "\u2028",
		`"`, `\`, "<&>", "#", "U#x", "' OR 1=1", strings.Repeat("x", 256), strings.Repeat("\U0001f600", 64),
	}
	tokens := map[string]string{}
	for _, user := range users {
		tokens[user], _ = w.login(user)
	}
	for _, user := range users {
		if v := w.verify(tokens[user], session.VerifyRequest{UserID: user}); !v.Active || v.Session.UserID != user {
			t.Errorf("%q: %+v", user, v)
		}
		if got := w.list(user); len(got) != 1 || got[0].UserID != user {
			t.Errorf("%q: listed %+v", user, got)
		}
	}
	for i, user := range users {
		w.logoutAll(user, "")
		for j, other := range users {
			if got := w.look(tokens[other]); (got == session.Epoch) != (j <= i) {
				t.Fatalf("after logout-all of %q, %q is answered %q", user, other, got)
			}
		}
	}
}

// S42TenantsNeverMeet is about another tenant's token and handle: they are as those that never were.
func S42TenantsNeverMeet(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	twin := newTenant()
	twins, _, err := w.m.Create(t.Context(), twin, session.CreateRequest{UserID: "ann"})
	w.must("create the twin", err)
	for _, other := range []string{twin, newTenant(), ""} {
		for _, demand := range []session.VerifyRequest{{}, {UserID: "ann"}, {MinAAL: 3}} {
			if v, err := w.m.Verify(t.Context(), other, token, demand); err != nil || v.Reason != session.Unknown || v.Session.Handle != "" {
				t.Errorf("verify from %q: %+v %v", other, v, err)
			}
		}
		if _, err := w.m.Get(t.Context(), other, s.Handle); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("get from %q: %v", other, err)
		}
		if err := second(w.m.RevokeHandle(t.Context(), other, s.Handle)); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("revoke by handle from %q: %v", other, err)
		}
		w.must("revoke", second(w.m.Revoke(t.Context(), other, token)))
	}
	for _, change := range []func() (session.Changed, error){
		func() (session.Changed, error) { return w.m.LogoutAll(t.Context(), twin, "ann", "") },
		func() (session.Changed, error) { return w.m.BumpPermissions(t.Context(), twin, "ann") },
		func() (session.Changed, error) { return w.m.Disable(t.Context(), twin, "ann") },
	} {
		if _, err := change(); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.m.LogoutAll(t.Context(), twin, "ann", token); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping another tenant's session: %v", err)
	}
	w.want("untouched by all that", token, s, "")
	if v := w.verify(token, session.VerifyRequest{}); v.PermissionsStale {
		t.Error("another tenant's user made permissions stale")
	}
	if got := w.epochs("ann"); got != (session.Epochs{SessionVersion: 1, PermissionEpoch: 1}) {
		t.Errorf("epochs %+v", got)
	}
	if v, err := w.m.Verify(t.Context(), twin, twins.Reveal(), session.VerifyRequest{}); err != nil || v.Active {
		t.Errorf("the twin: %+v %v", v, err)
	}
}
