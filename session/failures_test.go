package session_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

// The rows of the list of known failures that every store must pass are cases of
// sessiontest; here they have their names, and what is left asks about one process.

func TestS1S2S3LateTouch(t *testing.T)           { onEach(t, sessiontest.S1S2S3LateTouch) }
func TestS5S6AbsoluteNeverMoves(t *testing.T)    { onEach(t, sessiontest.S5S6AbsoluteNeverMoves) }
func TestS1S8S11DataAfterTheEnd(t *testing.T)    { onEach(t, sessiontest.S1S8S11DataAfterTheEnd) }
func TestS5S6RotateKeepsTheEnd(t *testing.T)     { onEach(t, sessiontest.S5S6RotateKeepsTheEnd) }
func TestS23S24S50Rotate(t *testing.T)           { onEach(t, sessiontest.S23S24S50Rotate) }
func TestS10ExpiredIsFiltered(t *testing.T)      { onEach(t, sessiontest.S10ExpiredIsFiltered) }
func TestS15CreateAgainstLogoutAll(t *testing.T) { onEach(t, sessiontest.S15CreateAgainstLogoutAll) }
func TestS22ForeignID(t *testing.T)              { onEach(t, sessiontest.S22ForeignID) }
func TestS27S28Assurance(t *testing.T)           { onEach(t, sessiontest.S27S28Assurance) }
func TestS30Epoch(t *testing.T)                  { onEach(t, sessiontest.S30Epoch) }
func TestS31PermissionsStale(t *testing.T)       { onEach(t, sessiontest.S31PermissionsStale) }
func TestS32IDsAreNotReused(t *testing.T)        { onEach(t, sessiontest.S32IDsAreNotReused) }
func TestS36SecretDecides(t *testing.T)          { onEach(t, sessiontest.S36SecretDecides) }
func TestS41OddIDs(t *testing.T)                 { onEach(t, sessiontest.S41OddIDs) }
func TestS42TenantsNeverMeet(t *testing.T)       { onEach(t, sessiontest.S42TenantsNeverMeet) }

func onEach(t *testing.T, run func(*testing.T, sessiontest.Open)) {
	t.Run("memory", func(t *testing.T) { run(t, openMemory) })
	t.Run("file", func(t *testing.T) { run(t, openFastFile) })
}

// The use was decided on a state in which the session was good; by the time it is
// written the session has ended.
func TestS2TouchDecidesAnew(t *testing.T) {
	for _, step := range []struct {
		why  string
		end  func(h *here)
		want session.Reason
	}{
		{"revoked", func(h *here) { h.must(second(h.m.Revoke(t.Context(), "acme", h.token))) }, session.Revoked},
		{"logged out", func(h *here) { h.epochs(h.m.LogoutAll(t.Context(), "acme", "ann", "")) }, session.Epoch},
		{"disabled", func(h *here) { h.epochs(h.m.Disable(t.Context(), "acme", "ann")) }, session.Disabled},
	} {
		h := newHere(t)
		h.pass(2 * time.Second)
		h.store.beforeUpdate = func() { step.end(h) }
		if v := h.verify(); v.Reason != step.want {
			t.Errorf("%s: a late use is answered %q", step.why, v.Reason)
		}
		if h.store.beforeUpdate != nil {
			t.Fatalf("%s: the use was not due, so this shows nothing", step.why)
		}
		if v := h.verify(); v.Reason != step.want {
			t.Errorf("%s: after a late use it is answered %q", step.why, v.Reason)
		}
	}
}

func TestS8TouchNeverCreates(t *testing.T) {
	h := newHere(t)
	h.pass(2 * time.Second)
	h.store.beforeUpdate = func() {
		h.must(h.store.Store.Update(t.Context(), func(tx kv.Tx) error {
			tx.Scan(keytype.Session.Bucket(), "", "", func(key string, _ []byte) bool {
				tx.Delete(keytype.Session.Bucket(), key)
				return true
			})
			return nil
		}))
	}
	if v := h.verify(); v.Reason != session.Unknown {
		t.Errorf("verify of a session that is gone: %q", v.Reason)
	}
	h.must(second(h.m.Revoke(t.Context(), "acme", h.token)))
	if err := second(h.m.RevokeHandle(t.Context(), "acme", h.s.Handle)); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("revoke: %v", err)
	}
	if _, err := h.m.LogoutAll(t.Context(), "acme", "ann", h.token); !errors.Is(err, session.ErrNotActive) {
		t.Errorf("keep: %v", err)
	}
	if got := h.items()[keytype.Session.Bucket()]; len(got) != 0 {
		t.Errorf("a stub was made: %v", got)
	}
}

