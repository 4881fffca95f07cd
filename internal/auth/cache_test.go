package auth_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
)

// watched counts the reads of a real store, and makes them wait or fail.
type watched struct {
	auth.Store
	gets   atomic.Int64
	failed atomic.Bool
	// after runs between the store's answer and its arrival.
	after func(ctx context.Context)
}

func (w *watched) Get(ctx context.Context, id string) (auth.Record, bool, error) {
	w.gets.Add(1)
	if w.failed.Load() {
		return auth.Record{}, false, fmt.Errorf("get: %w", keytype.ErrOutcomeUnknown)
	}
	rec, found, err := w.Store.Get(ctx, id)
	if w.after != nil {
		w.after(ctx)
	}
	if ctx.Err() != nil {
		return auth.Record{}, false, ctx.Err()
	}
	return rec, found, err
}

// S16: a cached copy ends a stated time after a revocation elsewhere.
func TestS16RevokedElsewhere(t *testing.T) {
	store, c := memory(), newClock()
	here, elsewhere := node(store, c), node(store, c)
	text, key := mustCreate(t, here, "a", reader())
	expectAuth(t, here, text, nil, "at first")
	if err := elsewhere.Revoke(t.Context(), "a", key.ID); err != nil {
		t.Fatal(err)
	}
	expectAuth(t, elsewhere, text, auth.ErrUnauthenticated, "where it was revoked, at once")
	c.advance(29_999 * time.Millisecond)
	expectAuth(t, here, text, nil, "elsewhere, up to 30 s after it was read")
	c.advance(time.Millisecond)
	expectAuth(t, here, text, auth.ErrUnauthenticated, "30 s after it was read")
}

// The age of an answer counts from before the read, however long it took.
func TestAgeCountsFromBeforeTheRead(t *testing.T) {
	c := newClock()
	store := &watched{Store: memory()}
	m := node(store, c)
	text, key := mustCreate(t, m, "a", reader())
	store.after = func(context.Context) { c.advance(4 * time.Second) }
	expectAuth(t, m, text, nil, "a slow read")
	store.after = nil
	if _, err := store.Revoke(t.Context(), "a", key.ID, c.now); err != nil {
		t.Fatal(err)
	}
	c.advance(26 * time.Second)
	expectAuth(t, m, text, auth.ErrUnauthenticated, "30 s after the read began")
}

func TestMadeElsewhere(t *testing.T) {
	store, c := memory(), newClock()
	here, elsewhere := node(store, c), node(store, c)
	expectAuth(t, here, operatorText, auth.ErrUnauthenticated, "before it is made")
	if _, err := elsewhere.Add(t.Context(), "a", "n", operatorText); err != nil {
		t.Fatal(err)
	}
	c.advance(4999 * time.Millisecond)
	expectAuth(t, here, operatorText, auth.ErrUnauthenticated, "up to 5 s after it was missed")
	c.advance(time.Millisecond)
	expectAuth(t, here, operatorText, nil, "5 s after it was missed")
}

func TestMadeHere(t *testing.T) {
	m := node(memory(), newClock())
	expectAuth(t, m, operatorText, auth.ErrUnauthenticated, "before it is made")
	if _, err := m.Add(t.Context(), "a", "n", operatorText); err != nil {
		t.Fatal(err)
	}
	expectAuth(t, m, operatorText, nil, "at once")
}

func TestSameWrongKeyIsAskedOnce(t *testing.T) {
	store := &watched{Store: memory()}
	m := node(store, newClock())
	for range 100 {
		expectAuth(t, m, operatorText, auth.ErrUnauthenticated, "unknown")
	}
	if n := store.gets.Load(); n != 1 {
		t.Errorf("the store was read %d times, want once", n)
	}
}

func TestClockThatGoesBack(t *testing.T) {
	store, c := memory(), newClock()
	here, elsewhere := node(store, c), node(store, c)
	text, key := mustCreate(t, here, "a", reader())
	expectAuth(t, here, text, nil, "at first")
	if err := elsewhere.Revoke(t.Context(), "a", key.ID); err != nil {
		t.Fatal(err)
	}
	c.advance(-time.Hour)
	expectAuth(t, here, text, auth.ErrUnauthenticated, "an answer from the future is no answer")
}

