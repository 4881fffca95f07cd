package sessiontest

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// Lifecycle is one session from login to revocation, with every field.
func Lifecycle(t *testing.T, open Open) {
	w := start(t, open)
	if got := w.epochs("ann"); got != (session.Epochs{SessionVersion: 1, PermissionEpoch: 1}) {
		t.Errorf("epochs of nobody yet: %+v", got)
	}
	if got := w.list("ann"); len(got) != 0 {
		t.Errorf("sessions of nobody yet: %v", got)
	}
	token, s, err := w.create(session.CreateRequest{
		UserID: "ann", AAL: 2, AMR: []string{"pwd", "otp"}, DeviceID: "phone", IP: "2001:db8::1", UserAgent: "curl/8",
		AbsoluteTTL: absolute, IdleTTL: idleTime,
	})
	w.must("create", err)
	now := w.instant()
	want := session.Session{
		Handle: s.Handle, UserID: "ann", IssuedAt: now, ExpiresAt: now.Add(absolute), IdleExpiresAt: now.Add(idleTime + slack),
		LastSeenAt: now, AAL: 2, AMR: []string{"pwd", "otp"}, AuthAt: now, SessionVersion: 1, PermissionEpoch: 1,
		DeviceID: "phone", IP: "2001:db8::1", UserAgent: "curl/8",
	}
	v := w.verify(token, session.VerifyRequest{})
	got, err := w.m.Get(t.Context(), w.tenant, s.Handle)
	w.must("get", err)
	listed := w.list("ann")
	for who, what := range map[string]any{"create": s, "verify": v.Session, "get": got} {
		if !reflect.DeepEqual(what, want) {
			t.Errorf("%s answered\n%+v, want\n%+v", who, what, want)
		}
	}
	if !reflect.DeepEqual(listed, []session.Session{want}) {
		t.Errorf("listed %+v", listed)
	}
	if !v.Active || v.PermissionsStale {
		t.Errorf("verdict %+v", v)
	}
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
	w.want("revoked", token, s, session.Revoked)
	w.must("revoke again", second(w.m.Revoke(t.Context(), w.tenant, token)))
	w.must("revoke again by handle", second(w.m.RevokeHandle(t.Context(), w.tenant, s.Handle)))
	w.want("revoked three times", token, s, session.Revoked)

	byHandle, s2 := w.login("ann")
	if s2.AAL != 1 || s2.AMR != nil || s2.DeviceID != "" {
		t.Errorf("defaults: %+v", s2)
	}
	w.must("revoke by handle", second(w.m.RevokeHandle(t.Context(), w.tenant, s2.Handle)))
	w.want("revoked by handle", byHandle, s2, session.Revoked)
	if got := w.epochs("ann"); got != (session.Epochs{SessionVersion: 1, PermissionEpoch: 1}) {
		t.Errorf("epochs after revocations: %+v", got)
	}

	_, long, err := w.m.Create(t.Context(), w.tenant, session.CreateRequest{UserID: "bob"})
	w.must("create with defaults", err)
	if long.ExpiresAt.Sub(long.IssuedAt) != 12*time.Hour || long.IdleExpiresAt.Sub(long.IssuedAt) != 35*time.Minute {
		t.Errorf("defaults: %+v", long)
	}
	_, short, err := w.m.Create(t.Context(), w.tenant, session.CreateRequest{UserID: "bob", AbsoluteTTL: time.Minute})
	w.must("create with a short life", err)
	if short.IdleExpiresAt != short.ExpiresAt {
		t.Errorf("idle time longer than life: %+v", short)
	}
}

// Demands are what a caller may ask of a session beyond being alive.
func Demands(t *testing.T, open Open) {
	w := start(t, open)
	token, _, err := w.create(session.CreateRequest{UserID: "ann", AAL: 2})
	w.must("create", err)
	w.pass(5 * time.Second)
	for _, step := range []struct {
		why  string
		req  session.VerifyRequest
		want session.Reason
	}{
		{"nothing", session.VerifyRequest{}, ""},
		{"its level", session.VerifyRequest{MinAAL: 2}, ""},
		{"a higher level", session.VerifyRequest{MinAAL: 3}, session.AAL},
		{"its age", session.VerifyRequest{MaxAuthAge: 5 * time.Second}, ""},
		{"a younger login", session.VerifyRequest{MaxAuthAge: 5*time.Second - time.Millisecond}, session.AuthAge},
		{"its user", session.VerifyRequest{UserID: "ann"}, ""},
		{"another user", session.VerifyRequest{UserID: "bob"}, session.Unknown},
		{"another user at a higher level", session.VerifyRequest{UserID: "bob", MinAAL: 3}, session.Unknown},
	} {
		if v := w.verify(token, step.req); v.Reason != step.want {
			t.Errorf("%s: %q, want %q", step.why, v.Reason, step.want)
		}
	}
}

