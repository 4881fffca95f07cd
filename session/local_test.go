package session_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

func TestLocalOnMemory(t *testing.T) { sessiontest.RunDurable(t, openMemory) }

func TestLocalOnFile(t *testing.T) { sessiontest.RunDurable(t, openFastFile) }

func TestMemoryAndFileAgree(t *testing.T) { sessiontest.History(t, openMemory, openFastFile) }

func TestListOfTenThousand(t *testing.T) {
	onEach(t, func(t *testing.T, open sessiontest.Open) { sessiontest.List(t, open, 10_000) })
}

// A verify must not pay an fsync, except once per D for the use it records.
func TestVerifyWritesOnlyADueUse(t *testing.T) {
	h := newHere(t)
	h.store.updates, h.store.puts = 0, nil
	for range 100 {
		h.verify()
	}
	h.pass(2*time.Second - time.Millisecond)
	h.verify()
	if h.store.updates != 0 {
		t.Errorf("%d write transactions for uses that are not due", h.store.updates)
	}
	h.pass(time.Millisecond)
	for range 100 {
		h.verify()
	}
	if want := []string{keytype.Session.Bucket()}; h.store.updates != 1 || !slices.Equal(h.store.puts, want) {
		t.Errorf("%d write transactions with writes to %v for one due use", h.store.updates, h.store.puts)
	}
	h.pass(3 * time.Second)
	_, err := h.m.Verify(t.Context(), "acme", h.token, session.VerifyRequest{NoTouch: true})
	h.must(err)
	if h.store.updates != 1 {
		t.Error("a write transaction for a look")
	}
	h.must(second(h.m.Revoke(t.Context(), "acme", h.token)))
	h.store.updates = 0
	h.verify()
	if h.store.updates != 0 {
		t.Error("a write transaction for a dead session")
	}
}

// Many uses at once when one is due: one is written.
func TestConcurrentUsesAreWrittenOnce(t *testing.T) {
	h := newHere(t)
	h.pass(2 * time.Second)
	h.store.puts = nil
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { h.verify() })
	}
	all.Wait()
	if len(h.store.puts) != 1 {
		t.Errorf("%d writes", len(h.store.puts))
	}
}

// A use that cannot be written is skipped: the verdict came from the store all the same.
func TestUseThatCannotBeWritten(t *testing.T) {
	h := newHere(t)
	h.pass(2 * time.Second)
	h.store.failUpdates = keytype.ErrUnavailable
	v := h.verify()
	if !v.Active || !v.Session.LastSeenAt.Equal(h.s.LastSeenAt) || !v.Session.IdleExpiresAt.Equal(h.s.IdleExpiresAt) {
		t.Errorf("%+v, want an active session as it is stored: %+v", v, h.s)
	}
	if err := second(h.m.Revoke(t.Context(), "acme", h.token)); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("a revocation that cannot be written: %v", err)
	}
}

// A store that cannot be read gives no verdict.
func TestClosedStoreFailsClosed(t *testing.T) {
	h := newHere(t)
	h.must(h.store.Close())
	u := session.UserKey{Tenant: "acme", User: "ann", Tag: "tag"}
	local := session.NewLocal(h.store)
	for what, err := range map[string]error{
		"verify":     second(h.m.Verify(t.Context(), "acme", h.token, session.VerifyRequest{})),
		"revoke":     second(h.m.Revoke(t.Context(), "acme", h.token)),
		"by handle":  second(h.m.RevokeHandle(t.Context(), "acme", h.s.Handle)),
		"get":        second(h.m.Get(t.Context(), "acme", h.s.Handle)),
		"list":       second(h.m.List(t.Context(), "acme", "ann", "", 0)),
		"logout-all": second(h.m.LogoutAll(t.Context(), "acme", "ann", "")),
		"epochs":     second(local.Epochs(t.Context(), u)),
	} {
		if !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The user record's version, by which caches will know that an answer may have changed.
func TestVersionRisesWithWhatAltersAVerify(t *testing.T) {
	h := newHere(t)
	for _, step := range []struct {
		why  string
		do   func()
		want int64
	}{
		{"a first login", func() {}, 1},
		{"another login", func() { h.token = h.login() }, 1},
		{"a use", func() { h.pass(2 * time.Second); h.verify() }, 1},
		{"a revocation", func() { h.must(second(h.m.Revoke(t.Context(), "acme", h.token))) }, 2},
		{"the same again", func() { h.must(second(h.m.Revoke(t.Context(), "acme", h.token))) }, 2},
		{"a revocation by handle", func() { h.must(second(h.m.RevokeHandle(t.Context(), "acme", h.s.Handle))) }, 3},
		{"logout-all", func() { h.epochs(h.m.LogoutAll(t.Context(), "acme", "ann", "")) }, 4},
		{"logout-all but one", func() { h.epochs(h.m.LogoutAll(t.Context(), "acme", "ann", h.login())) }, 5},
		{"one refused", func() { _, _ = h.m.LogoutAll(t.Context(), "acme", "ann", h.token) }, 5},
		{"new permissions", func() { h.epochs(h.m.BumpPermissions(t.Context(), "acme", "ann")) }, 6},
		{"disabled", func() { h.epochs(h.m.Disable(t.Context(), "acme", "ann")) }, 7},
		{"enabled", func() { h.epochs(h.m.Enable(t.Context(), "acme", "ann")) }, 8},
	} {
		step.do()
		for _, value := range h.items()[keytype.UserEpoch.Bucket()] {
			u, err := kv.Decode[session.User]([]byte(value))
			h.must(err)
			if u.Version != step.want {
				t.Errorf("%s: version %d, want %d", step.why, u.Version, step.want)
			}
		}
	}
}

// A tag that belongs to another user is a fault, never that user.
func TestTagOfAnotherUser(t *testing.T) {
	local := openMemory(t)
	ann := session.UserKey{Tenant: "acme", User: "ann", Tag: "tag"}
	bob := session.UserKey{Tenant: "acme", User: "bob", Tag: "tag"}
	op := session.CreateOp{User: ann, ID: "1", Record: session.Record{TokenHash: []byte("x"), Absolute: time.Now().UnixMilli() + 60_000, Idle: 60_000, Seen: time.Now().UnixMilli()}}
	if _, _, err := local.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	op.User, op.ID = bob, "2"
	_, _, createErr := local.Create(t.Context(), op)
	_, _, changeErr := local.Change(t.Context(), session.ChangeOp{User: bob, Kind: session.Disable})
	_, listErr := local.List(t.Context(), session.ListOp{User: bob, Limit: 10, Now: time.Now()})
	_, epochsErr := local.Epochs(t.Context(), bob)
	for what, err := range map[string]error{"create": createErr, "change": changeErr, "list": listErr, "epochs": epochsErr} {
		if !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if e, err := local.Epochs(t.Context(), ann); err != nil || e != (session.Epochs{SessionVersion: 1, PermissionEpoch: 1}) {
		t.Errorf("the tag's owner: %+v %v", e, err)
	}
}

func TestNewRefusesARouteKeyOfAnotherLength(t *testing.T) {
	for _, n := range []int{0, 31, 33} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a key of %d bytes was taken", n)
				}
			}()
			session.New(openMemory(t), session.Options{RouteKey: make([]byte, n)})
		}()
	}
}

