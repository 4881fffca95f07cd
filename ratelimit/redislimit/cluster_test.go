package redislimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// soon is how long a client waits for a node that may be dead.
const soon = 500 * time.Millisecond

func dialCluster(t *testing.T, addrs []string, timeout time.Duration) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRetries: -1, MinRetryBackoff: -1, DialerRetries: 1, ClusterStateReloadInterval: time.Second,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: 5 * time.Second,
		Dialer: redislimit.Dialer(&redis.Options{DialTimeout: timeout}),
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// On a real Cluster the whole contract holds where the keys share a slot; where a
// limit lies in another one it is never passed, and what it refuses is given back.
func TestR47Cluster(t *testing.T) {
	cluster := engine.StartCluster(t)
	t.Run("limits apart", func(t *testing.T) { limitsApart(t, dialCluster(t, cluster.Addrs, soon)) })
	t.Run("refused at once", func(t *testing.T) { refusedAtOnce(t, dialCluster(t, cluster.Addrs, soon), 50) })
	t.Run("goes back", func(t *testing.T) { raceOverSlots(t, dialCluster(t, cluster.Addrs, soon), 5) })
	t.Run("a slot moves", func(t *testing.T) { slotMoves(t, dialCluster(t, cluster.Addrs, soon)) })
	t.Run("go together", func(t *testing.T) { goTogether(t, dialCluster(t, cluster.Addrs, patience)) })
	t.Run("some masters fail", func(t *testing.T) { someFail(t, dialCluster(t, cluster.Addrs, patience)) })
	t.Run("R45 charged once", func(t *testing.T) {
		client := dialCluster(t, cluster.Addrs, patience)
		master, err := client.MasterForKey(t.Context(), redislimit.NameOf(bucketOf("", 1, time.Hour, 1), redislimit.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		chargedOnce(t, client, dial(t, master.Options().Addr))
	})
	if depth, _ := os.LookupEnv("COORD_TEST_DEPTH"); depth == "proof" { // it takes the others seconds to take over
		t.Run("a master dies", func(t *testing.T) { masterDies(t, cluster, dialCluster(t, cluster.Addrs, soon)) })
	}
}

func limitsApart(t *testing.T, client *redis.ClusterClient) {
	var leftovers atomic.Int64
	store := redislimit.New(client, redislimit.Options{Leftover: func() { leftovers.Add(1) }})
	limit := func(name string, burst int64, key ...string) ratelimit.Limit {
		return ratelimit.Limit{Name: name, Key: key, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 24 * time.Hour}, Burst: burst}}
	}
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Slot: []string{"tenant"}, Limits: []ratelimit.Limit{
		limit("user", 20, "tenant", "user"), limit("tenant", 60, "tenant"), limit("all", 50, "region"),
	}}
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(tenant, user int) ratelimit.Request {
		return ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": strconv.Itoa(tenant), "user": strconv.Itoa(user), "region": "eu"}}
	}
	var passed [2][3]atomic.Int64
	var callers sync.WaitGroup
	for i := range 60 {
		callers.Go(func() {
			for range 4 {
				d, err := limits.Check(t.Context(), "t", ask(i%2, i%3))
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					passed[i%2][i%3].Add(1)
				}
			}
		})
	}
	callers.Wait()
	all := int64(0)
	for tenant := range passed {
		ofTenant := int64(0)
		for user := range passed[tenant] {
			n := passed[tenant][user].Load()
			ofTenant += n
			d, err := limits.Peek(t.Context(), "t", ask(tenant, user))
			if err != nil || n > 20 || n+d.Limits[0].Remaining != 20 {
				t.Errorf("tenant %d, user %d: %d passed, %+v, %v", tenant, user, n, d.Limits, err)
			}
			if user == 2 && ofTenant+d.Limits[1].Remaining != 60 {
				t.Errorf("tenant %d: %d passed, %+v", tenant, ofTenant, d.Limits[1])
			}
		}
		all += ofTenant
	}
	t.Logf("%d passed, %d leftovers", all, leftovers.Load())
	// A charge that waits to be given back may refuse somebody else, so it can be fewer.
	if all > 50 || all < 40 || leftovers.Load() != 0 {
		t.Errorf("%d passed of 50, %d leftovers", all, leftovers.Load())
	}
}