// Idle is the idle expiry, which only a use of an active session moves.
func Idle(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	for _, step := range []struct {
		why      string
		pass     time.Duration
		req      session.VerifyRequest
		want     session.Reason
		recorded bool
	}{
		{"a use too soon to be recorded", slack - time.Millisecond, session.VerifyRequest{}, "", false},
		{"a look", time.Millisecond, session.VerifyRequest{NoTouch: true}, "", false},
		{"a use by who demands more", 0, session.VerifyRequest{MinAAL: 3}, session.AAL, false},
		{"a use", 0, session.VerifyRequest{}, "", true},
		{"the last moment", idleTime + slack - time.Millisecond, session.VerifyRequest{}, "", true},
		{"a look at the last moment", idleTime + slack - time.Millisecond, session.VerifyRequest{NoTouch: true}, "", false},
		{"too late", time.Millisecond, session.VerifyRequest{}, session.IdleExpired, false},
		{"a use that is too late does not help", 0, session.VerifyRequest{}, session.IdleExpired, false},
	} {
		w.pass(step.pass)
		v := w.verify(token, step.req)
		if v.Reason != step.want {
			t.Fatalf("%s: %q, want %q", step.why, v.Reason, step.want)
		}
		if step.recorded {
			s.LastSeenAt, s.IdleExpiresAt = w.instant(), w.instant().Add(idleTime+slack)
		}
		if step.want == "" && !reflect.DeepEqual(v.Session, s) {
			t.Errorf("%s: %+v, want %+v", step.why, v.Session, s)
		}
	}
	w.want("idle", token, s, session.IdleExpired)
	if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", token); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping an idle session: %v", err)
	}
}

// Disable and enable again.
func Disable(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	changed, err := w.m.Disable(t.Context(), w.tenant, "ann")
	w.must("disable", err)
	if e := changed.Epochs; e != (session.Epochs{SessionVersion: 1, PermissionEpoch: 1, Disabled: true}) || w.epochs("ann") != e {
		t.Errorf("disabled: %+v", e)
	}
	w.want("disabled", token, s, session.Disabled)
	if _, _, err := w.create(session.CreateRequest{UserID: "ann"}); !errors.Is(err, session.ErrUserDisabled) {
		t.Errorf("login while disabled: %v", err)
	}
	if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", token); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping a session while disabled: %v", err)
	}
	changed, err = w.m.Enable(t.Context(), w.tenant, "ann")
	w.must("enable", err)
	if e := changed.Epochs; e != (session.Epochs{SessionVersion: 2, PermissionEpoch: 1}) || w.epochs("ann") != e {
		t.Errorf("enabled: %+v", e)
	}
	w.want("from before", token, s, session.Epoch)
	token, s = w.login("ann")
	w.want("from after", token, s, "")

	if _, err := w.m.Disable(t.Context(), w.tenant, "nobody"); err != nil {
		t.Errorf("disable of nobody yet: %v", err)
	}
	if _, _, err := w.create(session.CreateRequest{UserID: "nobody"}); !errors.Is(err, session.ErrUserDisabled) {
		t.Errorf("first login while disabled: %v", err)
	}
}

