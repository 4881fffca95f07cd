package integration

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// hotPolicies are one limit of a tenant in four states of repair. All but over let more
// pass than a test can send. Under over a quick run refuses for a second at a time, so
// that most refusals can be remembered however few checks the machine makes.
func hotPolicies() string {
	return `version: 1
policies:
  - {name: whole, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s}]}
  - {name: over, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 100/s, overrides: [{match: {tenant: big-shop}, rate: ` + atDepth("1", "20") + `/s}]}]}
  - {name: leased, on_store_failure: fail_open, mode: leased, max_overshoot: 10000, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s}]}
  - {name: shards, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s, shards: 16}]}
`
}

// An incident is one service under one hot tenant and some others, and the Redis behind it.
type incident struct {
	t       *testing.T
	service *service
	redis   []*redis.Client // the nodes that serve
	// Callers of the hot tenant: as many as make most of the checks even where an answer
	// takes longer than all pauses. At full depth they make none.
	hot   int
	pause time.Duration
}

func newIncident(t *testing.T, url string, nodes ...string) *incident {
	t.Helper()
	i := &incident{t: t, service: limitNodes(t, 1, url, hotPolicies())[0], hot: atDepth(8, 64), pause: atDepth(15*time.Millisecond, 0)}
	for _, addr := range nodes {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = client.Close() })
		i.redis = append(i.redis, client)
	}
	return i
}

var (
	scriptsRun = regexp.MustCompile(`(?m)^cmdstat_evalsha:calls=(\d+)`)
	cpuUsed    = regexp.MustCompile(`(?m)^used_cpu_(?:sys|user):([0-9.]+)`)
)

// work is how many scripts each node has run, and all their CPU time.
func (i *incident) work() (scripts []int64, cpu time.Duration) {
	i.t.Helper()
	for _, node := range i.redis {
		text, err := node.Info(i.t.Context(), "everything").Result()
		if err != nil {
			i.t.Fatal(err)
		}
		n := int64(0)
		if found := scriptsRun.FindStringSubmatch(text); found != nil {
			n, _ = strconv.ParseInt(found[1], 10, 64)
		}
		scripts = append(scripts, n)
		for _, found := range cpuUsed.FindAllStringSubmatch(text, -1) {
			seconds, _ := strconv.ParseFloat(found[1], 64)
			cpu += time.Duration(seconds * float64(time.Second))
		}
	}
	return scripts, cpu
}

// A count is of what became of checks.
type count struct{ checks, refused, degraded, fromMemory int64 }

func (c *count) add(a limitAnswer) {
	c.checks++
	if !a.Allowed {
		c.refused++
	}
	if a.Degraded {
		c.degraded++
	}
	if a.Source == "deny_cache" || a.Source == "token_lease" {
		c.fromMemory++
	}
}

// A damage is what a phase of the incident came to.
type damage struct {
	hot      count           // of the hot tenant
	others   []time.Duration // how long the checks of others took, sorted
	degraded int64           // of others
	scripts  []int64         // by node of Redis
	cpu      time.Duration   // of Redis
	took     time.Duration
}

func (d damage) ran() (all int64) {
	for _, n := range d.scripts {
		all += n
	}
	return all
}

func (d damage) checks() int64 { return d.hot.checks + int64(len(d.others)) }

// perCheck is how many scripts a check came to.
func (d damage) perCheck() float64 { return float64(d.ran()) / float64(d.checks()) }

func (d damage) String() string {
	at := func(q float64) time.Duration {
		return d.others[int(q*float64(len(d.others)-1))].Round(10 * time.Microsecond)
	}
	percent := func(n, of int64) float64 { return 100 * float64(n) / float64(max(1, of)) }
	return fmt.Sprintf("hot tenant %.0f/s, %.1f %% refused, %.1f %% degraded; others p50 %v, p99 %v, %.1f %% degraded; %.3f scripts a check, %v a node; Redis %.2f s CPU per 100,000 checks",
		float64(d.hot.checks)/d.took.Seconds(), percent(d.hot.refused, d.hot.checks), percent(d.hot.degraded, d.hot.checks), at(.5), at(.99), percent(d.degraded, int64(len(d.others))),
		d.perCheck(), d.scripts, d.cpu.Seconds()*100_000/float64(d.checks()))
}