// The client follows to where a slot has gone, and to where it is just going, also with
// what it sends together.
func slotMoves(t *testing.T, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: patience})
	t.Cleanup(func() { _ = guard.Close() })
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("moves", 1, 24*time.Hour, 10)}, Cost: 1}
	if err := store.Probe(t.Context()); err != nil { // it knows the layout from here on
		t.Fatal(err)
	}
	p := &pipelines{}
	client.AddHook(p)
	both := func(why string, left int64) {
		t.Helper()
		if out := take(t, store, charge); out.Verdicts[0].Remaining != left {
			t.Errorf("%s: got %+v", why, out)
		}
		if out := take(t, guard, charge); out.Verdicts[0].Remaining != left-1 {
			t.Errorf("%s, together: got %+v", why, out)
		}
	}
	key := charge.Buckets[0].Type().Tagged("", "tag", "moves")
	slot := client.ClusterKeySlot(t.Context(), key).Val()
	from, err := client.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	to := from
	if err := client.ForEachMaster(t.Context(), func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if master != from {
			to = master
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	set := func(node *redis.Client, words ...any) {
		t.Helper()
		if err := node.Do(t.Context(), append([]any{"CLUSTER", "SETSLOT", slot}, words...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	id := func(node *redis.Client) string { return node.Do(t.Context(), "CLUSTER", "MYID").Val().(string) }
	beside := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("moves", 1, 24*time.Hour, 10), bucketOf("moves too", 1, 24*time.Hour, 10)}, Cost: 1}
	stays := beside.Buckets[1].Type().Tagged("", "tag", "moves too")
	if err := from.Set(t.Context(), stays, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	set(to, "IMPORTING", id(from))
	set(from, "MIGRATING", id(to))
	both("ASK", 9)
	for range 25 { // that many would open the breaker
		_, err := guard.Take(t.Context(), beside)
		if e, ok := errors.AsType[*ratelimit.FaultError](err); !ok || e.Reason != "tryagain" {
			t.Errorf("one of two keys has moved: got %v", err)
		}
	}
	if err := from.Del(t.Context(), stays).Err(); err != nil {
		t.Fatal(err)
	}
	set(to, "NODE", id(to))
	set(from, "NODE", id(to))
	both("MOVED", 7)
	if len(p.sizes) != 2+25 {
		t.Errorf("pipelines of %v", p.sizes)
	}
}

// Who asks the same master at the same time is sent together; nobody waits for another one.
func goTogether(t *testing.T, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: patience})
	t.Cleanup(func() { _ = guard.Close() })
	p := &pipelines{}
	client.AddHook(p)
	charge := func(b ratelimit.Bucket) ratelimit.Take {
		return ratelimit.Take{Buckets: []ratelimit.Bucket{b}, Cost: 1}
	}
	byMaster := map[string][]ratelimit.Bucket{}
	for i := range 60 {
		b := bucketOf(fmt.Sprint("together ", i), 1, 24*time.Hour, 10)
		b.Tag = b.Key
		if out := take(t, guard, charge(b)); out.Verdicts[0].Remaining != 9 { // the first without knowing the layout
			t.Fatalf("got %+v", out)
		}
		master, err := client.MasterForKey(t.Context(), redislimit.NameOf(b, redislimit.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		addr := master.Options().Addr
		byMaster[addr] = append(byMaster[addr], b)
	}
	if len(byMaster) != 3 || len(p.sizes) != 59 {
		t.Fatalf("%d masters, pipelines of %v", len(byMaster), p.sizes)
	}
	mine, others := []ratelimit.Bucket(nil), []ratelimit.Bucket(nil)
	for _, buckets := range byMaster {
		if mine == nil {
			mine = buckets
		} else {
			others = append(others, buckets...)
		}
	}
	held, let := p.stall()
	var all sync.WaitGroup
	ask := func(b ratelimit.Bucket, left int64) {
		all.Go(func() {
			out, err := guard.Take(t.Context(), charge(b))
			if err != nil || !out.Allowed || left >= 0 && out.Verdicts[0].Remaining != left {
				t.Errorf("%s: got %+v, %v", b.Key, out, err)
			}
		})
	}
	ask(mine[0], 8)
	<-held
	for range 5 {
		ask(mine[1], -1) // which go as one
	}
	for _, b := range mine[2:] {
		ask(b, 8)
	}
	waiting := len(mine) - 1
	for begun := time.Now(); redislimit.Waiting(store) < waiting; time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("%d of %d wait", redislimit.Waiting(store), waiting)
		}
	}
	for _, b := range others {
		if out := take(t, guard, charge(b)); out.Verdicts[0].Remaining != 8 {
			t.Errorf("%s: got %+v", b.Key, out)
		}
	}
	close(let)
	all.Wait()
	if out := take(t, guard, charge(mine[1])); out.Verdicts[0].Remaining != 3 {
		t.Errorf("after six: got %+v", out)
	}
	if p.sizes[0] != 1 || slices.Max(p.sizes) != waiting {
		t.Errorf("pipelines of %v, want one of %d", p.sizes, waiting)
	}
}

// A failing hook loses the answers of some masters.
type failing struct {
	of     func(cmd redis.Cmder) string // master
	failed map[string]bool
}

func (*failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.failed[f.of(cmd)] {
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}
}

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if f.failed[f.of(cmds[0])] {
			for _, cmd := range cmds {
				cmd.SetErr(io.ErrUnexpectedEOF)
			}
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmds)
	}
}

