package kvtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

func testReadWrite(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) {
		if got := tx.Get(bucket, "a"); got != nil {
			t.Errorf("an item before it was put: %q", got)
		}
		tx.Delete(bucket, "a") // what is not there
		put(tx, "a", "1")
		put(tx, "b", "1")
		tx.Put("other", "a", []byte("other"), time.Time{})
		expect(t, "own write", tx.Get(bucket, "a"), "1")
		put(tx, "a", "2")
		expect(t, "own second write", tx.Get(bucket, "a"), "2")
		tx.Delete(bucket, "b")
		if got := tx.Get(bucket, "b"); got != nil {
			t.Errorf("own deletion: %q", got)
		}
		put(tx, "empty", "")
		tx.Put(bucket, "nil", nil, time.Time{})
	})
	view(t, s, func(tx kv.Tx) {
		expect(t, "a", tx.Get(bucket, "a"), "2")
		expect(t, "the other bucket's a", tx.Get("other", "a"), "other")
		if got := tx.Get(bucket, "b"); got != nil {
			t.Errorf("put and deleted: %q", got)
		}
		for _, key := range []string{"empty", "nil"} {
			if got := tx.Get(bucket, key); got == nil || len(got) != 0 {
				t.Errorf("%s: %#v, want an empty value, not none", key, got)
			}
		}
		if got := tx.Get("no such bucket", "a"); got != nil {
			t.Errorf("from no bucket: %q", got)
		}
	})
}

func testError(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) { put(tx, "a", "before"); put(tx, "b", "before") })
	refusal := errors.New("no")
	err := s.Update(t.Context(), func(tx kv.Tx) error {
		change(tx)
		return refusal
	})
	if err != refusal { //nolint:errorlint // it must come back as it is
		t.Errorf("Update: %v, want fn's own error", err)
	}
	expectUnchanged(t, s)
	if err := s.View(t.Context(), func(kv.Tx) error { return refusal }); err != refusal { //nolint:errorlint // as above
		t.Errorf("View: %v, want fn's own error", err)
	}
}

func testPanic(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) { put(tx, "a", "before"); put(tx, "b", "before") })
	for name, begin := range map[string]func(context.Context, func(kv.Tx) error) error{"Update": s.Update, "View": s.View} {
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("%s: recovered %v, want fn's own panic", name, r)
				}
			}()
			_ = begin(t.Context(), func(tx kv.Tx) error {
				if name == "Update" {
					change(tx)
				}
				panic("boom")
			})
		}()
	}
	expectUnchanged(t, s)
}

// t.FailNow inside fn is such an exit.
func testGoexit(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) { put(tx, "a", "before"); put(tx, "b", "before") })
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Update(t.Context(), func(tx kv.Tx) error {
			change(tx)
			runtime.Goexit()
			return nil
		})
	})
	wg.Wait()
	expectUnchanged(t, s)
}

// change is what a transaction did before it failed.
func change(tx kv.Tx) {
	put(tx, "a", "after")
	tx.Delete(bucket, "b")
	tx.Put("new bucket", "c", []byte("after"), start)
}

func expectUnchanged(t *testing.T, s Store) {
	t.Helper()
	expectItems(t, s, "things/a=before", "things/b=before")
	if n, err := s.Sweep(t.Context(), start.Add(time.Hour), 10); n != 0 || err != nil {
		t.Errorf("Sweep: %d, %v; want nothing to sweep", n, err)
	}
}

func testViewWrites(t *testing.T, s Store) {
	view(t, s, func(tx kv.Tx) {
		expectPanic(t, "Put", func() { put(tx, "a", "1") })
		expectPanic(t, "Delete", func() { tx.Delete(bucket, "a") })
	})
	expectItems(t, s)
}

func testFinished(t *testing.T, s Store) {
	var kept kv.Tx
	update(t, s, func(tx kv.Tx) { kept = tx })
	expectPanic(t, "Get after Update", func() { kept.Get(bucket, "a") })
	expectPanic(t, "Put after Update", func() { put(kept, "a", "1") })
	view(t, s, func(tx kv.Tx) { kept = tx })
	expectPanic(t, "Scan after View", func() {
		kept.Scan(bucket, "", "", func(string, []byte) bool { return true })
	})
}

