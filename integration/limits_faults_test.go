package integration

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// A limitFault is something that happens to Redis while limits are counted on it.
type limitFault struct {
	name   string
	begin  func()        // returns once it is there
	lasts  time.Duration // until end
	end    func()        // returns once Redis serves again; nil = nothing to end
	outage bool          // nothing can be decided meanwhile
	keeps  memory
}

// memory is what is still there of what was counted before a fault.
type memory int

const (
	keepsAll memory = iota
	keepsSome
	keepsNone
)

// meet lets the fault happen under load, and demands of every node and policy what
// its posture says, within a second, and Redis's own decisions again within another.
func (f limitFault) meet(t *testing.T, nodes []*service) {
	c := gather(t, nodes, strings.ReplaceAll(f.name, " ", "-"))
	c.awaitRedis(time.Now())
	time.Sleep(atDepth(100*time.Millisecond, time.Second))
	began := time.Now()
	f.begin()
	there := time.Now()
	time.Sleep(f.lasts)
	if f.end != nil {
		f.end()
	}
	over := time.Now()
	again, settled := c.awaitRedis(over)
	time.Sleep(atDepth(100*time.Millisecond, time.Second))
	c.disperse()

	during, longest := describe(c.answers(func(a limitAnswer) bool { return !a.begun.Before(began) && a.begun.Before(over.Add(settled)) }))
	t.Logf("%s for %v: %s", f.name, over.Sub(began).Round(time.Millisecond), during)
	later, longestLater := describe(c.answers(func(a limitAnswer) bool { return !a.begun.Before(over.Add(settled)) }))
	t.Logf("%s: redis decides on every node %v after it was over, and by every policy %v; from then on %s", f.name, again.Round(time.Millisecond), settled.Round(time.Millisecond), later)
	if bound := atDepth(5*time.Second, time.Second); max(longest, longestLater) >= bound || again > bound {
		t.Errorf("%s: the longest answer took %v, and redis decides again after %v, both should be within %v", f.name, max(longest, longestLater), again, bound)
	}
	if degraded := c.answers(func(a limitAnswer) bool { return a.Degraded && a.begun.After(there) && a.begun.Before(over) }); f.outage && len(degraded) == 0 {
		t.Errorf("%s: no answer was degraded", f.name)
	}
	// The client's own timeout is 100 ms, or the budget where that is longer, as in a quick run.
	timeouts := c.answers(func(a limitAnswer) bool { return a.DegradedReason == "timeout" })
	slices.SortFunc(timeouts, func(a, b limitAnswer) int { return cmp.Compare(a.ended.Sub(a.begun), b.ended.Sub(b.begun)) })
	if n := len(timeouts); fullDepth() && n > 0 && timeouts[n/2].ended.Sub(timeouts[n/2].begun) >= 100*time.Millisecond {
		t.Errorf("%s: half of %d answers came as late as the client's timeout: %s", f.name, n, timeouts[n/2].raw)
	}
	f.account(c, began, there)
	for node := range nodes {
		allowed := len(c.answers(func(a limitAnswer) bool { return a.node == node && a.Source == "local" && a.Allowed }))
		if allowed > burstOfNode {
			t.Errorf("%s: node %d let %d pass by itself, more than %d", f.name, node, allowed, burstOfNode)
		}
	}
}

// account compares what Redis has charged with what the callers were allowed. Every
// caller that was closed has repeated its request, with its id, until it was decided,
// so that the charges are the decisions. Without an id an answer that came before
// Redis's own may have charged once. Where Redis loses what it counted, no more than
// what came after it can be there.
func (f limitFault) account(c *crowd, began, there time.Time) {
	for _, policy := range []string{"closed", "open", "node"} {
		of := func(matching func(a limitAnswer) bool) int64 {
			return int64(len(c.answers(func(a limitAnswer) bool { return a.policy == policy && matching(a) })))
		}
		used := c.used(policy)
		least := of(func(a limitAnswer) bool { return a.Source == "redis" })
		most := least
		if policy != "closed" {
			most += of(mayHaveCharged)
		}
		if f.keeps != keepsAll {
			least = of(func(a limitAnswer) bool { return a.Source == "redis" && a.begun.After(there) })
			most = of(func(a limitAnswer) bool {
				return (f.keeps == keepsSome || a.ended.After(began)) && (a.Source == "redis" || mayHaveCharged(a))
			})
		}
		c.t.Logf("%s: of %s redis has %d charges, and the callers know of %d to %d", f.name, policy, used, least, most)
		if used < least || used > most {
			c.t.Errorf("%s: of %s redis has %d charges, want %d to %d", f.name, policy, used, least, most)
		}
	}
}

