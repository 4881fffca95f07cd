package lock_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/locktest"
)

// A clock is set by the test.
type clock struct {
	mu sync.Mutex // guards at
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func newClock() *clock { return &clock{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func TestMemory(t *testing.T) {
	locktest.Run(t, func(*testing.T) locktest.Bench {
		c := newClock()
		return locktest.Bench{Store: lock.NewLocal(kv.NewMemory(kv.MemoryOptions{})), Pass: c.pass, Now: c.now}
	})
}

func TestGrantsAndRefusals(t *testing.T) {
	c := newClock()
	m := lock.New(lock.NewLocal(kv.NewMemory(kv.MemoryOptions{})), lock.Options{Now: c.now})
	g, err := m.Acquire(t.Context(), "t", "n", "w", 1500*time.Millisecond+time.Microsecond)
	if err != nil || !strings.HasPrefix(g.ID, "lck_") || g.ValidFor != 1500*time.Millisecond || g.Warning != lock.Warning {
		t.Fatalf("got %+v, %v", g, err)
	}
	c.pass(time.Second)
	_, err = m.Acquire(t.Context(), "t", "n", "w", time.Second)
	if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.RetryAfter != 500*time.Millisecond {
		t.Errorf("held: %v", err)
	}
	if renewed, err := m.Renew(t.Context(), "t", "n", g.ID, 0); err != nil || renewed != g {
		t.Errorf("renewed: %+v, %v", renewed, err)
	}
	if err := m.Release(t.Context(), "t", "n", "lck_x"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("another's release: %v", err)
	}
	for range 2 {
		if err := m.Release(t.Context(), "t", "n", g.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Renew(t.Context(), "t", "n", g.ID, time.Second); !errors.Is(err, lock.ErrLost) {
		t.Errorf("renewed after the release: %v", err)
	}
}

func TestL34BadRequests(t *testing.T) {
	m := lock.New(lock.NewLocal(kv.NewMemory(kv.MemoryOptions{})), lock.Options{})
	acquire := func(tenant, name, owner string, ttl time.Duration) error {
		_, err := m.Acquire(t.Context(), tenant, name, owner, ttl)
		return err
	}
	renew := func(id string, ttl time.Duration) error {
		_, err := m.Renew(t.Context(), "t", "n", id, ttl)
		return err
	}
	for _, c := range []struct {
		why, field string
		err        error
	}{
		{"no tenant", "tenant", acquire("", "n", "w", time.Second)},
		{"no name", "name", acquire("t", "", "w", time.Second)},
		{"L41 no owner", "owner", acquire("t", "n", "", time.Second)},
		{"no time", "ttl_ms", acquire("t", "n", "w", 0)},
		{"too short", "ttl_ms", acquire("t", "n", "w", 99*time.Millisecond)},
		{"too long", "ttl_ms", acquire("t", "n", "w", 24*time.Hour+time.Millisecond)},
		{"negative", "ttl_ms", acquire("t", "n", "w", -1<<63)},
		{"no lock", "lock_id", renew("", time.Second)},
		{"renewed for too short", "ttl_ms", renew("lck_x", time.Millisecond)},
		{"renewed for less than nothing", "ttl_ms", renew("lck_x", -1)},
		{"no lock to release", "lock_id", m.Release(t.Context(), "t", "n", "")},
	} {
		if e, ok := errors.AsType[*keytype.ValueError](c.err); !ok || e.Field != c.field {
			t.Errorf("%s: %v, want a refusal of %s", c.why, c.err, c.field)
		}
	}
	if err := acquire("t", "n", "w", 24*time.Hour); err != nil {
		t.Error(err)
	}
}
