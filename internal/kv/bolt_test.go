package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/coordsvc/coordsvc/keytype"
)

func openBolt(t *testing.T, path string, opts BoltOptions) *Bolt {
	t.Helper()
	b, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func newFile(t *testing.T) string { return filepath.Join(t.TempDir(), "coord.db") }

// putKey is a transaction that writes one item.
func putKey(key string) func(Tx) error {
	return func(tx Tx) error {
		tx.Put("things", key, []byte(key), time.Time{})
		return nil
	}
}

func keys(t *testing.T, s interface {
	Walk(ctx context.Context, fn func(bucket, key string, value []byte) bool) error
},
) (found []string) {
	t.Helper()
	err := s.Walk(t.Context(), func(_, key string, _ []byte) bool {
		found = append(found, key)
		return true
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// occupy begins a transaction that ends with release, so that others queue behind it.
func occupy(b *Bolt) (release func()) {
	begun, gate := make(chan struct{}), make(chan struct{})
	go func() {
		_ = b.Update(context.Background(), func(Tx) error {
			close(begun)
			<-gate
			return nil
		})
	}()
	<-begun
	return func() { close(gate) }
}

// inBatch runs fns, in order, in one batch if they fit one.
func inBatch(t *testing.T, b *Bolt, fns ...func(Tx) error) []error {
	release := occupy(b)
	errs := make([]error, len(fns))
	var wg sync.WaitGroup
	for i, fn := range fns {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					errs[i] = fmt.Errorf("panic: %v", r)
				}
			}()
			errs[i] = b.Update(t.Context(), fn)
		})
		synctest.Wait() // it is queued
	}
	release()
	wg.Wait()
	return errs
}

func TestGroupCommit(t *testing.T) {
	for _, c := range []struct {
		writers int
		commits int64
	}{
		{1, 1},
		{100, 1},
		{maxBatch - 1, 1}, // beside the one that they queue behind
		{maxBatch, 2},
		{3 * maxBatch, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := openBolt(t, newFile(t), BoltOptions{})
			before := b.durable.Load()
			fns := make([]func(Tx) error, c.writers)
			for i := range fns {
				fns[i] = putKey(strconv.Itoa(i))
			}
			if err := errors.Join(inBatch(t, b, fns...)...); err != nil {
				t.Error(err)
			}
			if got := b.durable.Load() - before; got != c.commits {
				t.Errorf("%d writers that waited: %d commits, want %d", c.writers, got, c.commits)
			}
			if got := len(keys(t, b)); got != c.writers {
				t.Errorf("%d writers: %d items", c.writers, got)
			}
		})
	}
}

func TestWritersAtOnceShareCommits(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{})
	before := b.durable.Load()
	const writers, each = 64, 10
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := b.Update(t.Context(), putKey(fmt.Sprint(w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	commits := b.durable.Load() - before
	t.Logf("%d writes in %d commits", writers*each, commits)
	if commits > writers*each/2 {
		t.Errorf("%d commits for %d writes", commits, writers*each)
	}
}

func TestBatchMembersDoNotHurtEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBolt(t, newFile(t), BoltOptions{})
		before := b.durable.Load()
		refusal := errors.New("no")
		fail := func(then func() error) func(Tx) error {
			return func(tx Tx) error {
				tx.Delete("things", "first")
				_ = putKey("of a failure")(tx)
				return then()
			}
		}
		errs := inBatch(t, b,
			putKey("first"),
			fail(func() error { return refusal }),
			fail(func() error { panic("boom") }),
			fail(func() error { runtime.Goexit(); return nil }),
			func(tx Tx) error {
				if tx.Get("things", "first") == nil || tx.Get("things", "of a failure") != nil {
					t.Error("a member must see what members before it wrote, and nothing of those that failed")
				}
				return nil
			},
			putKey("last"),
		)
		if got, want := fmt.Sprint(errs), "[<nil> no panic: boom <nil> <nil> <nil>]"; got != want {
			t.Errorf("results %s, want %s", got, want)
		}
		if got := keys(t, b); !slices.Equal(got, []string{"first", "last"}) {
			t.Errorf("the store has %q", got)
		}
		if got := b.durable.Load() - before; got != 1 {
			t.Errorf("%d commits, want 1", got)
		}
	})
}

func TestScanInABatchThatDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBolt(t, newFile(t), BoltOptions{NoSync: true})
		const n = 5000 // many pages
		key := func(i int) string { return fmt.Sprintf("%06d", i) }
		err := b.Update(t.Context(), func(tx Tx) error {
			for i := range n {
				tx.Put("things", key(i), []byte("stored"), time.Time{})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		errs := inBatch(t, b,
			func(tx Tx) error {
				for i := range n - 1 {
					if i%1000 != 999 {
						tx.Delete("things", key(i))
					}
				}
				return nil
			},
			func(tx Tx) error {
				tx.Scan("things", "", key(500), func(key string, _ []byte) bool { got = append(got, key); return true })
				return nil
			})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if want := []string{key(999), key(1999), key(2999), key(3999), key(4999)}; !slices.Equal(got, want) {
			t.Errorf("scanned %q, want %q", got, want)
		}
	})
}

func TestRefusalsCostNoCommit(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{})
	before := b.durable.Load()
	for range 3 {
		if err := b.Update(t.Context(), func(tx Tx) error { tx.Get("things", "a"); return nil }); err != nil {
			t.Error(err)
		}
		_ = b.Update(t.Context(), func(tx Tx) error { _ = putKey("a")(tx); return errors.New("no") })
	}
	if n, err := b.Sweep(t.Context(), time.Now(), 10); n != 0 || err != nil {
		t.Errorf("Sweep: %d, %v", n, err)
	}
	if got := b.durable.Load() - before; got != 0 {
		t.Errorf("%d commits of nothing", got)
	}
}

func TestContextEndsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBolt(t, newFile(t), BoltOptions{})
		release := occupy(b)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 2)
		for range 2 { // the second waits for the committer to take it up
			go func() { result <- b.Update(ctx, func(Tx) error { t.Error("fn ran"); return nil }) }()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("Update: %v, want context.Canceled", err)
			}
		}
		release()
		if err := b.Update(t.Context(), putKey("next")); err != nil {
			t.Error(err)
		}
	})
}

// The committer may see the end of the context before the caller does.
func TestCommitterPassesAContextBy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	synctest.Test(t, func(*testing.T) {
		left := &update{ctx: ctx, turn: make(chan *bbolt.Tx)}
		if writes := left.lend(nil); writes != nil {
			t.Errorf("a caller that has left wrote %v", writes)
		}
	})
	for range 100 { // whichever of the two the caller sees
		u := &update{ctx: ctx, result: make(chan error, 1)}
		u.result <- nil // the commit of the others
		err := u.await(func(Tx) error { t.Error("fn ran"); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("passed by, and Update said %v", err)
		}
	}
}

func TestContextEndsInTheTransaction(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	err := b.Update(ctx, func(tx Tx) error {
		cancel()
		return putKey("a")(tx)
	})
	if err != nil {
		t.Errorf("Update: %v, want the outcome of what was begun", err)
	}
	if got := keys(t, b); len(got) != 1 {
		t.Errorf("the store has %q", got)
	}
}

// What Update returns must agree with what it did, whenever the context ends.
func TestContextEndsAnywhere(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{NoSync: true})
	var wg sync.WaitGroup
	var acked, refused atomic.Int64
	for w := range 16 {
		wg.Go(func() {
			for i := range 300 {
				key := fmt.Sprint(w, "-", i)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for range rand.IntN(50) {
						runtime.Gosched()
					}
					cancel()
				}()
				err := b.Update(ctx, putKey(key))
				var stored bool
				_ = b.View(t.Context(), func(tx Tx) error { stored = tx.Get("things", key) != nil; return nil })
				switch {
				case err == nil && stored:
					acked.Add(1)
				case errors.Is(err, context.Canceled) && !stored:
					refused.Add(1)
				default:
					t.Errorf("%s: Update said %v, stored: %t", key, err, stored)
				}
			}
		})
	}
	wg.Wait()
	if acked.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d done, %d refused: one side was not tried", acked.Load(), refused.Load())
	}
}

func TestCloseFinishesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newFile(t)
		b := openBolt(t, path, BoltOptions{})
		release := occupy(b)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := b.Update(t.Context(), putKey(strconv.Itoa(i))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		for b.mu.TryRLock() { // until Close waits for the lock
			b.mu.RUnlock()
			runtime.Gosched()
		}
		release()
		wg.Wait()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := b.Update(t.Context(), putKey("late")); !errors.Is(err, ErrClosed) {
			t.Errorf("Update after Close: %v", err)
		}
		if _, err := b.Backup(t.Context(), io.Discard); !errors.Is(err, ErrClosed) {
			t.Errorf("Backup after Close: %v", err)
		}
		if got := len(keys(t, openBolt(t, path, BoltOptions{}))); got != 20 {
			t.Errorf("%d items, want 20", got)
		}
	})
}

