package quota_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

var anyID = quota.ID{Tenant: "t", Name: "n", Subject: "s"}

func TestL34BadValuesHaveNoEffect(t *testing.T) {
	store := kv.NewMemory(kv.MemoryOptions{})
	m := quota.New(quota.NewLocal(store), quota.Options{})
	ctx, long := t.Context(), strings.Repeat("x", 257)
	set := func(id quota.ID, limit int64, w quota.Window, zone string) error {
		_, err := m.Set(ctx, id, quota.Definition{Limit: limit, Window: w, Zone: zone})
		return err
	}
	consume := func(amount int64, requestID string) error {
		_, err := m.Consume(ctx, anyID, amount, requestID)
		return err
	}
	reserve := func(amount int64, requestID string, ttl time.Duration) error {
		_, err := m.Reserve(ctx, anyID, quota.ReserveRequest{Amount: amount, RequestID: requestID, TTL: ttl})
		return err
	}
	commit := func(id string, amount int64) error { _, err := m.Commit(ctx, anyID, id, amount); return err }
	for _, c := range []struct {
		field string
		err   error
	}{
		{"tenant", set(quota.ID{Name: "n", Subject: "s"}, 1, quota.None, "")},
		{"name", set(quota.ID{Tenant: "t", Name: long, Subject: "s"}, 1, quota.None, "")},
		{"subject", set(quota.ID{Tenant: "t", Name: "n", Subject: ".."}, 1, quota.None, "")},
		{"limit", set(anyID, 0, quota.None, "")},
		{"limit", set(anyID, -1, quota.None, "")},
		{"limit", set(anyID, quota.MaxAmount+1, quota.None, "")},
		{"window", set(anyID, 1, "", "")},
		{"window", set(anyID, 1, "week", "")},
		{"window", set(anyID, 1, "ms:", "")},
		{"window", set(anyID, 1, "ms:1e9", "")},
		{"window", set(anyID, 1, quota.Every(quota.MinEvery-time.Millisecond), "")},
		{"window", set(anyID, 1, quota.Every(quota.MaxEvery+time.Millisecond), "")},
		{"zone", set(anyID, 1, quota.Day, "Local")},
		{"zone", set(anyID, 1, quota.Day, "localtime")},
		{"zone", set(anyID, 1, quota.Day, "posixrules")},
		{"zone", set(anyID, 1, quota.Day, "Factory")},
		{"zone", set(anyID, 1, quota.Day, "posix/Europe/Berlin")},
		{"zone", set(anyID, 1, quota.Day, "right/Europe/Berlin")},
		{"zone", set(anyID, 1, quota.Day, "Europe//Berlin")},
		{"zone", set(anyID, 1, quota.Day, "Europe/./Berlin")},
		{"zone", set(anyID, 1, quota.None, "Mars/Olympus")},
		{"zone", set(anyID, 1, quota.Day, "../../etc/passwd")},
		{"amount", consume(0, "q")},
		{"amount", consume(-1, "q")},
		{"amount", consume(quota.MaxAmount+1, "q")},
		{"request_id", consume(1, "")},
		{"request_id", consume(1, long)},
		{"amount", reserve(0, "q", time.Second)},
		{"request_id", reserve(1, "a\x00", time.Second)},
		{"ttl_ms", reserve(1, "q", 0)},
		{"ttl_ms", reserve(1, "q", quota.MinTTL-1)},
		{"ttl_ms", reserve(1, "q", quota.MaxTTL+time.Millisecond)},
		{"ttl_ms", reserve(1, "q", 1<<62)},
		{"id", commit("", 1)},
		{"amount", commit("rsv_x", -1)},
		{"amount", commit("rsv_x", quota.MaxAmount+1)},
	} {
		if e, ok := errors.AsType[*keytype.ValueError](c.err); !ok || e.Field != c.field {
			t.Errorf("got %v, want a value error of %s", c.err, c.field)
		}
	}
	if err := store.Walk(ctx, func(bucket, key string, _ []byte) bool { t.Errorf("%s/%s is stored", bucket, key); return true }); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	now := instant(t, "2026-03-01T12:00:00.0009Z") // a fraction of a millisecond is dropped
	m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{Now: func() time.Time { return now }})
	if _, err := m.Get(t.Context(), anyID); !errors.Is(err, quota.ErrUnset) {
		t.Error(err)
	}
	if q, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.Day}); err != nil || q.Zone != "UTC" || !q.ResetsAt.Equal(instant(t, "2026-03-02T00:00:00Z")) {
		t.Errorf("%+v, %v", q, err)
	}
	for _, c := range []struct {
		why    string
		amount int64
		wait   time.Duration
	}{{"tomorrow there are enough", 10, 12 * time.Hour}, {"never", 11, 0}} {
		if _, err := m.Consume(t.Context(), anyID, 4, "q"); err != nil {
			t.Fatal(err)
		}
		_, err := m.Consume(t.Context(), anyID, c.amount, "big")
		if e, ok := errors.AsType[*quota.ExceededError](err); !ok || e.Available != 6 || e.RetryAfter != c.wait {
			t.Errorf("%s: %v", c.why, err)
		}
	}
	g, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 2, RequestID: "r", TTL: 1500*time.Millisecond + 999})
	if err != nil || g.ValidFor != 1500*time.Millisecond {
		t.Fatalf("%+v, %v", g, err)
	}
	_, err = m.Commit(t.Context(), anyID, g.Reservation, 3)
	if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != "amount" || e.Reason != "must be from 1 to 2" {
		t.Error(err)
	}
	now = now.Add(time.Hour)
	if again, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 2, RequestID: "r", TTL: time.Second}); err != nil || again.Reservation != g.Reservation || again.ValidFor != 0 {
		t.Errorf("an expired reservation, asked for again: %+v, %v", again, err)
	}
}