// Under load two nodes go through what can happen to their Redis. What a posture
// answers while Redis is not asked charges nothing afterwards, however long it lasts.
func TestR26R27R28R45R46R55LimitsThroughFaults(t *testing.T) {
	t.Parallel()
	// What was written before an answer survives a kill.
	server := engine.StartRedis(t, "--appendonly", "yes", "--appendfsync", "no", "--enable-debug-command", "yes",
		"--busy-reply-threshold", "50", "--loading-process-events-interval-bytes", "1024")
	nodes := limitNodes(t, 2, server.URL(), postures)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: time.Minute, PoolSize: 2})
	t.Cleanup(func() { _ = client.Close() })
	do := func(words ...any) {
		t.Helper()
		if err := client.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	// whileRunning sends a command that takes long and waits until others are told so.
	var background chan error
	whileRunning := func(prefix string, words ...any) {
		t.Helper()
		background = make(chan error, 1)
		go func() { background <- client.Do(t.Context(), words...).Err() }()
		for deadline := time.Now().Add(10 * time.Second); !redis.HasErrorPrefix(client.Ping(t.Context()).Err(), prefix); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%v: nobody is told %s", words, prefix)
			}
		}
	}
	lasts := atDepth(400*time.Millisecond, 3*time.Second)
	for _, f := range []limitFault{
		{name: "killed", begin: server.Kill, lasts: lasts, end: func() { server.Restart(t) }, outage: true},
		{name: "hung", begin: func() { server.Pause(t) }, lasts: atDepth(lasts, 10*time.Second), end: func() { server.Resume(t) }, outage: true},
		{name: "readonly", begin: func() { do("REPLICAOF", "127.0.0.1", "1") }, lasts: lasts, end: func() { do("REPLICAOF", "NO", "ONE") }, outage: true},
		{name: "loading", begin: func() {
			do("CONFIG", "SET", "key-load-delay", lasts.Microseconds()/max(1, client.DBSize(t.Context()).Val()))
			whileRunning("LOADING", "DEBUG", "RELOAD")
		}, end: func() {
			if err := <-background; err != nil {
				t.Fatal(err)
			}
		}, outage: true},
		{name: "busy", begin: func() { whileRunning("BUSY", "EVAL", "while true do end", 0) }, lasts: lasts, end: func() {
			do("SCRIPT", "KILL")
			if err := <-background; err == nil {
				t.Error("the script was not killed")
			}
		}, outage: true},
		// Some of what the connections were cut before had been done already.
		{name: "connections cut", begin: func() {
			for begun := time.Now(); time.Since(begun) < lasts; time.Sleep(5 * time.Millisecond) {
				do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
		}},
		{name: "scripts flushed", begin: func() { do("SCRIPT", "FLUSH") }},
		{name: "flushed", begin: func() { do("FLUSHALL") }, keeps: keepsNone},
	} {
		t.Run(f.name, func(t *testing.T) { f.meet(t, nodes) })
	}
}

// The sentinels put the replica in the master's place. What it had not yet been told
// is gone, and that is one fresh burst.
func TestR26R27LimitsThroughFailover(t *testing.T) {
	t.Parallel()
	group := engine.StartSentinel(t)
	nodes := limitNodes(t, 2, group.URL(), postures)
	faults := []limitFault{
		{name: "hung and failed over", begin: func() { group.Hang(t) }, end: func() { group.AwaitAgreement(t) }, outage: true, keeps: keepsSome},
		{name: "back as a replica", begin: func() { group.Resume(t) }}, // which takes the sentinels 10 s and more
		{name: "failed over", begin: func() { group.Fail(t, func() {}) }, end: func() { group.AwaitAgreement(t) }, outage: true, keeps: keepsSome},
	}
	for _, f := range faults[atDepth(2, 0):] {
		t.Run(f.name, func(t *testing.T) { f.meet(t, nodes) })
	}
}