func TestStoreFails(t *testing.T) {
	c := newClock()
	store := &watched{Store: memory()}
	m := node(store, c)
	text, _ := mustCreate(t, m, "a", reader())
	expectAuth(t, m, text, nil, "at first")
	store.failed.Store(true)
	c.advance(29_999 * time.Millisecond)
	expectAuth(t, m, text, nil, "remembered")
	_, err := m.Authenticate(t.Context(), operatorText)
	if !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("not remembered: got %v, want unavailable alone: a read has no effect", err)
	}
	c.advance(time.Millisecond)
	expectAuth(t, m, text, keytype.ErrUnavailable, "no longer remembered")
	store.failed.Store(false)
	expectAuth(t, m, text, nil, "the store is back: a failure is not remembered")
	expectAuth(t, m, operatorText, auth.ErrUnauthenticated, "the store is back: a failure is not remembered")
}

// S12: a read that began before a revocation must not put the key back.
func TestS12RevokeDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &watched{Store: memory()}
		m := auth.New(store, auth.Options{})
		text, key := mustCreate(t, m, "a", reader())

		arrive := make(chan struct{})
		store.after = func(context.Context) { <-arrive }
		var during error
		go func() { _, during = m.Authenticate(t.Context(), text) }()
		synctest.Wait() // the store has said that the key is good; its answer is on its way
		if err := m.Revoke(t.Context(), "a", key.ID); err != nil {
			t.Fatal(err)
		}

		var joined error
		go func() { _, joined = m.Authenticate(t.Context(), text) }()
		synctest.Wait()
		close(arrive)
		synctest.Wait()
		if during != nil {
			t.Errorf("what began before the revocation: %v", during)
		}
		if !errors.Is(joined, auth.ErrUnauthenticated) {
			t.Errorf("what began after the revocation took an older read's answer: %v", joined)
		}
		expectAuth(t, m, text, auth.ErrUnauthenticated, "after both reads")
		if n := store.gets.Load(); n != 2 {
			t.Errorf("the store was read %d times, want twice", n)
		}
	})
}

// The same where the late read is the only one: it must not fill the cache.
func TestS12LateReadIsNotRemembered(t *testing.T) {
	for _, change := range []struct {
		why  string
		make func(*auth.Manager) error
		want error
	}{
		{"revoked", func(m *auth.Manager) error {
			keys, err := m.List(t.Context(), "a")
			if err != nil {
				return err
			}
			return m.Revoke(t.Context(), "a", keys[0].ID)
		}, auth.ErrUnauthenticated},
		{"added", func(m *auth.Manager) error {
			_, err := m.Add(t.Context(), "a", "n", operatorText)
			return err
		}, nil},
	} {
		t.Run(change.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &watched{Store: memory()}
				m := auth.New(store, auth.Options{})
				if change.why == "revoked" {
					if _, err := m.Add(t.Context(), "a", "n", operatorText); err != nil {
						t.Fatal(err)
					}
				}
				arrive := make(chan struct{})
				store.after = func(context.Context) { <-arrive }
				go func() { _, _ = m.Authenticate(t.Context(), operatorText) }()
				synctest.Wait()
				if err := change.make(m); err != nil {
					t.Fatal(err)
				}
				close(arrive)
				synctest.Wait()
				expectAuth(t, m, operatorText, change.want, change.why)
			})
		})
	}
}

func TestManyAskersOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &watched{Store: memory()}
		m := auth.New(store, auth.Options{})
		text, _ := mustCreate(t, m, "a", reader())
		arrive := make(chan struct{})
		store.after = func(context.Context) { <-arrive }

		first, cancel := context.WithCancel(t.Context())
		var firstErr error
		go func() { _, firstErr = m.Authenticate(first, text) }()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { expectAuth(t, m, text, nil, "joined") })
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !errors.Is(firstErr, context.Canceled) {
			t.Errorf("the first, which gave up: %v", firstErr)
		}
		close(arrive)
		wg.Wait()
		if n := store.gets.Load(); n != 1 {
			t.Errorf("the store was read %d times, want once", n)
		}
	})
}

func TestStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &watched{Store: memory(), after: func(ctx context.Context) { <-ctx.Done() }}
		m := auth.New(store, auth.Options{})
		begun := time.Now()
		expectAuth(t, m, operatorText, keytype.ErrUnavailable, "nothing answers")
		if waited := time.Since(begun); waited != 5*time.Second {
			t.Errorf("waited %v, want 5 s", waited)
		}
	})
}

