package sessiontest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

func (w *world) rotate(token string, req session.RotateRequest) (string, session.Session) {
	w.Helper()
	r, err := w.m.Rotate(w.Context(), w.tenant, token, req)
	w.must("rotate", err)
	return r.Token.Reveal(), r.Session
}

// S23S24S50Rotate is about the token before a rotation: it gains nothing, yields nothing, and ends with its grace.
func S23S24S50Rotate(t *testing.T, open Open) {
	w := start(t, open)
	old, s := w.login("ann")
	other, so := w.login("ann")
	w.pass(time.Second)
	if _, err := w.m.BumpPermissions(t.Context(), w.tenant, "ann"); err != nil {
		t.Fatal(err)
	}
	next, stepped := w.rotate(old, session.RotateRequest{AAL: 2, AMR: []string{"pwd", "otp"}})
	if next == old || stepped.Handle != s.Handle || !stepped.ExpiresAt.Equal(s.ExpiresAt) || stepped.AAL != 2 ||
		!slices.Equal(stepped.AMR, []string{"pwd", "otp"}) || !stepped.AuthAt.Equal(w.instant()) || stepped.PermissionEpoch != 2 {
		t.Errorf("stepped up: %+v of %+v", stepped, s)
	}
	for _, step := range []struct {
		why, token string
		req        session.VerifyRequest
		want       session.Reason
		old        bool
	}{
		{"the new token has the level", next, session.VerifyRequest{MinAAL: 2}, "", false},
		{"the old one verifies in its grace", old, session.VerifyRequest{}, "", true},
		{"but at its own level", old, session.VerifyRequest{MinAAL: 2}, session.AAL, true},
		{"and with its own login", old, session.VerifyRequest{MaxAuthAge: time.Second - time.Millisecond}, session.AuthAge, true},
		{"of its user", old, session.VerifyRequest{UserID: "bob"}, session.Unknown, false},
		{"another session is none of it", other, session.VerifyRequest{MinAAL: 2}, session.AAL, false},
	} {
		if v := w.verify(step.token, step.req); v.Reason != step.want || v.OldToken != step.old {
			t.Errorf("%s: %q, old token %v", step.why, v.Reason, v.OldToken)
		}
	}
	if v := w.verify(old, session.VerifyRequest{}); v.Session.AAL != 1 || v.Session.AMR != nil || !v.Session.AuthAt.Equal(s.AuthAt) {
		t.Errorf("the old token says %+v", v.Session)
	}
	if v := w.verify(next, session.VerifyRequest{}); v.PermissionsStale {
		t.Error("permissions are stale after the rotation")
	}
	w.cannot("in its grace", old)
	w.pass(session.Grace - time.Millisecond)
	if v := w.verify(old, session.VerifyRequest{}); !v.Active || !v.OldToken {
		t.Errorf("at the end of the grace: %+v", v)
	}
	w.pass(time.Millisecond)
	for range 2 {
		if v := w.verify(old, session.VerifyRequest{}); v.Reason != session.Rotated || !v.OldToken {
			t.Errorf("after the grace: %+v", v)
		}
	}
	w.cannot("after its grace", old)
	w.want("all the while", next, stepped, "")

	third, again := w.rotate(next, session.RotateRequest{})
	if again.AAL != 2 || !again.AuthAt.Equal(stepped.AuthAt) || !slices.Equal(again.AMR, stepped.AMR) {
		t.Errorf("rotated without a proof: %+v", again)
	}
	if v := w.verify(old, session.VerifyRequest{}); v.Reason != session.Unknown || v.OldToken {
		t.Errorf("the token before the previous one: %+v", v)
	}
	if _, kept := w.rotate(third, session.RotateRequest{AAL: 1}); kept.AAL != 2 || !kept.AuthAt.Equal(w.instant()) {
		t.Errorf("a lower level was proved: %+v", kept)
	}
	w.want("the other", other, so, "")
}

