package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// A failing store reads tenants' epochs while it is up, and counts that.
type failing struct {
	Store
	down  atomic.Bool
	reads atomic.Int64
	hang  chan struct{} // nil, or a read hangs until it is closed, whatever its context says
}

func (f *failing) TenantEpoch(ctx context.Context, tenant string) (int64, error) {
	f.reads.Add(1)
	if f.hang != nil {
		<-f.hang
	}
	if f.down.Load() {
		return 0, keytype.ErrUnavailable
	}
	return f.Store.TenantEpoch(ctx, tenant)
}

func newFailing() *failing { return &failing{Store: NewLocal(kv.NewMemory(kv.MemoryOptions{}))} }

// S17: what is known of a tenant counts for F, then verify fails closed.
func TestS17TenantEpochFailsClosed(t *testing.T) {
	store, now := newFailing(), time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	m := New(store, Options{RouteKey: make([]byte, 32), Now: clock, Tenants: NewTenants(store, TenantsOptions{Now: clock})})
	token, _, err := m.Create(t.Context(), "acme", CreateRequest{UserID: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	verify := func(why string, want error) {
		t.Helper()
		v, err := m.Verify(t.Context(), "acme", token.Reveal(), VerifyRequest{})
		if !errors.Is(err, want) || (err == nil) != v.Active {
			t.Errorf("%s: %+v %v", why, v, err)
		}
	}
	verify("read", nil)
	store.down.Store(true)
	for _, step := range []struct {
		why  string
		pass time.Duration
		want error
	}{
		{"young", 5*time.Second - time.Millisecond, nil},
		{"to be read again, still good", time.Millisecond, nil},
		{"the last moment", 5*time.Second - time.Millisecond, nil},
		{"too old", time.Millisecond, keytype.ErrUnavailable},
	} {
		now = now.Add(step.pass)
		verify(step.why, step.want)
	}
	for why, err := range map[string]error{
		"create": func() error {
			_, _, err := m.Create(t.Context(), "acme", CreateRequest{UserID: "ann"})
			return err
		}(),
		"never read": func() error {
			_, err := m.Epochs(t.Context(), "bolt", "ann")
			_, listErr := m.List(t.Context(), "bolt", "ann", "", 0)
			return errors.Join(err, listErr)
		}(),
	} {
		if !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s: %v", why, err)
		}
	}
	store.down.Store(false)
	verify("back", nil)
}

// The epochs of tenants in use are read in the background, and no request reads one.
func TestPollReadsBeforeARequestMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFailing()
		tenants := NewTenants(store, TenantsOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		go tenants.Poll(ctx)
		ask := func() int64 {
			before := store.reads.Load()
			if _, err := tenants.epoch(ctx, "acme"); err != nil {
				t.Error(err)
			}
			return store.reads.Load() - before
		}
		if ask() != 1 {
			t.Error("the first request did not read")
		}
		for range 50 {
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			if ask() != 0 {
				t.Error("a request read")
			}
		}
		if reads := store.reads.Load(); reads < 11 || reads > 24 {
			t.Errorf("%d reads in 55 s", reads)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before := store.reads.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if store.reads.Load() != before {
			t.Error("a tenant that nobody uses is read")
		}
		cancel()
		synctest.Wait()
	})
}

// S17: whoever waits for another's read leaves when its own time is over, and those
// who stay share the failure.
func TestS17TenantEpochThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFailing()
		store.hang = make(chan struct{})
		store.down.Store(true)
		tenants := NewTenants(store, TenantsOptions{})
		answers := make(chan error, 20)
		for range cap(answers) {
			go func() {
				_, err := tenants.epoch(t.Context(), "acme")
				answers <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := tenants.epoch(ctx, "acme"); !errors.Is(err, keytype.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one who waited for a second: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it waited for %v", took)
		}
		close(store.hang)
		for range cap(answers) {
			if err := <-answers; !errors.Is(err, keytype.ErrUnavailable) {
				t.Errorf("the read failed: %v", err)
			}
		}
		if n := store.reads.Load(); n != 1 {
			t.Errorf("%d reads", n)
		}
	})
}

// forever is a store whose epochs never come.
type forever struct{ Store }

func (forever) TenantEpoch(ctx context.Context, _ string) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// An epoch that never comes takes part of a request's time, of however many ask, and had no effect.
func TestTenantEpochHasATimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := NewTenants(forever{}, TenantsOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		began := time.Now()
		var group sync.WaitGroup
		for range 30 {
			group.Go(func() {
				_, err := tenants.epoch(ctx, "acme")
				if took := time.Since(began); !errors.Is(err, keytype.ErrUnavailable) || took != epochTime {
					t.Errorf("after %v: %v", took, err)
				}
			})
		}
		group.Wait()
	})
}

