package kv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// The test binary runs as a writer when its environment says so: in a process
// of its own, which a test can kill or trace.
const (
	childFile    = "KV_TEST_FILE"
	childWriters = "KV_TEST_WRITERS" // goroutines that write
	childWrites  = "KV_TEST_WRITES"  // by each of them; 0 = until killed
	childNoSync  = "KV_TEST_NOSYNC"
)

func TestMain(m *testing.M) {
	if os.Getenv(childFile) == "" {
		os.Exit(m.Run())
	}
	if err := runChild(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runChild prints "ready", then "ack <key>" after each acknowledged write and
// "lost <key>" after each other, each line in one write to stdout.
func runChild() error {
	store, err := kv.Open(os.Getenv(childFile), kv.BoltOptions{NoSync: os.Getenv(childNoSync) != ""})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	writers, _ := strconv.Atoi(os.Getenv(childWriters))
	writes, _ := strconv.Atoi(os.Getenv(childWrites))
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 0; writes == 0 || i < writes; i++ {
				key := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				err := store.Update(context.Background(), func(tx kv.Tx) error {
					tx.Put("acks", key, []byte(key), time.Time{})
					return nil
				})
				if err != nil {
					fmt.Println("lost", key)
				} else {
					fmt.Println("ack", key)
				}
			}
		})
	}
	wg.Wait()
	return store.Close()
}

// A child is the running writer.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startChild starts the writer, behind the words of a tracer if any, and waits until it has the file open.
func startChild(t *testing.T, env []string, tracer ...string) *child {
	t.Helper()
	args := slices.Concat(tracer, os.Args[:1])
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, lines: bufio.NewScanner(out)}
	if line, ok := c.line(); !ok || line != "ready" {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		t.Fatalf("the writer said %q instead of ready: %s", line, stderr.String())
	}
	return c
}

func (c *child) line() (string, bool) {
	if !c.lines.Scan() {
		return "", false
	}
	return c.lines.Text(), true
}