// Erase removes a user's sessions and what is kept beside them, and nothing comes back.
func Erase(t *testing.T, open Open) {
	w := start(t, open)
	token, s, err := w.create(session.CreateRequest{UserID: "ann", Data: []byte(`1`)})
	w.must("create", err)
	for range 30 {
		w.login("ann")
	}
	other, so := w.login("bob")
	w.pass(slack)
	for range 2 { // again is harmless
		if _, err := w.m.Erase(t.Context(), w.tenant, "ann"); err != nil {
			t.Fatal(err)
		}
		w.want("erased", token, s, session.Unknown)
		if v := w.verify(token, session.VerifyRequest{}); v.Active {
			t.Errorf("a late use: %+v", v)
		}
		for why, err := range map[string]error{
			"read data":  second(w.m.Data(t.Context(), w.tenant, s.Handle)),
			"write data": second(w.m.SetData(t.Context(), w.tenant, s.Handle, 1, []byte(`2`))),
			"by handle":  second(w.m.RevokeHandle(t.Context(), w.tenant, s.Handle)),
		} {
			if !errors.Is(err, session.ErrNotFound) {
				t.Errorf("%s: %v", why, err)
			}
		}
		w.cannot("erased", token)
		if _, _, err := w.create(session.CreateRequest{UserID: "ann"}); !errors.Is(err, session.ErrUserDisabled) {
			t.Errorf("login: %v", err)
		}
	}
	if e := w.epochs("ann"); e != (session.Epochs{SessionVersion: 3, PermissionEpoch: 1, Disabled: true}) {
		t.Errorf("epochs %+v", e)
	}
	w.want("another user", other, so, "")
	_, err = w.m.Enable(t.Context(), w.tenant, "ann")
	w.must("enable", err)
	w.want("enabled again", token, s, session.Unknown)
	back, sb := w.login("ann")
	w.want("a new login", back, sb, "")
}

// Keep is the logout-all that leaves one session alive.
func Keep(t *testing.T, open Open) {
	w := start(t, open)
	kept, s := w.login("ann")
	other, so := w.login("ann")
	bobs, _ := w.login("bob")
	for why, except := range map[string]string{
		"no token":          "x",
		"another user's":    bobs,
		"nobody's":          forge(s.Handle, strings.Repeat("0", 43)),
		"a handle":          s.Handle,
		"of another tenant": w.foreign(open, "ann"),
	} {
		if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", except); !errors.Is(err, session.ErrNotActive) {
			t.Errorf("keeping %s: %v", why, err)
		}
	}
	w.want("after refusals", other, so, "")
	if got := w.epochs("ann").SessionVersion; got != 1 {
		t.Errorf("refusals raised the version to %d", got)
	}
	e := w.logoutAll("ann", kept)
	if e.SessionVersion != 2 {
		t.Errorf("version %d", e.SessionVersion)
	}
	w.want("the kept one", kept, s, "")
	w.want("the other", other, so, session.Epoch)
	if got := w.verify(kept, session.VerifyRequest{}).Session; got.SessionVersion != 2 || got.PermissionEpoch != 1 || !got.ExpiresAt.Equal(s.ExpiresAt) {
		t.Errorf("kept: %+v", got)
	}
	if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", other); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping the other: %v", err)
	}
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, kept)))
	if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", kept); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keeping a revoked one: %v", err)
	}
	w.want("revoked", kept, s, session.Revoked)
	if got := w.epochs("bob").SessionVersion; got != 1 {
		t.Errorf("another user's version is %d", got)
	}
}

// foreign is a token of the same user id in another tenant.
func (w *world) foreign(open Open, user string) string {
	w.Helper()
	other := start(w.T, open)
	token, _, err := other.m.Create(w.Context(), other.tenant, session.CreateRequest{UserID: user})
	w.must("create elsewhere", err)
	return token.Reveal()
}

// List shows n live sessions in order of their ids, each once, and no dead one.
func List(t *testing.T, open Open, n int) {
	w := start(t, open)
	var live []string
	for i := range n {
		token, s := w.login("ann")
		if i%10 == 3 {
			w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
			continue
		}
		live = append(live, s.Handle)
	}
	w.login("bob")
	slices.Sort(live)
	for _, limit := range []int{0, 1, 7, len(live), 100} {
		if limit > session.MaxPage || 0 < limit && limit < session.MaxPage && n > 1_000 {
			continue
		}
		size := limit
		if limit == 0 {
			size = session.MaxPage
		}
		var got []string
		for cursor, rest := "", len(live); ; {
			page, err := w.m.List(t.Context(), w.tenant, "ann", cursor, limit)
			w.must("list", err)
			if want := min(size, rest); len(page.Sessions) != want {
				t.Fatalf("a page of %d with %d to come, limit %d", len(page.Sessions), rest, limit)
			}
			for _, s := range page.Sessions {
				got = append(got, s.Handle)
			}
			rest -= len(page.Sessions)
			if (page.Next == "") != (rest == 0) {
				t.Fatalf("next %q with %d to come, limit %d", page.Next, rest, limit)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, live) {
			t.Errorf("limit %d: %d sessions, not the %d live ones in order", limit, len(got), len(live))
		}
	}
	w.logoutAll("ann", "")
	if got := w.list("ann"); len(got) != 0 {
		t.Errorf("%d sessions after logout-all", len(got))
	}
}
