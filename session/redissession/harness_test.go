package redissession_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// The terms of the tests that do not say otherwise: F = 10 s, 20 s more in an outage.
var terms = session.Terms{Fresh: 10 * time.Second, Stale: 20 * time.Second}

const (
	tag = "abcdefghijklmnopqrstuv"
	sid = "0123456789012345678901"
)

var key = session.Key{Tenant: "acme", Tag: tag, ID: sid}

func hash(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

// A clock stands until it is told to move.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(time.Now().UnixMilli())
	return c
}

func (c *clock) Now() time.Time       { return time.UnixMilli(c.ms.Load()).UTC() }
func (c *clock) pass(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// A node is a client of the shared Redis with a key prefix of its own.
type node struct {
	*redis.Client
	prefix string
	calls  *calls
}

func dial(t testing.TB) node {
	t.Helper()
	return dialTo(t, engine.Redis(t).Addr)
}

// dialTo makes a client that is patient itself: only its callers are not.
func dialTo(t testing.TB, addr string) node {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	n := node{Client: c, prefix: engine.FreshPrefix(), calls: &calls{}}
	c.AddHook(n.calls)
	return n
}

// cache is one whose scripts are loaded, with a budget that no slow machine exceeds.
func (n node) cache(t testing.TB, now func() time.Time) *redissession.Cache {
	t.Helper()
	return redissession.New(n, redissession.Options{Prefix: n.prefix, Budget: 10 * time.Second, Now: now})
}

// calls counts the commands that a client sends, but for those that open a connection.
type calls struct {
	n    atomic.Int64
	last atomic.Pointer[string]
}

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name := strings.ToLower(cmd.Name())
		c.n.Add(1)
		c.last.Store(&name)
		return next(ctx, cmd)
	}
}

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// user and record are of a session made at the clock's instant: absolute 60 s, idle 20 s, so Q = 2 s and D = 4 s.
func user(version int64) session.User {
	return session.User{Tenant: "acme", User: "ann", SessionVersion: 3, PermissionEpoch: 5, Version: version}
}

func record(now time.Time) session.Record {
	at := now.UnixMilli()
	return session.Record{
		TokenHash: hash("token"), State: session.StateActive, SessionVersion: 3, PermissionEpoch: 5,
		IssuedAt: at, Absolute: at + 60_000, Idle: 20_000, Seen: at, AAL: 2, AMR: []string{"pwd", "otp"}, AuthAt: at,
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMain silences the client, which tells the world of every connection that it
// does not get.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	if os.Getenv(nodeDynamo) == "" {
		os.Exit(m.Run())
	}
	if err := runNode(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