// What the hot tenant's callers pay for a check. Where all pay the same, those that
// wait together go as one script; where each has a price of its own none do.
func alike(int) int           { return 1 }
func ofItsOwn(caller int) int { return 1 + caller }

// phase lets 4 others check under a policy, and the hot tenant too where there is one.
func (i *incident) phase(policy string, hot int, cost func(caller int) int, lasts time.Duration) damage {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), lasts)
	defer cancel()
	before, cpu := i.work()
	begun := time.Now()
	var mu sync.Mutex // guards d
	var d damage
	var callers sync.WaitGroup
	ask := func(tenant string, cost int) (limitAnswer, bool) {
		a, err := limitCall(i.service, "check", `{"policy":"`+policy+`","descriptors":{"tenant":"`+tenant+`"},"cost":`+strconv.Itoa(cost)+`}`)
		if err != nil || a.status != 200 && a.status != 429 {
			i.t.Errorf("%s: got %d %s, %v", policy, a.status, a.raw, err)
			return a, false
		}
		return a, true
	}
	for n := range hot {
		callers.Go(func() {
			for ctx.Err() == nil {
				a, ok := ask("big-shop", cost(n))
				if !ok {
					return
				}
				mu.Lock()
				d.hot.add(a)
				mu.Unlock()
				time.Sleep(i.pause)
			}
		})
	}
	for n := range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				a, ok := ask("other-"+strconv.Itoa(n), 1)
				if !ok {
					return
				}
				mu.Lock()
				d.others = append(d.others, a.ended.Sub(a.begun))
				if a.Degraded {
					d.degraded++
				}
				mu.Unlock()
				time.Sleep(40 * time.Millisecond)
			}
		})
	}
	callers.Wait()
	after, cpuAfter := i.work()
	for n := range after {
		after[n] -= before[n]
	}
	slices.Sort(d.others)
	d.scripts, d.cpu, d.took = after, cpuAfter-cpu, time.Since(begun)
	if len(d.others) == 0 {
		i.t.Fatalf("%s: no check of the others was answered", policy)
	}
	i.t.Logf("%-22s %v", fmt.Sprintf("%s, %d hot callers:", policy, hot), d)
	return d
}

// share is what the service's own metrics say of the hottest key of a policy.
func (i *incident) share(policy string) float64 {
	share, _ := strconv.ParseFloat(i.service.metric(`coordsvc_ratelimit_hottest_key_share{policy="`+policy+`"}`), 64)
	return share
}

// inProcess is what a limiter of the test's own, behind a guard as the service's is, asks of
// Redis about a tenant over its limit, with and without a memory of refusals: the
// service has no switch for that.
func (i *incident) inProcess(memory bool, lasts time.Duration) (perCheck float64) {
	i.t.Helper()
	guard := ratelimit.NewGuard(redislimit.New(i.redis[0], redislimit.Options{Prefix: engine.FreshPrefix()}), ratelimit.GuardOptions{Budget: 10 * time.Second})
	i.t.Cleanup(func() { _ = guard.Close() })
	rate := atDepth[int64](1, 20)
	limits, err := ratelimit.New(guard, []ratelimit.Policy{{Name: "over", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{{
		Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: rate, Per: time.Second}, Burst: rate},
	}}}}, ratelimit.Options{DenyCache: memory})
	if err != nil {
		i.t.Fatal(err)
	}
	var checks atomic.Int64
	var callers sync.WaitGroup
	before, cpu := i.work()
	begun := time.Now()
	for range i.hot {
		callers.Go(func() {
			for n := 0; n < 100 || time.Since(begun) < lasts; n++ { // enough to compare, on a slow machine too
				if _, err := limits.Check(i.t.Context(), "t", ratelimit.Request{Policy: "over", Cost: 1, Descriptors: map[string]string{"tenant": "big-shop"}}); err != nil {
					i.t.Error(err)
					return
				}
				checks.Add(1)
			}
		})
	}
	callers.Wait()
	took := time.Since(begun)
	after, cpuAfter := i.work()
	perCheck = float64(after[0]-before[0]) / float64(checks.Load())
	i.t.Logf("in process, a memory of refusals %t: %.0f checks/s, %.4f scripts a check, Redis %.3f s CPU per 100,000 checks",
		memory, float64(checks.Load())/took.Seconds(), perCheck, (cpuAfter-cpu).Seconds()*100_000/float64(checks.Load()))
	return perCheck
}

