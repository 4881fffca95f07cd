package sessiontest

import (
	"testing"

	"github.com/coordsvc/coordsvc/session"
)

// Versions is about what a cache lives by: the user's version rises with each change
// that can alter a verify, by one, and with nothing else. It is of a [session.Durable].
func Versions(t *testing.T, open Open) {
	w := start(t, open)
	store, ok := w.store.(session.Durable)
	if !ok {
		t.Fatal("not a durable store")
	}
	token, s := w.login("ann")
	tag := s.Handle[4:26]
	version := int64(1)
	for _, step := range []struct {
		why string
		do  func() error
		by  int64
	}{
		{"a login", func() error { w.login("ann"); return nil }, 0},
		{"a use", func() error { w.pass(slack); w.verify(token, session.VerifyRequest{}); return nil }, 0},
		{"data", func() error { return second(w.m.SetData(t.Context(), w.tenant, s.Handle, 0, []byte(`1`))) }, 0},
		{"a rotation", func() error { token, _ = w.rotate(token, session.RotateRequest{}); return nil }, 1},
		{"a refused rotation", func() error { _ = second(w.m.Rotate(t.Context(), w.tenant, "x", session.RotateRequest{})); return nil }, 0},
		{"logout-all but one", func() error { return second(w.m.LogoutAll(t.Context(), w.tenant, "ann", token)) }, 1},
		{"a login within a limit", func() error { return second3(w.create(session.CreateRequest{UserID: "ann", MaxSessions: 9})) }, 0},
		{"an idle session that is ended", func() error {
			w.pass(idleTime + slack)
			return second3(w.create(session.CreateRequest{UserID: "ann", MaxSessions: 9}))
		}, 1},
		{"a revocation", func() error {
			fresh, _ := w.login("ann")
			return second(w.m.Revoke(t.Context(), w.tenant, fresh))
		}, 1},
		{"a revocation of what was ended", func() error { return second(w.m.Revoke(t.Context(), w.tenant, token)) }, 0},
		{"logout-all", func() error { return second(w.m.LogoutAll(t.Context(), w.tenant, "ann", "")) }, 1},
		{"permissions", func() error { return second(w.m.BumpPermissions(t.Context(), w.tenant, "ann")) }, 1},
		{"disable", func() error { return second(w.m.Disable(t.Context(), w.tenant, "ann")) }, 1},
		{"a refused login", func() error { _ = second3(w.create(session.CreateRequest{UserID: "ann"})); return nil }, 0},
		{"enable", func() error { return second(w.m.Enable(t.Context(), w.tenant, "ann")) }, 1},
		{"erase", func() error { return second(w.m.Erase(t.Context(), w.tenant, "ann")) }, 1},
	} {
		w.must(step.why, step.do())
		u, err := store.LoadUser(t.Context(), tag)
		w.must("load the user", err)
		if u.Version != version+step.by {
			t.Errorf("%s: version %d after %d, want %d more", step.why, u.Version, version, step.by)
		}
		version = u.Version
	}
}

// LoadAndTouch is what a cache is filled from, and how it hands uses on.
func LoadAndTouch(t *testing.T, open Open) {
	w := start(t, open)
	store, ok := w.store.(session.Durable)
	if !ok {
		t.Fatal("not a durable store")
	}
	token, s := w.login("ann")
	k := session.Key{Tenant: w.tenant, Tag: s.Handle[4:26], ID: s.Handle[26:]}
	at := w.instant().UnixMilli()
	seen := func(why string, want int64) {
		t.Helper()
		u, r, err := store.Load(t.Context(), k)
		w.must("load", err)
		if u.User != "ann" || u.Tenant != w.tenant || r.Seen != want {
			t.Errorf("%s: seen %d, want %d, of %+v", why, r.Seen, want, u)
		}
	}
	for _, step := range []struct {
		why        string
		used, want int64
	}{{"as made", at, at}, {"a use", at + 5, at + 5}, {"an older use", at + 4, at + 5}, {"a newer use", at + 9, at + 9}} {
		w.must(step.why, store.Touch(t.Context(), k, step.used))
		seen(step.why, step.want)
	}
	nobody := k
	nobody.ID = id("nobody")
	w.must("touch nobody's", store.Touch(t.Context(), nobody, at+20))
	if _, r, err := store.Load(t.Context(), nobody); err != nil || r.State != "" {
		t.Errorf("a touch made %+v, %v", r, err)
	}
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
	w.must("touch a revoked one", store.Touch(t.Context(), k, at+20))
	seen("revoked", at+9)
	nobody.Tag = id("nobody at all")
	if u, r, err := store.Load(t.Context(), nobody); err != nil || u.Version != 0 || r.State != "" {
		t.Errorf("nobody: %+v %+v %v", u, r, err)
	}
}