// One who reads and gives up fails nobody else.
func TestTenantEpochReaderGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFailing()
		store.hang = make(chan struct{})
		store.down.Store(true)
		tenants := NewTenants(store, TenantsOptions{})
		ctx, leave := context.WithCancel(t.Context())
		read := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := tenants.epoch(ctx, "acme")
				done <- err
			}()
			synctest.Wait()
			return done
		}
		reader, waiter := read(ctx), read(t.Context())
		leave()
		store.reads.Store(0)
		store.hang <- struct{}{} // the reader's
		if err := <-reader; err == nil {
			t.Error("the reader's failure is gone")
		}
		synctest.Wait()
		store.down.Store(false)
		close(store.hang)
		if err := <-waiter; err != nil || store.reads.Load() != 1 {
			t.Errorf("who waited: %v after %d reads", err, store.reads.Load())
		}
	})
}

func TestLogoutTenantNeedsTenants(t *testing.T) {
	m := New(newFailing(), Options{RouteKey: make([]byte, 32)})
	if _, err := m.LogoutTenant(t.Context(), "acme"); !errors.Is(err, errTenants) {
		t.Errorf("without Tenants: %v", err)
	}
}

// answering says of each verdict that it comes from the source.
type answering struct {
	Store
	source Source
}

func (a answering) Verify(ctx context.Context, op VerifyOp) (Verdict, error) {
	v, err := a.Store.Verify(ctx, op)
	v.Source = a.source
	return v, err
}

// With a grace, what is known of a tenant counts for verify that much longer while it
// cannot be read, and is marked; nothing else is decided by it.
func TestStaleGraceOfTenants(t *testing.T) {
	const grace = 15 * time.Second
	store, now := newFailing(), time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	tenants := NewTenants(store, TenantsOptions{Now: clock, StaleGrace: grace})
	m := New(answering{store, FromCache}, Options{RouteKey: make([]byte, 32), Now: clock, Tenants: tenants})
	token, s, err := m.Create(t.Context(), "acme", CreateRequest{UserID: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	store.down.Store(true)
	for _, step := range []struct {
		why  string
		pass time.Duration
		want Verdict
		err  error
	}{
		{"the last moment of F", 10*time.Second - time.Millisecond, Verdict{Active: true}, nil},
		{"stale", time.Millisecond, Verdict{Active: true, Degraded: true}, nil},
		{"the last moment of the grace", grace - time.Millisecond, Verdict{Active: true, Degraded: true}, nil},
		{"after it", time.Millisecond, Verdict{}, keytype.ErrUnavailable},
	} {
		now = now.Add(step.pass)
		v, err := m.Verify(t.Context(), "acme", token.Reveal(), VerifyRequest{})
		if !errors.Is(err, step.err) || v.Active != step.want.Active || v.Degraded != step.want.Degraded {
			t.Errorf("%s: %+v, %v", step.why, v, err)
		}
		if _, err := m.Get(t.Context(), "acme", s.Handle); (err == nil) != (step.want.Active && !step.want.Degraded) {
			t.Errorf("%s: read: %v", step.why, err)
		}
	}
	now = now.Add(-time.Second)
	direct := New(store, Options{RouteKey: make([]byte, 32), Now: clock, Tenants: tenants})
	if v, err := direct.Verify(t.Context(), "acme", token.Reveal(), VerifyRequest{}); !errors.Is(err, keytype.ErrUnavailable) || v.Active {
		t.Errorf("in the grace, and the session is read: %+v, %v", v, err)
	}
	if _, err := m.Verify(t.Context(), "bolt", token.Reveal(), VerifyRequest{}); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("a tenant that was never read: %v", err)
	}
	store.down.Store(false)
	if p, err := m.LogoutTenant(t.Context(), "acme"); err != nil || p.EffectiveBy.Sub(now) != 10*time.Second+grace {
		t.Errorf("another node may not know of it until %s after it: %v", p.EffectiveBy.Sub(now), err)
	}
	if v, err := m.Verify(t.Context(), "acme", token.Reveal(), VerifyRequest{}); err != nil || v.Reason != Epoch || v.Degraded {
		t.Errorf("read again: %+v, %v", v, err)
	}
}

// A store that hangs keeps a verify with a stale epoch no longer than a moment.
func TestStaleGraceWaitsBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFailing()
		tenants := NewTenants(store, TenantsOptions{StaleGrace: time.Minute})
		if _, _, err := tenants.orStale(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		store.hang = make(chan struct{})
		go func() { _, _ = tenants.epoch(t.Context(), "acme") }()
		synctest.Wait()
		began := time.Now()
		_, stale, err := tenants.orStale(t.Context(), "acme")
		if took := time.Since(began); err != nil || !stale || took != 500*time.Millisecond {
			t.Errorf("stale %v, %v after %s", stale, err, took)
		}
		close(store.hang)
		synctest.Wait()
	})
}
