package kv

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/coordsvc/coordsvc/keytype"
)

func TestFailedCommitFailsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newFile(t)
		b := openBolt(t, path, BoltOptions{})
		if err := b.Update(t.Context(), putKey("before")); err != nil {
			t.Fatal(err)
		}
		refusal := errors.New("no")
		restore := fillDisk(t, path)
		errs := inBatch(t, b, putKey("a"), func(Tx) error { return refusal }, putKey("b"))
		for i, err := range errs {
			if !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, refusal) || !strings.HasPrefix(err.Error(), "commit: ") {
				t.Errorf("member %d: %v, want the failed commit", i, err)
			}
		}
		if got := keys(t, b); !slices.Equal(got, []string{"before"}) {
			t.Errorf("after the failure the store has %q", got)
		}
		restore()
		if err := b.Update(t.Context(), putKey("after")); err != nil {
			t.Errorf("with room on the disk again: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if got := keys(t, openBolt(t, path, BoltOptions{})); !slices.Equal(got, []string{"after", "before"}) {
			t.Errorf("opened anew the store has %q", got)
		}
	})
}

// fillDisk puts /dev/full in the place of the store's open file until restore is called.
func fillDisk(t *testing.T, path string) (restore func()) {
	t.Helper()
	fd := descriptor(t, path)
	kept, err := syscall.Dup(fd) // and with it the lock
	must(t, err)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	must(t, err)
	must(t, syscall.Dup3(int(full.Fd()), fd, 0))
	must(t, full.Close())
	return func() {
		must(t, syscall.Dup3(kept, fd, 0))
		must(t, syscall.Close(kept))
	}
}

func descriptor(t *testing.T, path string) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, entry := range open {
		if target, _ := os.Readlink("/proc/self/fd/" + entry.Name()); target == path {
			fd, err := strconv.Atoi(entry.Name())
			must(t, err)
			return fd
		}
	}
	t.Fatal("the file is not open")
	return 0
}
