// Package kvtest decides whether a store keeps the contract of [kv.Store].
package kvtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// Store is what the suite needs of a store.
type Store interface {
	kv.Store
	kv.Sweeper
	Walk(ctx context.Context, fn func(bucket, key string, value []byte) bool) error
}

const bucket = "things"

var start = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// Run runs the suite. open returns an empty store, which the suite closes.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s Store)
	}{
		{"reads what was written", testReadWrite},
		{"an error leaves nothing", testError},
		{"a panic leaves nothing and reaches the caller", testPanic},
		{"an exit of fn's goroutine leaves nothing", testGoexit},
		{"a view does not write", testViewWrites},
		{"a finished transaction is of no use", testFinished},
		{"names that no store could keep", testNames},
		{"no update is lost", testNoLostUpdate},
		{"transactions that fail do not hurt others", testNeighbours},
		{"a view sees one state", testViewState},
		{"scan", testScan},
		{"scan shows the transaction's own writes", testScanOwnWrites},
		{"scan is not disturbed by writes", testScanAndWrite},
		{"walk", testWalk},
		{"sweep removes what has expired", testSweep},
		{"sweep removes the oldest first, up to its limit", testSweepLimit},
		{"sweep goes by the latest expiry", testSweepPutAgain},
		{"sweep at the ends of time", testSweepEnds},
		{"a context that ended", testContext},
		{"closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() { check(t, s.Close()) })
			c.test(t, s)
		})
	}
}

func put(tx kv.Tx, key, value string) { tx.Put(bucket, key, []byte(value), time.Time{}) }

func update(t *testing.T, s kv.Store, fn func(tx kv.Tx)) {
	t.Helper()
	check(t, s.Update(t.Context(), func(tx kv.Tx) error { fn(tx); return nil }))
}

func view(t *testing.T, s kv.Store, fn func(tx kv.Tx)) {
	t.Helper()
	check(t, s.View(t.Context(), func(tx kv.Tx) error { fn(tx); return nil }))
}

func inParallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func expect(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if string(got) != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func expectPanic(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	fn()
}

// expectItems compares the whole store with "bucket/key=value" in order.
func expectItems(t *testing.T, s Store, want ...string) {
	t.Helper()
	var got []string
	check(t, s.Walk(t.Context(), func(bucket, key string, value []byte) bool {
		got = append(got, fmt.Sprintf("%s/%s=%s", bucket, key, value))
		return true
	}))
	if !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
}
