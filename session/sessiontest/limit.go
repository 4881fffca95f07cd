package sessiontest

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// Limit is the most sessions that a login may make of a user's.
func Limit(t *testing.T, open Open) {
	w := start(t, open)
	login := func(limit int) (string, session.Session, error) {
		return w.create(session.CreateRequest{UserID: "ann", MaxSessions: limit})
	}
	first, s, err := login(2)
	w.must("the first", err)
	_, _, err = login(2)
	w.must("the second", err)
	w.refused("the third", second3(login(2)))
	if got := len(w.list("ann")); got != 2 {
		t.Errorf("%d sessions", got)
	}
	w.want("nobody was evicted", first, s, "")
	unlimited, su, err := login(0)
	w.must("without a limit", err)
	w.refused("beside one without a limit", second3(login(3)))
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, unlimited)))
	w.want("revoked", unlimited, su, session.Revoked)
	if _, _, err = login(3); err != nil {
		t.Errorf("after a revocation: %v", err)
	}
	w.logoutAll("ann", "")
	after, sa, err := login(1)
	w.must("after logout-all", err)

	w.pass(idleTime + slack - time.Millisecond)
	w.refused("nearly idle", second3(login(1)))
	w.pass(time.Millisecond)
	_, _, err = login(1)
	w.must("after it went idle", err)
	w.want("the idle one is ended for good", after, sa, session.Revoked)
	w.pass(-time.Second)
	w.want("whatever the clock", after, sa, session.Revoked)
	w.pass(absolute)
	_, _, err = login(1)
	w.must("after all expired", err)
}

func (w *world) refused(why string, err error) {
	w.Helper()
	if !errors.Is(err, session.ErrLimit) {
		w.Errorf("%s: %v", why, err)
	}
}

func second3[A, B any](_ A, _ B, err error) error { return err }

// LimitAgainstLimit races logins: the limit holds, and is reached.
func LimitAgainstLimit(t *testing.T, open Open) {
	w := start(t, open)
	for range rounds / 4 {
		var made atomic.Int64
		login := func() {
			switch _, _, err := w.create(session.CreateRequest{UserID: "ann", MaxSessions: 3}); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, session.ErrLimit):
				t.Error(err)
			}
		}
		together(login, login, login, login, login, login)
		if got := len(w.list("ann")); got != 3 || made.Load() != 3 {
			t.Fatalf("%d sessions live, %d made, limit 3", got, made.Load())
		}
		w.logoutAll("ann", "")
	}
}
