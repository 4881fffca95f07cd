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
// pass than a test can send.
const hotPolicies = `version: 1
policies:
  - {name: whole, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s}]}
  - {name: over, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 100/s, overrides: [{match: {tenant: big-shop}, rate: 20/s}]}]}
  - {name: leased, on_store_failure: fail_open, mode: leased, max_overshoot: 10000, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s}]}
  - {name: shards, on_store_failure: fail_open, limits: [{name: tenant, key: [tenant], algorithm: token_bucket, rate: 1000000/s, shards: 16}]}
`

// An incident is one service under one hot tenant and some others, and the Redis behind it.
type incident struct {
	t       *testing.T
	service *service
	redis   []*redis.Client // the nodes that serve
	hot     int             // callers of the hot tenant, at full load
	pause   time.Duration   // between two checks of one of them
}

func newIncident(t *testing.T, url string, nodes ...string) *incident {
	t.Helper()
	i := &incident{t: t, service: limitNodes(t, 1, url, hotPolicies)[0], hot: atDepth(1, 64), pause: atDepth(2*time.Millisecond, 0)}
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

// A damage is what a phase of the incident came to.
type damage struct {
	checks, refused, fromMemory int64           // of the hot tenant
	others                      []time.Duration // how long those of others took, sorted
	degraded                    int64           // of others
	scripts                     []int64         // by node of Redis
	cpu                         time.Duration   // of Redis
	took                        time.Duration
}

func (d damage) ran() (all int64) {
	for _, n := range d.scripts {
		all += n
	}
	return all
}

func (d damage) String() string {
	at := func(q float64) time.Duration {
		return d.others[int(q*float64(len(d.others)-1))].Round(10 * time.Microsecond)
	}
	all := d.checks + int64(len(d.others))
	return fmt.Sprintf("hot tenant %.0f/s, %.1f %% refused; others p50 %v, p99 %v, %.1f %% degraded; %.3f scripts a check, %v a node; Redis %.2f s CPU per 100,000 checks",
		float64(d.checks)/d.took.Seconds(), 100*float64(d.refused)/float64(max(1, d.checks)), at(.5), at(.99), 100*float64(d.degraded)/float64(len(d.others)),
		float64(d.ran())/float64(all), d.scripts, d.cpu.Seconds()*100_000/float64(all))
}

// phase lets 4 others check under a policy, and the hot tenant too where there is one.
func (i *incident) phase(policy string, hot int, lasts time.Duration) damage {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), lasts)
	defer cancel()
	before, cpu := i.work()
	begun := time.Now()
	var checks, refused, fromMemory, degraded atomic.Int64
	var mu sync.Mutex
	var others []time.Duration
	var callers sync.WaitGroup
	ask := func(tenant string) (limitAnswer, bool) {
		a, err := limitCall(i.service, "check", `{"policy":"`+policy+`","descriptors":{"tenant":"`+tenant+`"}}`)
		if err != nil || a.status != 200 && a.status != 429 {
			i.t.Errorf("%s: got %d %s, %v", policy, a.status, a.raw, err)
			return a, false
		}
		return a, true
	}
	for range hot {
		callers.Go(func() {
			for ctx.Err() == nil {
				a, ok := ask("big-shop")
				if !ok {
					return
				}
				checks.Add(1)
				if !a.Allowed {
					refused.Add(1)
				}
				if a.Source == "deny_cache" || a.Source == "token_lease" {
					fromMemory.Add(1)
				}
				time.Sleep(i.pause)
			}
		})
	}
	for n := range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				a, ok := ask("other-" + strconv.Itoa(n))
				if !ok {
					return
				}
				if a.Degraded {
					degraded.Add(1)
				}
				mu.Lock()
				others = append(others, a.ended.Sub(a.begun))
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
	slices.Sort(others)
	d := damage{checks.Load(), refused.Load(), fromMemory.Load(), others, degraded.Load(), after, cpuAfter - cpu, time.Since(begun)}
	if len(others) == 0 {
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

// inProcess is what a limiter of the test's own asks of Redis about a tenant over its
// limit, with and without a memory of refusals: the service has no switch for that.
func (i *incident) inProcess(memory bool, lasts time.Duration) (perCheck float64) {
	i.t.Helper()
	store := redislimit.New(i.redis[0], redislimit.Options{Prefix: engine.FreshPrefix()})
	limits, err := ratelimit.New(store, []ratelimit.Policy{{Name: "over", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{{
		Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 20, Per: time.Second}, Burst: 20},
	}}}}, ratelimit.Options{DenyCache: memory})
	if err != nil {
		i.t.Fatal(err)
	}
	var checks atomic.Int64
	var callers sync.WaitGroup
	before, cpu := i.work()
	end := time.Now().Add(lasts)
	for range i.hot {
		callers.Go(func() {
			for time.Now().Before(end) {
				if _, err := limits.Check(i.t.Context(), "t", ratelimit.Request{Policy: "over", Cost: 1, Descriptors: map[string]string{"tenant": "big-shop"}}); err != nil {
					i.t.Error(err)
					return
				}
				checks.Add(1)
			}
		})
	}
	callers.Wait()
	after, cpuAfter := i.work()
	perCheck = float64(after[0]-before[0]) / float64(checks.Load())
	i.t.Logf("in process, a memory of refusals %t: %.0f checks/s, %.4f scripts a check, Redis %.3f s CPU per 100,000 checks",
		memory, float64(checks.Load())/lasts.Seconds(), perCheck, (cpuAfter-cpu).Seconds()*100_000/float64(checks.Load()))
	return perCheck
}