// A node that knows of its wrong clock returns nobody's units, whatever the guard.
func TestL23ASkewedNodeSweepsNothing(t *testing.T) {
	now, skewed := instant(t, "2026-03-01T12:00:00Z"), true
	m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{Now: func() time.Time { return now }, Skewed: func() bool { return skewed }})
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 2, RequestID: "r", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if n, err := m.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("by a wrong clock: %d, %v", n, err)
	}
	skewed = false
	if n, err := m.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("by a right one: %d, %v", n, err)
	}
}

// A repetition on a node whose clock is behind is not told more time than it asked for.
func TestL23ARepetitionIsValidForWhatItAsked(t *testing.T) {
	now := instant(t, "2026-03-01T12:00:00Z")
	m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{Now: func() time.Time { return now }})
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		g, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 2, RequestID: "r", TTL: time.Second})
		if err != nil || g.ValidFor != time.Second {
			t.Errorf("%+v, %v", g, err)
		}
		now = now.Add(-time.Hour)
	}
}

// A sweeper on a node whose clock is ahead leaves a reservation to its holder.
func TestL23TheSweeperWaitsForTheGuard(t *testing.T) {
	now := instant(t, "2026-03-01T12:00:00Z")
	m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{Guard: 2 * time.Second, Now: func() time.Time { return now }})
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 2, RequestID: "r", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{1000, 0}, {2999, 0}, {3000, 1}, {9000, 0}} {
		now = instant(t, "2026-03-01T12:00:00Z").Add(c.at * time.Millisecond)
		if n, err := m.Sweep(t.Context()); err != nil || n != c.want {
			t.Errorf("at %d: %d returned, %v, want %d", c.at, n, err, c.want)
		}
	}
}

// One sweep is bounded, and the next one goes on.
func TestASweepIsBounded(t *testing.T) {
	now := instant(t, "2026-03-01T12:00:00Z")
	m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{Now: func() time.Time { return now }})
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 1200, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		if _, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 1, RequestID: fmt.Sprint(i), TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Second)
	for _, want := range []int{1000, 200, 0} {
		if n, err := m.Sweep(t.Context()); err != nil || n != want {
			t.Errorf("%d returned, %v, want %d", n, err, want)
		}
	}
	if q, err := m.Get(t.Context(), anyID); err != nil || q.Available != 1200 {
		t.Errorf("%+v, %v", q, err)
	}
}

// A failing store keeps its failing reservation from nobody else.
type stubborn struct {
	quota.Store
	refuses string
}

func (s stubborn) Settle(ctx context.Context, id quota.ID, req quota.Settle) (quota.Outcome, error) {
	if req.Reservation == s.refuses {
		return quota.Outcome{}, keytype.ErrUnavailable
	}
	return s.Store.Settle(ctx, id, req)
}

func TestASweepGoesOnPastAFailure(t *testing.T) {
	now := instant(t, "2026-03-01T12:00:00Z")
	local := quota.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	m := quota.New(local, quota.Options{Now: func() time.Time { return now }})
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	var first string
	for i := range 3 {
		g, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 1, RequestID: fmt.Sprint(i), TTL: time.Duration(i+1) * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = g.Reservation
		}
	}
	now = now.Add(time.Minute)
	failing := quota.New(stubborn{local, first}, quota.Options{Now: func() time.Time { return now }})
	if n, err := failing.Sweep(t.Context()); n != 2 || !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("%d returned, %v", n, err)
	}
	if n, err := m.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("%d returned, %v", n, err)
	}
}

// The sweeper's loop, and a day that begins anew meanwhile.
func TestRunSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := quota.New(quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})), quota.Options{})
		time.Sleep(time.Until(instant(t, "2026-10-25T22:59:58Z"))) // in Berlin a day of 25 hours ends 2 s later
		if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: quota.Day, Zone: "Europe/Berlin"}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 4, RequestID: "r", TTL: 500 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var reports []string
		begun := time.Now()
		go quota.RunSweeper(ctx, m, time.Second, func(n int, err error) {
			if len(reports) < 3 {
				reports = append(reports, fmt.Sprint(time.Since(begun), n, err))
			}
		})
		available := map[time.Duration]int64{}
		for _, at := range []time.Duration{0, 900 * time.Millisecond, 1100 * time.Millisecond, 1900 * time.Millisecond, 2 * time.Second, 3 * time.Second} {
			time.Sleep(time.Until(begun.Add(at)))
			synctest.Wait()
			q, err := m.Consume(t.Context(), anyID, 1, at.String())
			if err != nil {
				t.Fatal(err)
			}
			available[at] = q.Available
		}
		cancel()
		synctest.Wait()
		var got []string
		for _, at := range slices.Sorted(maps.Keys(available)) {
			got = append(got, fmt.Sprintf("%s %d", at, available[at]))
		}
		if want := "0s 5,900ms 4,1.1s 7,1.9s 6,2s 9,3s 8"; strings.Join(got, ",") != want {
			t.Errorf("got %s, want %s", strings.Join(got, ","), want)
		}
		if want := "[0s 0 <nil> 1s 1 <nil> 2s 0 <nil>]"; fmt.Sprint(reports) != want {
			t.Errorf("got %v, want %s", reports, want)
		}
	})
}
