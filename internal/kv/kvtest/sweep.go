package kvtest

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

func testSweep(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) {
		tx.Put(bucket, "past", nil, start.Add(-time.Nanosecond))
		tx.Put(bucket, "now", nil, start)
		tx.Put(bucket, "future", nil, start.Add(time.Nanosecond))
		tx.Put(bucket, "for ever", nil, time.Time{})
		tx.Put("other", "past", nil, start.Add(-time.Hour))
	})
	view(t, s, func(tx kv.Tx) {
		if tx.Get(bucket, "past") == nil || !slices.Contains(scan(tx, "", ""), "past") {
			t.Error("an expired item must stay until a sweep")
		}
	})
	if n, err := s.Sweep(t.Context(), start, 10); n != 3 || err != nil {
		t.Errorf("Sweep: %d, %v; want 3", n, err)
	}
	expectItems(t, s, "things/for ever=", "things/future=")
	if n, err := s.Sweep(t.Context(), start, 10); n != 0 || err != nil {
		t.Errorf("Sweep again: %d, %v; want 0", n, err)
	}
}

func testSweepLimit(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) {
		for i := range 7 {
			tx.Put(bucket, strconv.Itoa(i), nil, start.Add(time.Duration(-i)*time.Hour))
		}
	})
	for _, c := range []struct {
		limit, removed int
		left           []string
	}{
		{0, 0, []string{"things/0=", "things/1=", "things/2=", "things/3=", "things/4=", "things/5=", "things/6="}},
		{3, 3, []string{"things/0=", "things/1=", "things/2=", "things/3="}},
		{3, 3, []string{"things/0="}},
		{3, 1, nil},
	} {
		if n, err := s.Sweep(t.Context(), start, c.limit); n != c.removed || err != nil {
			t.Errorf("Sweep of %d: %d, %v; want %d", c.limit, n, err, c.removed)
		}
		expectItems(t, s, c.left...)
	}
}

func testSweepPutAgain(t *testing.T, s Store) {
	past, future := start.Add(-time.Second), start.Add(time.Second)
	for _, c := range []struct {
		key           string
		first, second time.Time
		swept         bool
	}{
		{"later", past, future, false},
		{"for ever", past, time.Time{}, false},
		{"sooner", future, past, true},
		{"no longer for ever", time.Time{}, past, true},
		{"the same", past, past, true},
	} {
		update(t, s, func(tx kv.Tx) { tx.Put(bucket, c.key, nil, c.first) })
		update(t, s, func(tx kv.Tx) { tx.Put(bucket, c.key, nil, c.second) })
		update(t, s, func(tx kv.Tx) { // both in one transaction
			tx.Put(bucket, c.key+" at once", nil, c.first)
			tx.Put(bucket, c.key+" at once", nil, c.second)
		})
		want, left := 2, 0
		if !c.swept {
			want, left = 0, 2
		}
		if n, err := s.Sweep(t.Context(), start, 10); n != want || err != nil {
			t.Errorf("%s: swept %d, %v; want %d", c.key, n, err, want)
		}
		view(t, s, func(tx kv.Tx) {
			if got := len(scan(tx, c.key, "")); got != left {
				t.Errorf("%s: %d items left, want %d", c.key, got, left)
			}
		})
	}
	update(t, s, func(tx kv.Tx) { tx.Put(bucket, "deleted", nil, past) })
	update(t, s, func(tx kv.Tx) { tx.Delete(bucket, "deleted") })
	if n, err := s.Sweep(t.Context(), start, 10); n != 0 || err != nil {
		t.Errorf("deleted before: swept %d, %v", n, err)
	}
}

func testSweepEnds(t *testing.T, s Store) {
	epoch := time.Unix(0, 0)
	update(t, s, func(tx kv.Tx) {
		tx.Put(bucket, "before 1970", nil, epoch.Add(-time.Hour))
		tx.Put(bucket, "1970", nil, epoch)
		// In nanoseconds modulo 2^64, this is 1990.
		tx.Put(bucket, "2575", nil, time.Date(2575, 1, 1, 0, 0, 0, 0, time.UTC))
		tx.Put(bucket, "9999", nil, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
		tx.Put(bucket, "for ever", nil, time.Time{})
	})
	for _, c := range []struct {
		why     string
		now     time.Time
		removed int
	}{
		{"no instant at all", time.Time{}, 0},
		{"today", start, 2},
	} {
		if n, err := s.Sweep(t.Context(), c.now, 10); n != c.removed || err != nil {
			t.Errorf("%s: swept %d, %v; want %d", c.why, n, err, c.removed)
		}
	}
	expectItems(t, s, "things/2575=", "things/9999=", "things/for ever=")
}
