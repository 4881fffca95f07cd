package kv_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/internal/kv"
)

func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coord.db")
	acked := []string{}
	for round := range 3 {
		c := startChild(t, []string{childFile + "=" + path, fmt.Sprintf("%s=%d", childWriters, 8)})
		if _, err := kv.Open(path, kv.BoltOptions{}); !errors.Is(err, kv.ErrLocked) {
			t.Fatalf("Open while another process has the file: %v, want ErrLocked", err)
		}
		for n := 0; ; n++ {
			line, ok := c.line()
			if !ok {
				break // all that it wrote before it died has been read
			}
			key, ok := strings.CutPrefix(line, "ack ")
			if !ok {
				t.Fatalf("round %d: %s", round, line)
			}
			acked = append(acked, key)
			if n == 100 {
				if err := c.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.cmd.Wait(); err == nil || c.cmd.ProcessState.Exited() {
			t.Fatalf("round %d: the writer ended by itself: %v", round, c.cmd.ProcessState)
		}
		expectKeys(t, path, acked)
	}
	if len(acked) < 300 {
		t.Errorf("only %d writes were acknowledged", len(acked))
	}
}

func expectKeys(t *testing.T, path string, acked []string) {
	t.Helper()
	store, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	err = store.View(t.Context(), func(tx kv.Tx) error {
		for _, key := range acked {
			if got := tx.Get("acks", key); string(got) != key {
				t.Errorf("acknowledged %s, found %q", key, got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAcknowledgementFollowsFsync(t *testing.T) {
	const writes = 20
	check := func(t *testing.T, env ...string) error {
		events := trace(t, append(env, fmt.Sprintf("%s=%d", childWrites, writes)))
		if acks := count(events, "ack"); acks != writes {
			t.Fatalf("%d acknowledgements, want %d: %q", acks, writes, events)
		}
		if got := events[:3]; !slices.Equal(got, []string{"sync", "sync", "ready"}) {
			t.Errorf("Open began with %q; it must sync the file, which a process that died may have left, and the folder", got)
		}
		return unsyncedAck(events)
	}
	t.Run("as the service runs it", func(t *testing.T) {
		if err := check(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("with NoSync", func(t *testing.T) {
		if err := check(t, childNoSync+"=1"); err == nil {
			t.Error("the check accepts a store without fsync")
		}
	})
}

func TestFailedFsyncIsNotAcknowledged(t *testing.T) {
	// strace counts by thread. As a rule Open's sync is the first, then come the
	// pages and the meta page of the first commit.
	for _, failing := range []int{2, 3} {
		events := trace(t, []string{childWrites + "=10"}, "-e", fmt.Sprintf("inject=fdatasync:error=EIO:when=%d", failing))
		if count(events, "fault") == 0 || count(events, "lost") == 0 {
			t.Errorf("sync %d: none failed: %q", failing, events)
		}
		if err := unsyncedAck(events); err != nil {
			t.Errorf("sync %d: %v", failing, err)
		}
	}
}

// unsyncedAck finds an acknowledgement that does not come after a finished
// fsync, or after a failed one, since the line before it. It also finds one
// after the fsync of a meta page failed, the second of its commit: the state of
// the disk is unknown from then on.
func unsyncedAck(events []string) error {
	var since []string
	doubt := false
	for i, e := range events {
		switch e {
		case "sync", "fault":
			since = append(since, e)
			continue
		case "ack":
			if doubt || !slices.Contains(since, "sync") || slices.Contains(since, "fault") {
				return fmt.Errorf("event %d acknowledges after %q, in doubt: %t", i, since, doubt)
			}
		case "lost":
			doubt = doubt || slices.Equal(since, []string{"sync", "fault"})
		}
		since = nil
	}
	return nil
}

var (
	syncEnd   = regexp.MustCompile(`f(?:data)?sync(?:\(\d+| resumed>)\) += (0|-1)`)
	lineBegin = regexp.MustCompile(`write\(1, "(ready|ack|lost)`)
)

// trace runs one writer on a file that exists and returns, in order, its
// finished and failed syncs and its lines: sync, fault, ready, ack, lost.
func trace(t *testing.T, env []string, inject ...string) (events []string) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed, so nothing shows that an acknowledgement follows its fsync")
	}
	path, log := filepath.Join(t.TempDir(), "coord.db"), filepath.Join(t.TempDir(), "trace")
	store, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	strace := append([]string{"strace", "-f", "-o", log, "-e", "trace=fdatasync,fsync,write"}, inject...)
	c := startChild(t, append(env, childFile+"="+path, childWriters+"=1"), strace...)
	for _, more := c.line(); more; _, more = c.line() {
	}
	_ = c.cmd.Wait() // a writer whose commits failed may end with an error
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if m := syncEnd.FindStringSubmatch(line); m != nil {
			events = append(events, map[string]string{"0": "sync", "-1": "fault"}[m[1]])
		} else if m := lineBegin.FindStringSubmatch(line); m != nil {
			events = append(events, m[1])
		}
	}
	return events
}

func count(events []string, event string) (n int) {
	for _, e := range events {
		if e == event {
			n++
		}
	}
	return n
}