// One master that fails is no reason not to ask the others, however often it does in a row;
// two of three are.
func someFail(t *testing.T, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	if err := store.Probe(t.Context()); err != nil { // it knows the layout from here on
		t.Fatal(err)
	}
	masterOf := func(key string) string {
		master, err := client.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return master.Options().Addr
	}
	buckets := map[string]ratelimit.Bucket{}
	var masters []string
	for i := 0; len(buckets) < 3; i++ {
		b := bucketOf(fmt.Sprint("fails ", i), 1, 24*time.Hour, 100)
		b.Tag = b.Key
		if addr := masterOf(redislimit.NameOf(b, redislimit.Options{})); buckets[addr].Key == "" {
			buckets[addr], masters = b, append(masters, addr)
		}
	}
	f := &failing{of: func(cmd redis.Cmder) string {
		if args := cmd.Args(); len(args) > 3 {
			return masterOf(args[3].(string))
		}
		return ""
	}, failed: map[string]bool{}}
	client.AddHook(f)
	for how, ask := range map[string]func(*ratelimit.Guard, ratelimit.Bucket) error{
		"together": func(g *ratelimit.Guard, b ratelimit.Bucket) error {
			_, err := g.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{b}, Cost: 1})
			return err
		},
		"alone": func(g *ratelimit.Guard, b ratelimit.Bucket) error {
			_, err := g.Give(t.Context(), ratelimit.Give{Buckets: []ratelimit.Bucket{b}, Cost: 1})
			return err
		},
	} {
		guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: patience})
		t.Cleanup(func() { _ = guard.Close() })
		reason := func(addr string) string {
			err := ask(guard, buckets[addr])
			if e, ok := errors.AsType[*ratelimit.FaultError](err); ok {
				return e.Reason
			}
			return fmt.Sprint(err)
		}
		f.failed = map[string]bool{masters[0]: true}
		for range 5 {
			if got := reason(masters[0]); got != "connection_lost" {
				t.Errorf("%s: one master fails: got %s", how, got)
			}
		}
		f.failed[masters[1]] = true
		for _, addr := range []string{masters[1], masters[0]} {
			if got := reason(addr); got != "connection_lost" {
				t.Errorf("%s: two masters fail: got %s", how, got)
			}
		}
		if got := reason(masters[2]); got != ratelimit.ReasonBreakerOpen {
			t.Errorf("%s: two masters failed in turns: got %s", how, got)
		}
	}
}

// A key whose master is dead is a fault until another serves it.
func masterDies(t *testing.T, cluster *engine.RedisCluster, client *redis.ClusterClient) {
	store := redislimit.New(client, redislimit.Options{})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 10)}, Cost: 1}
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Fatalf("got %+v", out)
	}
	master, err := client.MasterForKey(t.Context(), charge.Buckets[0].Type().Tagged("", "tag", "k"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.KillMaster(t, master.Options().Addr)
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		out, err := store.Take(t.Context(), charge)
		if err == nil {
			t.Logf("served again %v after another took over: %d left", time.Since(begun), out.Verdicts[0].Remaining)
			return
		}
		if _, ok := errors.AsType[*ratelimit.FaultError](err); !ok {
			t.Errorf("got %v", err)
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal(err)
		}
	}
}
