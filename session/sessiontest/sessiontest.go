// Package sessiontest decides whether a session.Store keeps its contract.
//
// A case whose name begins with an id checks the row with that id of the list of
// known failures in this field.
package sessiontest

import (
	"fmt"
	"hash/crc32"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// Open gives a store for one test. It may be shared with other tests: each case
// has tenants of its own.
type Open func(t *testing.T) session.Store

// Run runs the whole suite but [History].
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"Lifecycle", Lifecycle},
		{"Demands", Demands},
		{"Idle", Idle},
		{"S1S2S3LateTouch", S1S2S3LateTouch},
		{"S5S6AbsoluteNeverMoves", S5S6AbsoluteNeverMoves},
		{"S10ExpiredIsFiltered", S10ExpiredIsFiltered},
		{"S15CreateAgainstLogoutAll", S15CreateAgainstLogoutAll},
		{"S22ForeignID", S22ForeignID},
		{"S27S28Assurance", S27S28Assurance},
		{"S30Epoch", S30Epoch},
		{"S31PermissionsStale", S31PermissionsStale},
		{"S32IDsAreNotReused", S32IDsAreNotReused},
		{"S36SecretDecides", S36SecretDecides},
		{"S41OddIDs", S41OddIDs},
		{"S42TenantsNeverMeet", S42TenantsNeverMeet},
		{"S23S24S50Rotate", S23S24S50Rotate},
		{"RotateDead", RotateDead},
		{"S5S6RotateKeepsTheEnd", S5S6RotateKeepsTheEnd},
		{"RevokeByThePrevious", RevokeByThePrevious},
		{"RotateAgainstRevoke", RotateAgainstRevoke},
		{"RotateAgainstRotate", RotateAgainstRotate},
		{"DataVersions", DataVersions},
		{"S1S8S11DataAfterTheEnd", S1S8S11DataAfterTheEnd},
		{"DataAgainstData", DataAgainstData},
		{"Limit", Limit},
		{"LimitAgainstLimit", LimitAgainstLimit},
		{"Disable", Disable},
		{"Erase", Erase},
		{"LogoutTenant", LogoutTenant},
		{"Keep", Keep},
		{"KeepAgainstRevoke", KeepAgainstRevoke},
		{"KeepAgainstKeep", KeepAgainstKeep},
		{"DisableAgainstCreate", DisableAgainstCreate},
		{"VersionAgainstLogoutAll", VersionAgainstLogoutAll},
		{"List", func(t *testing.T, open Open) { List(t, open, 250) }},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
}

// RunDurable runs the suite on a [session.Durable], which a cache may stand before.
func RunDurable(t *testing.T, open Open) {
	Run(t, open)
	t.Run("Versions", func(t *testing.T) { Versions(t, open) })
	t.Run("LoadAndTouch", func(t *testing.T) { LoadAndTouch(t, open) })
}

var tenants atomic.Int64

// newTenant names a tenant that no other case uses, also in a store that outlives the process.
func newTenant() string {
	return fmt.Sprintf("tenant-%d-%d", time.Now().UnixNano(), tenants.Add(1))
}

// routeKey routes the users of every case.
var routeKey = []byte("0123456789abcdefghijklmnopqrstuv")

// A world is a manager over the store under test, with a clock that only moves
// when it is told to.
type world struct {
	*testing.T
	m      *session.Manager
	store  session.Store
	tenant string
	now    atomic.Int64 // Unix microseconds: finer than what is stored
}

func start(t *testing.T, open Open) *world {
	w := &world{T: t, store: open(t), tenant: newTenant()}
	w.now.Store(time.Now().UnixMilli()*1_000 + 789)
	w.m = session.New(w.store, session.Options{RouteKey: routeKey, Now: w.clock})
	return w
}

func (w *world) clock() time.Time { return time.UnixMicro(w.now.Load()) }