// bbolt shows a commit before its fsync returned. Here the mark of what is on
// disk is moved back instead.
func TestViewWaitsForTheCommitItSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBolt(t, newFile(t), BoltOptions{})
		if err := b.Update(t.Context(), putKey("a")); err != nil {
			t.Fatal(err)
		}
		onDisk := b.durable.Load()
		release := occupy(b)
		b.durable.Store(onDisk - 1)
		result := make(chan error, 1)
		go func() { result <- b.View(t.Context(), func(Tx) error { return nil }) }()
		synctest.Wait()
		select {
		case err := <-result:
			t.Errorf("View: %v before the commit that it saw had ended", err)
		default:
		}
		b.durable.Store(onDisk)
		release()
		if err := <-result; err != nil {
			t.Errorf("View: %v", err)
		}
	})
}

func TestCommitInDoubt(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{})
	if err := b.Update(t.Context(), putKey("a")); err != nil {
		t.Fatal(err)
	}
	b.durable.Add(-1) // as after a failed fsync of the meta page
	for range 2 {
		if err := b.Update(t.Context(), putKey("b")); !errors.Is(err, errInDoubt) {
			t.Errorf("Update: %v, want errInDoubt", err)
		}
		if err := b.View(t.Context(), func(Tx) error { return nil }); !errors.Is(err, errInDoubt) {
			t.Errorf("View: %v, want errInDoubt", err)
		}
	}
}

func TestViewDoesNotHoldUpGrowth(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{NoSync: true})
	err := b.View(t.Context(), func(Tx) error {
		for i := range 8 { // MB; bbolt maps 32 KB of a new file unless told otherwise
			err := b.Update(t.Context(), func(tx Tx) error {
				tx.Put("things", strconv.Itoa(i), make([]byte, 1<<20), time.Time{})
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBackupWhileInUse(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{NoSync: true})
	write := func(i int) {
		err := b.Update(t.Context(), func(tx Tx) error {
			for _, key := range []string{"a", "b", "c"} { // always equal
				tx.Put(key, key, bytes.Repeat([]byte{byte(i)}, 3000), time.Time{})
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	write(0)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			write(i)
		}
	})
	for range 20 {
		path := newFile(t)
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := b.Backup(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := file.Stat(); err != nil || info.Size() != n {
			t.Errorf("Backup wrote %d bytes, says %d, %v", info.Size(), n, err)
		}
		_ = file.Close()
		expectEqualItems(t, openBolt(t, path, BoltOptions{}))
	}
	stop()
	writer.Wait()
}

func expectEqualItems(t *testing.T, copied *Bolt) {
	t.Helper()
	if err := copied.db.View(func(tx *bbolt.Tx) error { return <-tx.Check() }); err != nil {
		t.Errorf("the copy is inconsistent: %v", err)
	}
	var first []byte
	n := 0
	err := copied.Walk(t.Context(), func(bucket, _ string, value []byte) bool {
		if n++; n == 1 {
			first = bytes.Clone(value)
		}
		if !bytes.Equal(value, first) {
			t.Errorf("the copy has half of a transaction: %s differs", bucket)
		}
		return true
	})
	if err != nil || n != 3 {
		t.Errorf("the copy has %d items, %v", n, err)
	}
}

func TestBackupStops(t *testing.T) {
	b := openBolt(t, newFile(t), BoltOptions{})
	full := errors.New("disk full")
	_, err := b.Backup(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full }))
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Backup: %v, want the writer's error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	writes := 0
	_, err = b.Backup(ctx, writerFunc(func(p []byte) (int, error) { writes++; cancel(); return len(p), nil }))
	if !errors.Is(err, context.Canceled) || writes != 1 {
		t.Errorf("Backup: %v after %d writes, want the context's error after the first", err, writes)
	}
	if err := b.Update(t.Context(), putKey("a")); err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// TestFaultsSayWhetherAnythingHappened: a caller tells its own caller.
func TestFaultsSayWhetherAnythingHappened(t *testing.T) {
	b := openBolt(t, filepath.Join(t.TempDir(), "store"), BoltOptions{})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), putKey("late")); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("update after close: %v, want ErrUnavailable", err)
	}
	if err := b.View(t.Context(), func(Tx) error { return nil }); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("view after close: %v, want ErrUnavailable", err)
	}
}