func testNames(t *testing.T, s Store) {
	long := func(n int) string { return strings.Repeat("x", n) }
	update(t, s, func(tx kv.Tx) {
		for _, name := range []string{"", ".expiry", ".meta", ".", long(256)} {
			expectPanic(t, fmt.Sprintf("Put in bucket %.10q", name), func() { tx.Put(name, "k", nil, start) })
			expectPanic(t, fmt.Sprintf("Get from bucket %.10q", name), func() { tx.Get(name, "k") })
		}
		for _, key := range []string{"", long(16<<10 + 1)} {
			expectPanic(t, fmt.Sprintf("key of %d bytes", len(key)), func() { put(tx, key, "1") })
			if got := tx.Get(bucket, key); got != nil {
				t.Errorf("key of %d bytes: %q", len(key), got)
			}
			tx.Delete(bucket, key)
		}
		tx.Put(long(255), long(16<<10), []byte("fits"), start)
	})
	view(t, s, func(tx kv.Tx) { expect(t, "the longest names", tx.Get(long(255), long(16<<10)), "fits") })
	if n, err := s.Sweep(t.Context(), start, 10); n != 1 || err != nil {
		t.Errorf("Sweep of the longest names: %d, %v", n, err)
	}
}

func testNoLostUpdate(t *testing.T, s Store) {
	const writers, each = 16, 25
	inParallel(writers, func(int) {
		for range each {
			check(t, s.Update(t.Context(), func(tx kv.Tx) error {
				n, _ := strconv.Atoi(string(tx.Get(bucket, "n")))
				put(tx, "n", strconv.Itoa(n+1))
				return nil
			}))
		}
	})
	expectItems(t, s, "things/n="+strconv.Itoa(writers*each))
}

func testNeighbours(t *testing.T, s Store) {
	const writers = 32
	refusal := errors.New("no")
	inParallel(writers, func(i int) {
		defer func() { _ = recover() }()
		_ = s.Update(t.Context(), func(tx kv.Tx) error {
			n, _ := strconv.Atoi(string(tx.Get(bucket, "n")))
			put(tx, "n", strconv.Itoa(n+1))
			switch i % 4 {
			case 0:
				return refusal
			case 1:
				panic("boom")
			}
			return nil
		})
	})
	expectItems(t, s, "things/n="+strconv.Itoa(writers/2))
}

func testViewState(t *testing.T, s Store) {
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 50 {
			update(t, s, func(tx kv.Tx) { put(tx, "a", strconv.Itoa(i)); put(tx, "b", strconv.Itoa(i)) })
			view(t, s, func(tx kv.Tx) { expect(t, "a, just acknowledged", tx.Get(bucket, "a"), strconv.Itoa(i)) })
		}
	})
	inParallel(4, func(int) {
		for range 50 {
			view(t, s, func(tx kv.Tx) {
				a := string(tx.Get(bucket, "a"))
				runtime.Gosched()
				expect(t, "b, always equal to a", tx.Get(bucket, "b"), a)
			})
		}
	})
	writer.Wait()
}

func testContext(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fn := func(kv.Tx) error { t.Error("fn ran"); return nil }
	for range 20 { // what a select does with it is random
		if err := s.Update(ctx, fn); !errors.Is(err, context.Canceled) {
			t.Errorf("Update: %v, want context.Canceled", err)
		}
	}
	for name, err := range map[string]error{
		"View": s.View(ctx, fn),
		"Walk": s.Walk(ctx, func(string, string, []byte) bool { t.Error("fn ran"); return true }),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	if n, err := s.Sweep(ctx, start, 1); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Sweep: %d, %v, want context.Canceled", n, err)
	}
}

func testClosed(t *testing.T, s Store) {
	update(t, s, func(tx kv.Tx) { put(tx, "a", "1") })
	check(t, s.Close())
	fn := func(kv.Tx) error { t.Error("fn ran"); return nil }
	for name, err := range map[string]error{
		"Update": s.Update(t.Context(), fn),
		"View":   s.View(t.Context(), fn),
		"Walk":   s.Walk(t.Context(), func(string, string, []byte) bool { t.Error("fn ran"); return true }),
	} {
		if !errors.Is(err, kv.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if n, err := s.Sweep(t.Context(), start, 1); n != 0 || !errors.Is(err, kv.ErrClosed) {
		t.Errorf("Sweep: %d, %v, want ErrClosed", n, err)
	}
	check(t, s.Close())
}