// instant is the clock as the manager takes it.
func (w *world) instant() time.Time { return w.clock().Truncate(time.Millisecond).UTC() }

func (w *world) pass(d time.Duration) { w.now.Add(d.Microseconds()) }

// login starts a session that lives a minute and goes idle after 10 s, so D is 2 s.
func (w *world) login(user string) (string, session.Session) {
	w.Helper()
	token, s, err := w.create(session.CreateRequest{UserID: user})
	if err != nil {
		w.Fatalf("login of %q: %v", user, err)
	}
	return token, s
}

const (
	absolute = time.Minute
	idleTime = 10 * time.Second
	slack    = idleTime / 5
)

func (w *world) create(req session.CreateRequest) (string, session.Session, error) {
	w.Helper()
	if req.AbsoluteTTL == 0 {
		req.AbsoluteTTL, req.IdleTTL = absolute, idleTime
	}
	token, s, err := w.m.Create(w.Context(), w.tenant, req)
	return token.Reveal(), s, err
}

func (w *world) verify(token string, req session.VerifyRequest) session.Verdict {
	w.Helper()
	v, err := w.m.Verify(w.Context(), w.tenant, token, req)
	if err != nil {
		w.Errorf("verify: %v", err)
	}
	if v.Active != (v.Reason == "") {
		w.Errorf("active %v with reason %q", v.Active, v.Reason)
	}
	return v
}

// look judges a token without using it.
func (w *world) look(token string) session.Reason {
	w.Helper()
	return w.verify(token, session.VerifyRequest{NoTouch: true}).Reason
}

// want checks all that can be seen of a session: "" for a live one.
func (w *world) want(why, token string, s session.Session, reason session.Reason) {
	w.Helper()
	if got := w.look(token); got != reason {
		w.Errorf("%s: verify says %q, want %q", why, got, reason)
	}
	_, err := w.m.Get(w.Context(), w.tenant, s.Handle)
	if (err == nil) != (reason == "") || err != nil && err != session.ErrNotFound { //nolint:errorlint // exactly this one
		w.Errorf("%s: get says %v, verify should say %q", why, err, reason)
	}
	listed := false
	for _, other := range w.list(s.UserID) {
		listed = listed || other.Handle == s.Handle
	}
	if listed != (reason == "") {
		w.Errorf("%s: listed %v, verify should say %q", why, listed, reason)
	}
}

// list reads every page.
func (w *world) list(user string) (all []session.Session) {
	w.Helper()
	for cursor := ""; ; {
		page, err := w.m.List(w.Context(), w.tenant, user, cursor, 0)
		if err != nil {
			w.Fatalf("list: %v", err)
		}
		if all = append(all, page.Sessions...); page.Next == "" {
			return all
		}
		cursor = page.Next
	}
}

func (w *world) must(what string, err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

func second[T any](_ T, err error) error { return err }

func (w *world) epochs(user string) session.Epochs {
	w.Helper()
	e, err := w.m.Epochs(w.Context(), w.tenant, user)
	w.must("epochs", err)
	return e
}

func (w *world) logoutAll(user, except string) session.Epochs {
	w.Helper()
	c, err := w.m.LogoutAll(w.Context(), w.tenant, user, except)
	w.must("logout-all", err)
	return c.Epochs
}

// forge writes a token for the handle's session with a secret of the forger's
// own, spelled independently of the package under test.
func forge(handle, secret string) string {
	body := "cst_" + strings.TrimPrefix(handle, "ses_") + secret
	return body + base62(new(big.Int).SetUint64(uint64(crc32.ChecksumIEEE([]byte(body)))), 6)
}

func base62(n *big.Int, width int) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	text, rest := make([]byte, width), new(big.Int)
	n = new(big.Int).Set(n)
	for i := width - 1; i >= 0; i-- {
		n.QuoRem(n, big.NewInt(62), rest)
		text[i] = digits[rest.Int64()]
	}
	return string(text)
}