// One tenant at full load: what it does to the others and to Redis, that the metrics
// name its policy, and what a refusal that is remembered, leases and shards change.
// docs/hot-key-incident.md tells the story of a run at full depth.
func TestHotKeyIncident(t *testing.T) {
	t.Parallel()
	node := engine.StartRedis(t)
	i := newIncident(t, node.URL(), strings.TrimPrefix(node.URL(), "redis://"))
	long := atDepth(time.Second, 10*time.Second)
	i.phase("whole", 0, long)

	// The window in which hot keys are counted is 10 s, whole.
	var whole damage
	for deadline := time.Now().Add(time.Minute); ; {
		whole = i.phase("whole", i.hot, atDepth(3*time.Second, 12*time.Second))
		if i.share("whole") > 0.5 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the metrics do not show the hot key: a share of %v", i.share("whole"))
		}
	}
	t.Logf("the metrics say that one key has %.2f of the checks of policy whole", i.share("whole"))
	if perCheck := float64(whole.ran()) / float64(whole.checks+int64(len(whole.others))); perCheck < 0.9 {
		t.Errorf("each check asks Redis, and yet there were %.2f scripts each", perCheck)
	}

	over := i.phase("over", i.hot, long)
	if over.fromMemory < over.refused/2 || over.refused == 0 {
		t.Errorf("of %d refusals %d came from memory", over.refused, over.fromMemory)
	}
	if without, with := i.inProcess(false, atDepth(200*time.Millisecond, 5*time.Second)), i.inProcess(true, atDepth(200*time.Millisecond, 5*time.Second)); without < 1 || with > 0.5 {
		t.Errorf("%.2f scripts a check without a memory of refusals, %.2f with it", without, with)
	}
	i.phase("leased", i.hot, atDepth(time.Second, 2*time.Second)) // until the batches have grown
	leased := i.phase("leased", i.hot, long)
	if leased.fromMemory < leased.checks/2 {
		t.Errorf("of %d checks %d were decided by leases", leased.checks, leased.fromMemory)
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
	i.phase("whole", 0, long)
	whole := i.phase("whole", i.hot, long)
	shards := i.phase("shards", i.hot, long)
	most := func(d damage) float64 { return float64(slices.Max(d.scripts)) / float64(d.ran()) }
	t.Logf("the busiest master ran %.0f %% of the scripts, with shards %.0f %%", 100*most(whole), 100*most(shards))
	if most(shards) > 0.45 || most(whole) < most(shards) {
		t.Errorf("%v without shards, %v with them", whole.scripts, shards.scripts)
	}
}