// One tenant at full load: what it does to the others and to Redis, that the metrics
// name its policy, and what checks that go together, remembered refusals and leases
// change. docs/hot-key-incident.md tells the story of a run at full depth.
func TestHotKeyIncident(t *testing.T) {
	t.Parallel()
	node := engine.StartRedis(t)
	i := newIncident(t, node.URL(), strings.TrimPrefix(node.URL(), "redis://"))
	long := atDepth(time.Second, 10*time.Second)
	i.phase("whole", 0, alike, long)

	// The window in which hot keys are counted is 10 s, whole.
	var apart damage
	for deadline := time.Now().Add(time.Minute); ; {
		apart = i.phase("whole", i.hot, ofItsOwn, atDepth(3*time.Second, 12*time.Second))
		if i.share("whole") > 0.5 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the metrics do not show the hot key: a share of %v", i.share("whole"))
		}
	}
	t.Logf("the metrics say that one key has %.2f of the checks of policy whole", i.share("whole"))
	if apart.perCheck() < 0.9 {
		t.Errorf("each check asks Redis, and yet there were %.2f scripts each", apart.perCheck())
	}

	if fullDepth() { // callers that pause seldom have anybody to go with
		if together := i.phase("whole", i.hot, alike, long); together.perCheck() > 0.5 {
			t.Errorf("checks of one cost came to %.2f scripts each", together.perCheck())
		}
	}
	over := i.phase("over", i.hot, alike, long)
	if over.hot.fromMemory < over.hot.refused/2 || over.hot.refused == 0 {
		t.Errorf("of %d refusals %d came from memory", over.hot.refused, over.hot.fromMemory)
	}
	if without, with := i.inProcess(false, atDepth(200*time.Millisecond, 5*time.Second)), i.inProcess(true, atDepth(200*time.Millisecond, 5*time.Second)); with > without/2 {
		t.Errorf("%.4f scripts a check without a memory of refusals, %.4f with it", without, with)
	}
	i.phase("leased", i.hot, alike, atDepth(time.Second, 2*time.Second)) // until the batches have grown
	leased := i.phase("leased", i.hot, alike, long)
	if leased.hot.fromMemory < leased.hot.checks/2 {
		t.Errorf("of %d checks %d were decided by leases", leased.hot.checks, leased.hot.fromMemory)
	}
	i.service.kill()
	if fullDepth() && !strings.Contains(i.service.stderr.String(), "most checks of a policy meet one key in redis") {
		t.Error("no line in the log names the key")
	}
}

// The same on a Cluster, whose masters should share the work.
func TestL52HotKeyIncidentOnACluster(t *testing.T) {
	t.Parallel()
	cluster := engine.StartCluster(t)
	i := newIncident(t, "redis://"+cluster.Addrs[0]+"?addr="+cluster.Addrs[1], cluster.Addrs...)
	long := atDepth(2*time.Second, 10*time.Second)
	i.phase("whole", 0, alike, long)
	whole := i.phase("whole", i.hot, ofItsOwn, long)
	shards := i.phase("shards", i.hot, ofItsOwn, long)
	most := func(d damage) float64 { return float64(slices.Max(d.scripts)) / float64(d.ran()) }
	t.Logf("the busiest master ran %.0f %% of the scripts, with shards %.0f %%", 100*most(whole), 100*most(shards))
	if whole.ran() == 0 || shards.ran() == 0 || most(shards) > 0.45 || most(whole) < most(shards) {
		t.Errorf("%v without shards, %v with them", whole.scripts, shards.scripts)
	}
}