// cannot demands that the token neither rotates nor is kept.
func (w *world) cannot(why, token string) {
	w.Helper()
	if err := second(w.m.Rotate(w.Context(), w.tenant, token, session.RotateRequest{AAL: 3})); !errors.Is(err, session.ErrNotActive) {
		w.Errorf("%s it rotates: %v", why, err)
	}
	if err := second(w.m.LogoutAll(w.Context(), w.tenant, "ann", token)); !errors.Is(err, session.ErrNotActive) {
		w.Errorf("%s it is kept: %v", why, err)
	}
}

// RotateDead refuses to rotate what is not good.
func RotateDead(t *testing.T, open Open) {
	w := start(t, open)
	revoked, s := w.login("ann")
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, revoked)))
	good, _ := w.login("ann")
	idle, _ := w.login("bob")
	foreign := w.foreign(open, "ann")
	for why, token := range map[string]string{
		"no token": "x", "a handle": s.Handle, "a revoked one": revoked, "another tenant's": foreign,
		"another secret's": forge(s.Handle, strings.Repeat("0", 43)),
	} {
		if err := second(w.m.Rotate(t.Context(), w.tenant, token, session.RotateRequest{})); !errors.Is(err, session.ErrNotActive) {
			t.Errorf("rotating %s: %v", why, err)
		}
	}
	w.logoutAll("ann", "")
	w.pass(idleTime + slack)
	for why, token := range map[string]string{"a logged out one": good, "an idle one": idle} {
		if err := second(w.m.Rotate(t.Context(), w.tenant, token, session.RotateRequest{})); !errors.Is(err, session.ErrNotActive) {
			t.Errorf("rotating %s: %v", why, err)
		}
	}
	if e := w.epochs("ann"); e.SessionVersion != 2 {
		t.Errorf("epochs %+v", e)
	}
}

// S5S6RotateKeepsTheEnd is about a session that rotates all its life: that does not get longer.
func S5S6RotateKeepsTheEnd(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	for range int(absolute/time.Second) - 1 {
		w.pass(time.Second)
		next, r := w.rotate(token, session.RotateRequest{})
		if !r.ExpiresAt.Equal(s.ExpiresAt) || r.IdleExpiresAt.After(s.ExpiresAt) {
			t.Fatalf("%+v of %+v", r, s)
		}
		token = next
	}
	w.pass(time.Second)
	w.want("at the end", token, s, session.Expired)
}

// RevokeByThePrevious ends a session by the token before its rotation, in its grace and after it.
func RevokeByThePrevious(t *testing.T, open Open) {
	w := start(t, open)
	for _, pass := range []time.Duration{0, session.Grace} {
		old, s := w.login("ann")
		next, _ := w.rotate(old, session.RotateRequest{})
		w.pass(pass)
		w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, old)))
		w.want("revoked by the old token", next, s, session.Revoked)
	}
}

// RotateAgainstRevoke races them: the session is dead whichever was first.
func RotateAgainstRevoke(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds {
		token, s := w.login("ann")
		next := token
		rotate := func() {
			switch r, err := w.m.Rotate(t.Context(), w.tenant, token, session.RotateRequest{}); {
			case err == nil:
				next = r.Token.Reveal()
			case !errors.Is(err, session.ErrNotActive):
				t.Error(err)
			}
		}
		revoke := func() {
			if err := second(w.m.Revoke(t.Context(), w.tenant, token)); err != nil {
				t.Error(err)
			}
		}
		together(rotate, revoke)
		w.want("revoked", next, s, session.Revoked)
	}
}

// RotateAgainstRotate races them: of two rotations by one token one wins.
func RotateAgainstRotate(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds {
		token, s := w.login("ann")
		var results [2]session.Rotation
		var errs [2]error
		rotate := func(i int) func() {
			return func() { results[i], errs[i] = w.m.Rotate(t.Context(), w.tenant, token, session.RotateRequest{}) }
		}
		together(rotate(0), rotate(1))
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil || !errors.Is(errs[1-winner], session.ErrNotActive) {
			t.Fatalf("both or none: %v, %v", errs[0], errs[1])
		}
		w.want("the winner's", results[winner].Token.Reveal(), s, "")
	}
}
