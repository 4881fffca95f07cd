package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// lockTTL is how long a lock lasts in this comparison, with every contestant.
const lockTTL = 5 * time.Second

// A contestant takes, keeps and gives back locks, all over one tap. It reports whether
// the operation succeeded; err is a defect of the run.
type contestant interface {
	// acquire asks once where wait is false, else until the lock is its owner's.
	acquire(ctx context.Context, key, owner string, wait bool) (ok bool, err error)
	renew(ctx context.Context, key, owner string) (ok bool, err error)
	release(ctx context.Context, key, owner string) (ok bool, err error)
}

// A trial is one line of the comparison: what prepares it, and what is counted.
type trial struct {
	name    string
	lose    bool // the answer to the first write
	prepare func(ctx context.Context, c contestant, key string) error
	do      func(ctx context.Context, c contestant, key string) (bool, error)
	holds   string // whose lock it is to be afterwards, "" where nobody's
}

func trials() []trial {
	none := func(context.Context, contestant, string) error { return nil }
	held := func(by string) func(context.Context, contestant, string) error {
		return func(ctx context.Context, c contestant, key string) error {
			return demand(c.acquire(ctx, key, by, false))
		}
	}
	acquire := func(wait bool) func(context.Context, contestant, string) (bool, error) {
		return func(ctx context.Context, c contestant, key string) (bool, error) {
			return c.acquire(ctx, key, "a", wait)
		}
	}
	renew := func(ctx context.Context, c contestant, key string) (bool, error) { return c.renew(ctx, key, "a") }
	release := func(ctx context.Context, c contestant, key string) (bool, error) {
		return c.release(ctx, key, "a")
	}
	return []trial{
		{"acquire", false, none, acquire(false), "a"},
		{"renew", false, held("a"), renew, "a"},
		{"release", false, held("a"), release, ""},
		{"acquire what is held, without waiting", false, held("b"), acquire(false), "b"},
		{"acquire, answer lost", true, none, acquire(true), "a"},
		{"renew, answer lost", true, held("a"), renew, "a"},
		{"release, answer lost", true, held("a"), release, ""},
	}
}

func demand(ok bool, err error) error {
	if err == nil && !ok {
		err = errors.New("a lock that nobody held was refused")
	}
	return err
}

// A finding is what came of a trial.
type finding struct {
	requests string // counted at the tap
	ok       bool   // what the caller was told
	took     time.Duration
	right    bool // the lock is whose it is to be, as far as that owner can act on it
}

// compareLocks runs all trials on one engine, one contestant after the other.
func compareLocks(ctx context.Context, out io.Writer, peer string) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	engine, err := start(nil, "dynoxide", "serve", "--host", host, "--port", port, "--log", "quiet")
	if err != nil {
		return err
	}
	defer engine.stop()
	if err := await(ctx, addr, ""); err != nil {
		return err
	}
	tap, err := startTap("http://" + addr)
	if err != nil {
		return err
	}
	ours, err := newOurs(ctx, "http://"+tap.addr)
	if err != nil {
		return err
	}
	contestants := map[string]contestant{"coordsvc": ours}
	if peer != "" {
		p, err := startPeer(peer, "http://"+tap.addr)
		if err != nil {
			return err
		}
		defer p.stop()
		contestants[peerName] = p
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "locks of %v\trequests\ttold\tafter\tas it should be\n", lockTTL)
	for _, name := range slices.Sorted(maps.Keys(contestants)) {
		for i, trial := range trials() {
			f, err := trial.run(ctx, contestants[name], tap, fmt.Sprintf("trial-%d", i))
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, trial.name, err)
			}
			told := map[bool]string{true: "done", false: "refused"}[f.ok]
			fmt.Fprintf(w, "%s: %s\t%s\t%s\t%v\t%t\n", name, trial.name, f.requests, told, f.took.Round(time.Millisecond), f.right)
		}
	}
	return w.Flush()
}

func (t trial) run(ctx context.Context, c contestant, tap *tap, key string) (f finding, err error) {
	if err := t.prepare(ctx, c, key); err != nil {
		return f, err
	}
	tap.begin(t.lose)
	began := time.Now()
	f.ok, err = t.do(ctx, c, key)
	f.took = time.Since(began)
	if err != nil {
		return f, err
	}
	f.requests = inWords(tap.counts())
	f.right, err = t.check(ctx, c, key)
	return f, err
}

// check has the rightful owner renew, or another one acquire where the lock is free.
func (t trial) check(ctx context.Context, c contestant, key string) (bool, error) {
	if t.holds != "" {
		return c.renew(ctx, key, t.holds)
	}
	return c.acquire(ctx, key, "c", false)
}

func inWords(counts map[string]int) string {
	total, parts := 0, []string(nil)
	for _, operation := range slices.Sorted(maps.Keys(counts)) {
		total += counts[operation]
		parts = append(parts, fmt.Sprintf("%d %s", counts[operation], operation))
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
}

// environment is what reaches the engine through the tap: engines check no signature.
func environment(endpoint string) []string {
	return []string{"DYNAMODB_ENDPOINT=" + endpoint, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=AKIDLOCAL", "AWS_SECRET_ACCESS_KEY=secret", "LOCK_TTL=" + lockTTL.String()}
}