func openMemory(t *testing.T) session.Store {
	store := kv.NewMemory(kv.MemoryOptions{})
	t.Cleanup(func() { closeStore(t, store) })
	return session.NewLocal(store)
}

// openFastFile skips the fsyncs, for what does not ask whether anything is on disk.
func openFastFile(t *testing.T) session.Store {
	return session.NewLocal(file(t, kv.BoltOptions{NoSync: true}))
}

func file(t *testing.T, opts kv.BoltOptions) *kv.Bolt {
	store, err := kv.Open(filepath.Join(t.TempDir(), "coordsvc.db"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, store) })
	return store
}

func closeStore(t *testing.T, store kv.Store) {
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// A watched store is a real one whose transactions a test counts, precedes or fails.
type watched struct {
	kv.Store
	mu           sync.Mutex
	updates      int      // guarded by mu, as is the next
	puts         []string // the buckets written to
	beforeUpdate func()   // runs once
	failUpdates  error
}

func (w *watched) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if hook := w.beforeUpdate; hook != nil {
		w.beforeUpdate = nil
		hook()
	}
	if w.failUpdates != nil {
		return w.failUpdates
	}
	w.mu.Lock()
	w.updates++
	w.mu.Unlock()
	return w.Store.Update(ctx, func(tx kv.Tx) error { return fn(watchedTx{tx, w}) })
}

type watchedTx struct {
	kv.Tx
	w *watched
}

func (t watchedTx) Put(bucket, key string, value []byte, expires time.Time) {
	t.w.mu.Lock()
	t.w.puts = append(t.w.puts, bucket)
	t.w.mu.Unlock()
	t.Tx.Put(bucket, key, value, expires)
}

// here is a manager over a watched memory store in which ann has a session that
// lives a minute and goes idle after 10 s, so D is 2 s.
type here struct {
	t      *testing.T
	memory *kv.Memory
	store  *watched
	m      *session.Manager
	now    time.Time
	token  string
	s      session.Session
}

func newHere(t *testing.T) *here {
	memory := kv.NewMemory(kv.MemoryOptions{})
	h := &here{t: t, memory: memory, store: &watched{Store: memory}, now: time.UnixMilli(1_800_000_000_000)}
	h.m = session.New(session.NewLocal(h.store), session.Options{RouteKey: make([]byte, 32), Now: func() time.Time { return h.now }})
	token, s, err := h.m.Create(t.Context(), "acme", h.request())
	h.must(err)
	h.token, h.s = token.Reveal(), s
	return h
}

func (h *here) request() session.CreateRequest {
	return session.CreateRequest{UserID: "ann", AbsoluteTTL: time.Minute, IdleTTL: 10 * time.Second}
}

func (h *here) login() string {
	h.t.Helper()
	token, _, err := h.m.Create(h.t.Context(), "acme", h.request())
	h.must(err)
	return token.Reveal()
}

func (h *here) verify() session.Verdict {
	v, err := h.m.Verify(h.t.Context(), "acme", h.token, session.VerifyRequest{})
	if err != nil {
		h.t.Error(err)
	}
	return v
}

func (h *here) list() []session.Session {
	h.t.Helper()
	page, err := h.m.List(h.t.Context(), "acme", "ann", "", 0)
	h.must(err)
	return page.Sessions
}

func (h *here) pass(d time.Duration) { h.now = h.now.Add(d) }

func (h *here) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *here) epochs(_ session.Changed, err error) {
	h.t.Helper()
	h.must(err)
}

func (h *here) sweep() {
	h.t.Helper()
	_, err := h.memory.Sweep(h.t.Context(), h.now, 1_000)
	h.must(err)
}

// items are all that is stored, by bucket and key.
func (h *here) items() map[string]map[string]string {
	h.t.Helper()
	all := map[string]map[string]string{}
	h.must(h.memory.Walk(h.t.Context(), func(bucket, key string, value []byte) bool {
		if all[bucket] == nil {
			all[bucket] = map[string]string{}
		}
		all[bucket][key] = string(value)
		return true
	}))
	return all
}
