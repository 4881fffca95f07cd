package sessiontest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coordsvc/coordsvc/session"
)

const rounds = 20

// together runs the functions at once and waits for all.
func together(fns ...func()) {
	var ready, done sync.WaitGroup
	ready.Add(len(fns))
	for _, fn := range fns {
		done.Go(func() {
			ready.Done()
			ready.Wait()
			fn()
		})
	}
	done.Wait()
}

// four is as many callers as a race needs to be one.
func four(fn func()) []func() { return []func(){fn, fn, fn, fn} }

// S15CreateAgainstLogoutAll races them: each login is before or after each logout-all.
// Before: it carries the old version and is dead. After: the new one, and it lives. One
// that began after the logout-all had returned, or ended before it began, has no choice.
func S15CreateAgainstLogoutAll(t *testing.T, open Open) {
	w := start(t, open)
	type login struct {
		token      string
		s          session.Session
		began, end int64
	}
	old, fresh := 0, 0
	for range rounds {
		var step atomic.Int64
		var mu sync.Mutex
		var logins []login
		create := func() {
			for range 3 {
				l, err := login{began: step.Add(1)}, error(nil)
				if l.token, l.s, err = w.create(session.CreateRequest{UserID: "ann"}); err != nil {
					t.Error(err)
					return
				}
				l.end = step.Add(1)
				mu.Lock()
				logins = append(logins, l)
				mu.Unlock()
			}
		}
		var began, end, version int64
		logout := func() {
			began = step.Add(1)
			e, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", "")
			if err != nil {
				t.Error(err)
			}
			end, version = step.Add(1), e.SessionVersion
		}
		together(append(four(create), logout)...)
		for _, l := range logins {
			got := w.look(l.token)
			switch {
			case l.s.SessionVersion == version-1 && got == session.Epoch && l.began < end:
				old++
			case l.s.SessionVersion == version && got == "" && l.end > began:
				fresh++
			default:
				t.Fatalf("a session with version %d is answered %q after the logout-all to %d; it was made from %d to %d, the logout-all from %d to %d",
					l.s.SessionVersion, got, version, l.began, l.end, began, end)
			}
		}
		w.logoutAll("ann", "")
	}
	t.Logf("%d logins before the logout-all, %d after", old, fresh)
}

// VersionAgainstLogoutAll races them: a login that expects the version from before
// a logout-all never survives it.
func VersionAgainstLogoutAll(t *testing.T, open Open) {
	w := start(t, open)
	var before, refused atomic.Int64
	for range rounds {
		version := w.epochs("ann").SessionVersion
		create := func() {
			switch _, s, err := w.create(session.CreateRequest{UserID: "ann", ExpectedVersion: &version}); {
			case errors.Is(err, session.ErrEpochMismatch):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			case s.SessionVersion != version:
				t.Errorf("made with version %d, expected %d", s.SessionVersion, version)
			default:
				before.Add(1)
			}
		}
		logout := func() {
			if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", ""); err != nil {
				t.Error(err)
			}
		}
		together(append(four(create), logout)...)
		if got := w.list("ann"); len(got) != 0 {
			t.Fatalf("%d sessions survived", len(got))
		}
	}
	t.Logf("%d logins before the logout-all, %d refused", before.Load(), refused.Load())
}

// DisableAgainstCreate races them: after a disable has returned no session of the user is good,
// whichever of the two was first.
func DisableAgainstCreate(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds {
		create := func() {
			if _, _, err := w.create(session.CreateRequest{UserID: "ann"}); err != nil && !errors.Is(err, session.ErrUserDisabled) {
				t.Error(err)
			}
		}
		disable := func() {
			if _, err := w.m.Disable(t.Context(), w.tenant, "ann"); err != nil {
				t.Error(err)
			}
		}
		together(append(four(create), disable)...)
		if got := w.list("ann"); len(got) != 0 {
			t.Fatalf("%d sessions of a disabled user", len(got))
		}
		if _, err := w.m.Enable(t.Context(), w.tenant, "ann"); err != nil {
			t.Fatal(err)
		}
		if got := w.list("ann"); len(got) != 0 {
			t.Fatalf("%d sessions from before the user was enabled", len(got))
		}
	}
}

// KeepAgainstRevoke races them: a session that is revoked while a logout-all keeps it, and
// while its uses are recorded, is dead whichever was first.
func KeepAgainstRevoke(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds {
		token, s := w.login("ann")
		w.pass(slack)
		revoked := make(chan struct{})
		use := func() {
			w.verify(token, session.VerifyRequest{})
			<-revoked
			if v := w.verify(token, session.VerifyRequest{}); v.Active {
				t.Error("active after its revocation had returned")
			}
		}
		revoke := func() {
			defer close(revoked)
			if err := second(w.m.Revoke(t.Context(), w.tenant, token)); err != nil {
				t.Error(err)
			}
		}
		keep := func() {
			if _, err := w.m.LogoutAll(t.Context(), w.tenant, "ann", token); err != nil && !errors.Is(err, session.ErrNotActive) {
				t.Error(err)
			}
		}
		together(append(four(use), revoke, keep)...)
		w.want("revoked", token, s, session.Revoked)
	}
}

// KeepAgainstKeep races them: of two logout-alls that each keep another session one wins, and
// its session alone lives.
func KeepAgainstKeep(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds {
		a, sa := w.login("ann")
		b, sb := w.login("ann")
		var errs [2]error
		together(
			func() { _, errs[0] = w.m.LogoutAll(t.Context(), w.tenant, "ann", a) },
			func() { _, errs[1] = w.m.LogoutAll(t.Context(), w.tenant, "ann", b) },
		)
		switch {
		case errs[0] == nil && errors.Is(errs[1], session.ErrNotActive):
			w.want("the winner's", a, sa, "")
			w.want("the loser's", b, sb, session.Epoch)
		case errs[1] == nil && errors.Is(errs[0], session.ErrNotActive):
			w.want("the winner's", b, sb, "")
			w.want("the loser's", a, sa, session.Epoch)
		default:
			t.Fatalf("both or none: %v, %v", errs[0], errs[1])
		}
		w.logoutAll("ann", "")
	}
}