// Logging out everywhere finds no session, so it cannot miss one.
func TestS14LogoutAllIsOneWriteToTheUser(t *testing.T) {
	const sessions = 10_000
	h := newHere(t)
	tokens := []string{h.token}
	for range sessions - 1 {
		tokens = append(tokens, h.login())
	}
	before := h.items()
	h.store.puts = nil
	h.epochs(h.m.LogoutAll(t.Context(), "acme", "ann", ""))
	if want := keytype.UserEpoch.Bucket(); len(h.store.puts) != 1 || h.store.puts[0] != want {
		t.Errorf("logout-all of %d sessions wrote to %v, want one write to %s", sessions, h.store.puts, want)
	}
	after := h.items()
	for key, value := range before[keytype.Session.Bucket()] {
		if after[keytype.Session.Bucket()][key] != value {
			t.Fatalf("session %s was changed", key)
		}
	}
	for _, token := range tokens {
		if v, err := h.m.Verify(t.Context(), "acme", token, session.VerifyRequest{}); err != nil || v.Reason != session.Epoch {
			t.Fatalf("after logout-all: %+v %v", v, err)
		}
	}
	h.store.puts = nil
	kept := h.login()
	h.store.puts = nil
	h.epochs(h.m.LogoutAll(t.Context(), "acme", "ann", kept))
	if len(h.store.puts) != 2 {
		t.Errorf("logout-all but one wrote to %v, want the user and the one", h.store.puts)
	}
}