// A process that was stopped for a while must not take the answer of a read from
// before.
func TestOldReadIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c := &watched{Store: memory()}, newClock()
		m := node(store, c)
		text, key := mustCreate(t, m, "a", reader())
		arrive := make(chan struct{})
		store.after = func(context.Context) { <-arrive }
		for range 2 {
			go func() { _, _ = m.Authenticate(t.Context(), text) }()
			synctest.Wait()
			if _, err := store.Revoke(t.Context(), "a", key.ID, c.now); err != nil {
				t.Fatal(err)
			}
			c.advance(5 * time.Second)
		}
		if n := store.gets.Load(); n != 2 {
			t.Errorf("the store was read %d times, want twice: the second ask came 5 s after the first", n)
		}
		close(arrive)
		synctest.Wait()
		expectAuth(t, m, text, auth.ErrUnauthenticated, "the older read's answer is not kept")
	})
}

// A race of everything at once, for the race detector and for the promise that
// what begins after a revocation has returned is refused.
func TestS16RevokedHereAtOnce(t *testing.T) {
	store := memory()
	m := auth.New(store, auth.Options{})
	for range 50 {
		text, key := mustCreate(t, m, "a", reader())
		var revoked atomic.Bool
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					late := revoked.Load()
					_, err := m.Authenticate(t.Context(), text)
					if late && !errors.Is(err, auth.ErrUnauthenticated) {
						t.Errorf("after the revocation returned: %v", err)
					}
				}
			})
		}
		wg.Go(func() {
			if err := m.Revoke(t.Context(), "a", key.ID); err != nil {
				t.Error(err)
			}
			revoked.Store(true)
		})
		wg.Wait()
		expectAuth(t, m, text, auth.ErrUnauthenticated, "in the end")
	}
}

// A key in use is read again early, so that an outage finds it known for long enough.
func TestKeyInUseIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		store := &watched{Store: memory()}
		m := node(store, c)
		text, key := mustCreate(t, m, "a", reader())
		expectAuth(t, m, text, nil, "at first")
		store.gets.Store(0)
		for range 40 { // 10 s
			c.advance(250 * time.Millisecond)
			expectAuth(t, m, text, nil, "in use")
			synctest.Wait()
		}
		if n := store.gets.Load(); n != 2 {
			t.Errorf("read %d times in 10 s", n)
		}
		c.advance(4999 * time.Millisecond)
		store.failed.Store(true)
		for range 25 {
			expectAuth(t, m, text, nil, "an outage, up to 25 s")
			synctest.Wait()
			c.advance(time.Second)
		}
		expectAuth(t, m, text, nil, "an outage, up to 25 s")
		synctest.Wait()
		c.advance(time.Millisecond)
		expectAuth(t, m, text, keytype.ErrUnavailable, "and no longer")
		store.failed.Store(false)
		expectAuth(t, m, text, nil, "back")
		if _, err := store.Revoke(t.Context(), "a", key.ID, c.now); err != nil {
			t.Fatal(err)
		}
		c.advance(5 * time.Second)
		expectAuth(t, m, text, nil, "revoked elsewhere: the next use still does not know")
		synctest.Wait()
		expectAuth(t, m, text, auth.ErrUnauthenticated, "and the one after it does")
	})
}

// A key that is not there any more is not known from before either.
func TestKeyThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		store := &forgetful{Store: memory()}
		m := node(store, c)
		text, _ := mustCreate(t, m, "a", reader())
		expectAuth(t, m, text, nil, "at first")
		store.gone.Store(true)
		c.advance(5 * time.Second)
		expectAuth(t, m, text, nil, "read again meanwhile")
		synctest.Wait()
		expectAuth(t, m, text, auth.ErrUnauthenticated, "it is gone")
		c.advance(5 * time.Second)
		expectAuth(t, m, text, auth.ErrUnauthenticated, "also once that is forgotten")
	})
}

// forgetful is a store that loses its keys.
type forgetful struct {
	auth.Store
	gone atomic.Bool
}

func (f *forgetful) Get(ctx context.Context, id string) (auth.Record, bool, error) {
	if f.gone.Load() {
		return auth.Record{}, false, nil
	}
	return f.Store.Get(ctx, id)
}
