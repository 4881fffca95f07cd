package redissession_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

// The bounds of the runs, scaled down so that much happens in a short time.
const (
	fast     = 400 * time.Millisecond // F
	fastSkew = 40 * time.Millisecond  // σ
)

// depth is how many verifies a run makes at least, and for how long.
func depth(quick, proof int) (int, time.Duration) {
	if deep() {
		return proof, 30 * time.Second
	}
	return quick, 2500 * time.Millisecond
}

func deep() bool {
	text, _ := os.LookupEnv("COORD_TEST_DEPTH")
	return text == "proof"
}

// A slow is the real store in memory with the latency of a network, at times a
// large one, and the two records read one after the other.
type slow struct{ *session.Local }

func (s slow) pause() {
	switch n := rand.IntN(200); {
	case n == 0:
		time.Sleep(time.Duration(rand.Int64N(int64(fast))))
	case n < 20:
		time.Sleep(time.Duration(rand.Int64N(int64(5 * time.Millisecond))))
	}
}

func (s slow) Load(ctx context.Context, k session.Key) (session.User, session.Record, error) {
	for {
		u, err := s.LoadUser(ctx, k.Tag)
		if err != nil {
			return session.User{}, session.Record{}, err
		}
		s.pause()
		_, r, err := s.Local.Load(ctx, k)
		s.pause()
		if err != nil || r.SessionVersion <= u.SessionVersion {
			return u, r, err
		}
	}
}

func (s slow) Revoke(ctx context.Context, op session.RevokeOp) (session.Propagation, session.Outcome, error) {
	defer s.pause()
	return s.Local.Revoke(ctx, op)
}

func (s slow) Change(ctx context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	defer s.pause()
	return s.Local.Change(ctx, op)
}

// dropping is the real cache whose fills and bumps are lost while it is told so.
type dropping struct {
	session.Cache
	on *atomic.Bool
}

func (d dropping) Fill(ctx context.Context, f session.Fill, terms session.Terms) (bool, int64, error) {
	if d.on.Load() {
		return false, 0, context.DeadlineExceeded
	}
	return d.Cache.Fill(ctx, f, terms)
}

func (d dropping) Bump(ctx context.Context, tag string, version int64, terms session.Terms) error {
	if d.on.Load() {
		return context.DeadlineExceeded
	}
	return d.Cache.Bump(ctx, tag, version, terms)
}

// A shop is three processes over one durable store and one Redis.
type shop struct {
	nodes   []*session.Manager
	durable *session.Manager
	drop    atomic.Bool
}

func newShop(t *testing.T, client func() redis.UniversalClient) *shop {
	store := kv.NewMemory(kv.MemoryOptions{MaxItems: 1_000_000})
	t.Cleanup(func() { _ = store.Close() })
	truth := slow{session.NewLocal(store)}
	return openShop(t, truth, truth.Local, client)
}

// openShop opens a shop over the durable store, which is also asked alone.
func openShop(t *testing.T, truth session.Durable, alone session.Store, client func() redis.UniversalClient) *shop {
	s := &shop{durable: session.New(alone, session.Options{RouteKey: routeKey})}
	for range 3 {
		c := client()
		cache := dropping{redissession.New(c, redissession.Options{Prefix: "x:", Budget: 100 * time.Millisecond}), &s.drop}
		through := session.NewReadThrough(truth, cache, session.ReadThroughOptions{Fresh: fast, Skew: fastSkew})
		t.Cleanup(func() { through.Flush(); _ = c.Close() })
		s.nodes = append(s.nodes, session.New(through, session.Options{RouteKey: routeKey}))
	}
	return s
}

// lostUpdates loses what changes and reads tell the cache, for a while.
func (s *shop) lostUpdates() sessiontest.Fault {
	return sessiontest.Fault{Name: "lost updates", Do: func(testing.TB) {
		s.drop.Store(true)
		time.Sleep(fast / 2)
		s.drop.Store(false)
	}}
}

func (s *shop) run(t *testing.T, quick, proof int, faults ...sessiontest.Fault) {
	n, least := depth(quick, proof)
	sessiontest.Outages{Nodes: s.nodes, Durable: s.durable, Fresh: fast, Skew: fastSkew, Unavailable: keytype.ErrUnavailable, Unknown: keytype.ErrOutcomeUnknown, Faults: faults, Verifies: n, AtLeast: least}.Run(t)
}

