package kv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var start = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

func TestR54BoundedMemoryEvicts(t *testing.T) {
	now, soon, later := start, start.Add(time.Minute), start.Add(time.Hour)
	put := func(key string, expires time.Time) func(Tx) error {
		return func(tx Tx) error { tx.Put("things", key, nil, expires); return nil }
	}
	get := func(key string) func(Tx) error {
		return func(tx Tx) error { tx.Get("things", key); return nil }
	}
	m := NewMemory(MemoryOptions{MaxItems: 3, Now: func() time.Time { return now }})
	for _, step := range []struct {
		why  string
		fn   func(Tx) error
		want []string
	}{
		{"within the bound", put("a", time.Time{}), []string{"a"}},
		{"within the bound", put("b", later), []string{"a", "b"}},
		{"just full", put("c", time.Time{}), []string{"a", "b", "c"}},
		{"the oldest goes", put("d", time.Time{}), []string{"b", "c", "d"}},
		{"a get counts as a use", get("b"), []string{"b", "c", "d"}},
		{"so the next oldest goes", put("e", time.Time{}), []string{"b", "d", "e"}},
		{"a put counts as a use", put("b", later), []string{"b", "d", "e"}},
		{"a deletion makes room", func(tx Tx) error { tx.Delete("things", "e"); return nil }, []string{"b", "d"}},
		{"room is used", put("f", later), []string{"b", "d", "f"}},
		{"a scan is no use", func(tx Tx) error { tx.Scan("things", "", "", func(string, []byte) bool { return true }); return nil }, []string{"b", "d", "f"}},
		{"d is the oldest", put("g", soon), []string{"b", "f", "g"}},
		{"a minute passes", func(Tx) error { now = soon; return nil }, []string{"b", "f", "g"}},
		{"what has expired goes first, however new", put("h", later), []string{"b", "f", "h"}},
		{"two too many, one of them expired", func(tx Tx) error {
			tx.Put("things", "i", nil, start)
			tx.Put("things", "j", nil, later)
			return nil
		}, []string{"f", "h", "j"}},
		{"a transaction larger than the bound keeps as many as fit", func(tx Tx) error {
			for i := range 5 {
				tx.Put("others", fmt.Sprint(i), nil, time.Time{})
			}
			return nil
		}, nil},
	} {
		if err := m.Update(t.Context(), step.fn); err != nil {
			t.Fatal(err)
		}
		got := keys(t, m)
		if step.want != nil && !slices.Equal(got, step.want) || len(got) > 3 {
			t.Errorf("%s: %q, want %q", step.why, got, step.want)
		}
	}
	if n, err := m.Sweep(t.Context(), later, 10); n != 0 || err != nil {
		t.Errorf("Sweep: %d, %v; evicted items must not stay in the expiry index", n, err)
	}
	if got := len(m.items); got != 3 {
		t.Errorf("%d items in memory, want 3", got)
	}
}

func TestR54ABucketWithABoundOfItsOwn(t *testing.T) {
	now, later := start, start.Add(time.Hour)
	m := NewMemory(MemoryOptions{MaxItems: 2, Apart: []string{"ids"}, Now: func() time.Time { return now }})
	for _, step := range []struct {
		why, bucket, key string
		expires          time.Time
		want             []string
	}{
		{"its own room", "ids", "1", later, []string{"1"}},
		{"the others'", "things", "a", later, []string{"1", "a"}},
		{"the others'", "things", "b", later, []string{"1", "a", "b"}},
		{"its own room", "ids", "2", start.Add(time.Minute), []string{"1", "2", "a", "b"}},
		{"its own oldest goes", "ids", "3", later, []string{"2", "3", "a", "b"}},
		{"the others' oldest goes", "more", "c", later, []string{"2", "3", "c", "b"}},
		{"what has expired makes room only in its list", "things", "d", start.Add(2 * time.Minute), []string{"3", "c", "d"}},
		{"what has expired goes first, behind what has elsewhere", "things", "e", later, []string{"3", "c", "e"}},
	} {
		if step.key == "d" {
			now = start.Add(time.Minute)
		}
		if step.key == "e" {
			now = start.Add(2 * time.Minute)
			if err := m.Update(t.Context(), func(tx Tx) error { tx.Put("ids", "4", nil, start); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		err := m.Update(t.Context(), func(tx Tx) error { tx.Put(step.bucket, step.key, nil, step.expires); return nil })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := m.Walk(t.Context(), func(_, key string, _ []byte) bool { got = append(got, key); return true }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.why, got, step.want)
		}
	}
}

func TestR37SweepWithAnEarlierClock(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	if err := m.Update(t.Context(), func(tx Tx) error { tx.Put("things", "a", nil, start); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, now := range []time.Time{start.Add(-time.Nanosecond), start.AddDate(-100, 0, 0), {}, time.Unix(0, 0)} {
		if n, err := m.Sweep(t.Context(), now, 10); n != 0 || err != nil {
			t.Errorf("Sweep at %v: %d, %v; a, which expires at %v, must stay", now, n, err, start)
		}
	}
}

func TestRunSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(MemoryOptions{})
		began := time.Now()
		err := m.Update(t.Context(), func(tx Tx) error {
			for i := range 2*sweepLimit + 1 {
				tx.Put("things", fmt.Sprint(i), nil, began.Add(90*time.Second))
			}
			tx.Put("things", "at the start", nil, began)
			tx.Put("things", "for ever", nil, time.Time{})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var reports []string
		report := func(removed int, err error) {
			reports = append(reports, fmt.Sprint(time.Since(began), " ", removed, " ", err))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			RunSweeper(ctx, m, time.Minute, time.Now, report)
			close(ended)
		}()
		time.Sleep(150 * time.Second)
		_ = m.Close()
		time.Sleep(time.Minute)
		cancel()
		<-ended
		want := []string{"0s 1 <nil>", "1m0s 0 <nil>", "2m0s 1001 <nil>", "3m0s 0 kv: store is closed: keytype: the store is unavailable"}
		if !slices.Equal(reports, want) {
			t.Errorf("reports %q, want %q", reports, want)
		}
	})
}

func TestSortedKeys(t *testing.T) {
	var s sortedKeys
	random := rand.New(rand.NewPCG(1, 2))
	model := map[string]bool{}
	for i := range 20_000 {
		key := fmt.Sprintf("%04d", random.IntN(6000))
		if random.IntN(10_000) < i/2 { // grows first, then shrinks
			s.remove(key)
			delete(model, key)
		} else {
			s.insert(key)
			model[key] = true
		}
		if i%1000 == 0 {
			expectSorted(t, &s, model, key)
		}
	}
	for key := range model {
		s.remove(key)
	}
	expectSorted(t, &s, nil, "")
	if len(s.chunks) != 0 {
		t.Errorf("%d chunks of nothing", len(s.chunks))
	}
}

func expectSorted(t *testing.T, s *sortedKeys, model map[string]bool, first string) {
	t.Helper()
	var want []string
	for key := range model {
		if key >= first {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	if got := slices.Collect(s.from(first)); !slices.Equal(got, want) {
		t.Errorf("from %q: %d keys, want %d", first, len(got), len(want))
	}
	for _, c := range s.chunks {
		if len(c) == 0 || len(c) > chunkSize {
			t.Errorf("a chunk of %d keys", len(c))
		}
	}
}