func TestS19EndingsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coordsvc.db")
	now := time.Now()
	reopen := func() (*session.Manager, func()) {
		store, err := kv.Open(path, kv.BoltOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m := session.New(session.NewLocal(store), session.Options{RouteKey: make([]byte, 32), Now: func() time.Time { return now }})
		return m, func() { closeStore(t, store) }
	}
	m, closeAll := reopen()
	tokens := map[string]string{}
	for _, user := range []string{"revoked", "logged out", "disabled", "enabled", "kept", "fine"} {
		token, _, err := m.Create(t.Context(), "acme", session.CreateRequest{UserID: user})
		if err != nil {
			t.Fatal(err)
		}
		tokens[user] = token.Reveal()
	}
	for what, err := range map[string]error{
		"revoke":     second(m.Revoke(t.Context(), "acme", tokens["revoked"])),
		"logout-all": second(m.LogoutAll(t.Context(), "acme", "logged out", "")),
		"disable":    second(m.Disable(t.Context(), "acme", "disabled")),
		"enable":     second(m.Enable(t.Context(), "acme", "enabled")),
		"keep":       second(m.LogoutAll(t.Context(), "acme", "kept", tokens["kept"])),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	closeAll()
	m, closeAll = reopen()
	defer closeAll()
	for user, want := range map[string]session.Reason{
		"revoked": session.Revoked, "logged out": session.Epoch, "disabled": session.Disabled, "enabled": session.Epoch, "kept": "", "fine": "",
	} {
		if v, err := m.Verify(t.Context(), "acme", tokens[user], session.VerifyRequest{}); err != nil || v.Reason != want {
			t.Errorf("%s: %q %v after a restart, want %q", user, v.Reason, err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestS34DeadSessionsDoNotPileUp(t *testing.T) {
	h := newHere(t)
	for i := range 50 {
		token := h.login()
		if i%2 == 0 {
			h.must(second(h.m.Revoke(t.Context(), "acme", token)))
		}
	}
	h.pass(30 * time.Second)
	fresh := h.login()
	if got := h.list(); len(got) != 1 {
		t.Errorf("%d listed before the sweep", len(got))
	}
	h.sweep()
	if got := len(h.items()[keytype.Session.Bucket()]); got != 52 {
		t.Errorf("%d records before the absolute end of any, want 52: revocations are remembered as long as the session could live", got)
	}
	h.pass(30 * time.Second)
	h.sweep()
	if got := len(h.items()[keytype.Session.Bucket()]); got != 1 {
		t.Errorf("%d records after the absolute end of all but one", got)
	}
	if got := h.list(); len(got) != 0 {
		t.Errorf("the fresh one was idle for 30 s, listed %v", got)
	}
	for token, want := range map[string]session.Reason{h.token: session.Unknown, fresh: session.IdleExpired} {
		if v, err := h.m.Verify(t.Context(), "acme", token, session.VerifyRequest{}); err != nil || v.Reason != want {
			t.Errorf("%q %v, want %q", v.Reason, err, want)
		}
	}
	if got := len(h.items()[keytype.UserEpoch.Bucket()]); got != 1 {
		t.Errorf("%d user records", got)
	}
}

// A token's secret leaves through Reveal alone: not into the file, an error or a value that a log prints.
func TestS38CanaryIsNowhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coordsvc.db")
	store, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := session.New(session.NewLocal(store), session.Options{RouteKey: make([]byte, 32)})
	token, s, err := m.Create(t.Context(), "acme", session.CreateRequest{UserID: "ann-the-canary"})
	if err != nil {
		t.Fatal(err)
	}
	canary := token.Reveal()
	secret := canary[len("cst_")+44:][:43]
	v, err := m.Verify(t.Context(), "acme", canary, session.VerifyRequest{})
	said := []string{fmt.Sprintf("%+v %#v %v %+v %v", token, token, s, v, err)}
	_, keepErr := m.LogoutAll(t.Context(), "acme", "bob", canary)
	_, cursorErr := m.List(t.Context(), "acme", "ann-the-canary", canary, 0)
	_, getErr := m.Get(t.Context(), "acme", canary)
	said = append(said, fmt.Sprint(keepErr, cursorErr, getErr, second(m.RevokeHandle(t.Context(), "acme", canary)), second(m.Revoke(t.Context(), "acme", canary))))
	closeStore(t, store)
	_, err = m.Verify(t.Context(), "acme", canary, session.VerifyRequest{})
	said = append(said, fmt.Sprint(err, second(m.Revoke(t.Context(), "acme", canary))))
	if err == nil {
		t.Error("a closed store gave a verdict")
	}
	for _, text := range said {
		if strings.Contains(text, secret) {
			t.Errorf("the secret was told: %s", text)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(raw, []byte("ann-the-canary")) {
		t.Error("the file does not even show the user, so this shows nothing")
	}
	if bytes.Contains(raw, []byte(secret)) {
		t.Error("the secret is in the file")
	}
}

// Every item is of one type, under a key that only this type builds.
func TestS40ItemsAreTyped(t *testing.T) {
	h := newHere(t)
	for _, user := range []string{"session", "user_epoch", "22:x", "}{", "bob"} {
		_, _, err := h.m.Create(t.Context(), "acme", session.CreateRequest{UserID: user})
		h.must(err)
		h.epochs(h.m.Disable(t.Context(), "session", user))
	}
	parts := map[string]int{}
	for bucket, items := range h.items() {
		kind, known := keytype.ByName(bucket)
		if !known || kind != keytype.Session && kind != keytype.UserEpoch {
			t.Fatalf("items in %q", bucket)
		}
		for key, value := range items {
			parts[bucket]++
			names, ok := kind.Split(key)
			if !ok || value[0] != '1' {
				t.Errorf("%s %q = %q", bucket, key, value)
			}
			for _, name := range names {
				if len(name) != 22 {
					t.Errorf("%s %q: a part of %d bytes", bucket, key, len(name))
				}
			}
		}
	}
	if parts["session"] != 6 || parts["user_epoch"] != 11 {
		t.Errorf("items: %v", parts)
	}
}