// short are timeouts of a client whose calls nobody waits for any more.
func short(addr string) *redis.Options {
	return &redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: 100 * time.Millisecond, DialerRetries: 1, ReadTimeout: 100 * time.Millisecond, WriteTimeout: 100 * time.Millisecond}
}

// One server that is flushed, evicts, hangs, is restored from an older
// file, and loses updates.
func TestS16S44HistoriesOnOneServer(t *testing.T) {
	server := engine.StartRedis(t, "--maxmemory-policy", "allkeys-random")
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	s := newShop(t, func() redis.UniversalClient { return redis.NewClient(short(server.Addr)) })
	dir := admin.ConfigGet(t.Context(), "dir").Val()["dir"]
	evicted := 0
	s.run(t, 5_000, 200_000,
		sessiontest.Fault{Name: "FLUSHALL", Loses: true, Do: func(t testing.TB) { must(t, admin.FlushAll(t.Context()).Err()) }},
		s.lostUpdates(),
		sessiontest.Fault{Name: "evicted", Loses: true, Do: func(t testing.TB) { evicted += evict(t, admin) }},
		sessiontest.Fault{Name: "older file", Loses: true, Do: func(t testing.TB) { restoreOlder(t, server, admin, dir) }},
		sessiontest.Fault{Name: "hangs", Do: func(t testing.TB) {
			server.Pause(t)
			time.Sleep(fast / 4)
			server.Resume(t)
			time.Sleep(fast / 4)
		}},
	)
	if t.Logf("%d keys evicted", evicted); evicted == 0 {
		t.Error("memory was never short")
	}
}

// evict makes memory short for a moment, again until that costs a key.
func evict(t testing.TB, admin *redis.Client) (keys int) {
	for end := time.Now().Add(2 * time.Second); keys == 0 && time.Now().Before(end); {
		keys = evictOnce(t, admin)
	}
	return keys
}

func evictOnce(t testing.TB, admin *redis.Client) (keys int) {
	set := func(limit int) { must(t, admin.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(limit)).Err()) }
	before := number(t, admin, "Stats", "evicted_keys")
	set(number(t, admin, "Memory", "used_memory") - 20_000)
	time.Sleep(fast / 10)
	set(0)
	return number(t, admin, "Stats", "evicted_keys") - before
}

func number(t testing.TB, c *redis.Client, section, name string) int {
	t.Helper()
	n, err := strconv.Atoi(c.InfoMap(t.Context(), section).Item(section, name))
	must(t, err)
	return n
}

// restoreOlder saves, lets changes happen, kills the server and starts it on what was saved.
func restoreOlder(t testing.TB, server *engine.RedisServer, admin *redis.Client, dir string) {
	must(t, admin.Save(t.Context()).Err())
	file := filepath.Join(dir, "dump.rdb")
	old, err := os.ReadFile(file)
	must(t, err)
	time.Sleep(fast / 3)
	server.Kill()
	must(t, os.WriteFile(file, old, 0o600))
	server.Restart(t)
}

// Sentinel makes a replica the master that missed the last writes.
func TestS20HistoriesOverASentinelFailover(t *testing.T) {
	group := engine.StartSentinel(t)
	s := newShop(t, func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: engine.SentinelName, SentinelAddrs: group.Addrs, MaxRetries: -1,
			DialTimeout: 100 * time.Millisecond, DialerRetries: 1, ReadTimeout: 100 * time.Millisecond, WriteTimeout: 100 * time.Millisecond,
		})
	})
	failed := false
	s.run(t, 2_000, 50_000, s.lostUpdates(), sessiontest.Fault{Name: "failover", Loses: true, Once: !deep(), Do: func(t testing.TB) {
		if failed {
			group.Rejoin(t)
		}
		failed = true
		group.Fail(t, func() { time.Sleep(fast / 2) })
	}})
}

// A cluster keeps both keys of a session in one slot, whose master is killed.
func TestHistoriesOverAClusterFailover(t *testing.T) {
	cluster := engine.StartCluster(t)
	s := newShop(t, func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cluster.Addrs, MaxRetries: -1, ClusterStateReloadInterval: time.Second,
			DialTimeout: 100 * time.Millisecond, DialerRetries: 1, ReadTimeout: 100 * time.Millisecond, WriteTimeout: 100 * time.Millisecond,
		})
	})
	s.run(t, 2_000, 50_000, s.lostUpdates(), sessiontest.Fault{Name: "master killed", Loses: true, Once: true, Do: func(t testing.TB) {
		cluster.KillMaster(t, cluster.Addrs[0])
	}})
}
