package redislimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
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
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// hierarchy is a leased policy of two limits.
func hierarchy(maxOvershoot int64) ratelimit.Policy {
	limit := func(name string, count int64, key ...string) ratelimit.Limit {
		return ratelimit.Limit{Name: name, Key: key, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: count, Per: time.Second}, Burst: count / 4}}
	}
	return ratelimit.Policy{
		Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Mode: ratelimit.Leased, MaxOvershoot: maxOvershoot, Slot: []string{"app"},
		Limits: []ratelimit.Limit{limit("user", 400, "app", "user"), limit("app", 600, "app")},
	}
}

// node is a limiter over the Redis at addr that leases, until the test ends.
func node(t testing.TB, addr, prefix string, p ratelimit.Policy) *ratelimit.Limiter {
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: 100 * time.Millisecond, ReadTimeout: 100 * time.Millisecond, WriteTimeout: 100 * time.Millisecond,
	})
	t.Cleanup(func() { _ = client.Close() })
	l, err := ratelimit.New(redislimit.New(client, redislimit.Options{Prefix: prefix}), []ratelimit.Policy{p}, ratelimit.Options{Leases: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A pass is a decision that allowed one unit, and between which instants it was made.
type pass struct {
	user          string
	before, after time.Duration
}

// overAdmitted is by how much more than the limit says passed at worst within any time
// that begins and ends on the grid. It counts what certainly passed within it.
func overAdmitted(l ratelimit.Limit, passes []pass) (worst float64) {
	const grid = 5 * time.Millisecond
	slices.SortFunc(passes, func(a, b pass) int { return int(b.before - a.before) })
	var end time.Duration
	for _, p := range passes {
		end = max(end, p.after)
	}
	steps := int(end/grid) + 2
	ended, next := make([]int, steps), 0
	for begin := steps - 1; begin >= 0; begin-- {
		for ; next < len(passes) && passes[next].before >= time.Duration(begin)*grid; next++ {
			ended[passes[next].after/grid+1]++
		}
		sum := 0
		for stop := begin; stop < steps; stop++ {
			sum += ended[stop]
			passable := float64(l.Burst) + float64(l.Rate.Count)*(time.Duration(stop-begin)*grid).Seconds()
			worst = max(worst, float64(sum)-passable)
		}
	}
	return worst
}

// Four nodes lease from a hierarchy, with pauses in which buckets fill while nodes hold
// batches. Some are killed with what they hold, and others take their place.
// No limit lets more pass than it says and max_overshoot, and none of those who live starves.
func TestFourNodesLeaseWithinTheBound(t *testing.T) {
	t.Parallel()
	addr, prefix := engine.Redis(t).Addr, engine.FreshPrefix()
	p := hierarchy(40)
	const nodes, users = 4, 3
	var (
		mu     sync.Mutex
		passes []pass
		refuse atomic.Int64
		leased atomic.Int64
		kills  int
		all    sync.WaitGroup
	)
	begun := time.Now()
	live := func(n int) (kill func()) {
		l := node(t, addr, prefix, p)
		ctx, end := context.WithCancel(t.Context())
		all.Go(func() { l.RunLeases(ctx) })
		for worker := range 3 {
			user := fmt.Sprint((n + worker) % users)
			all.Go(func() {
				for ctx.Err() == nil {
					if time.Since(begun)/(150*time.Millisecond)%2 == 1 {
						time.Sleep(time.Millisecond)
						continue
					}
					before := time.Since(begun)
					d, err := l.Check(ctx, "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"app": "a", "user": user}, Cost: 1})
					switch {
					case err != nil:
					case d.Allowed:
						if d.Source == ratelimit.SourceTokenLease {
							leased.Add(1)
						}
						mu.Lock()
						passes = append(passes, pass{user, before, time.Since(begun)})
						mu.Unlock()
					default:
						refuse.Add(1)
						time.Sleep(500 * time.Microsecond)
					}
				}
			})
		}
		return end
	}
	var alive [nodes]func()
	for n := range alive {
		alive[n] = live(n)
	}
	// It goes on until enough has happened, however slow the machine.
	for time.Since(begun) < 4*time.Second || time.Since(begun) < 30*time.Second && (leased.Load() < 500 || refuse.Load() < 50) {
		time.Sleep(time.Duration(200+rand.IntN(300)) * time.Millisecond)
		n := rand.IntN(nodes)
		alive[n]()
		alive[n] = live(n)
		kills++
	}
	for _, kill := range alive {
		kill()
	}
	all.Wait()
	byUser := map[string][]pass{}
	for _, p := range passes {
		byUser[p.user] = append(byUser[p.user], p)
	}
	worst := overAdmitted(p.Limits[1], passes)
	for user, passed := range byUser {
		over := overAdmitted(p.Limits[0], passed)
		if over > float64(p.MaxOvershoot) {
			t.Errorf("user %s: %.0f more than the limit says passed, the bound is %d", user, over, p.MaxOvershoot)
		}
	}
	t.Logf("%d passed, %d of them by leases, %d refused, %d kills; at worst %.0f more than the limit says, the bound is %d",
		len(passes), leased.Load(), refuse.Load(), kills, worst, p.MaxOvershoot)
	if worst > float64(p.MaxOvershoot) {
		t.Errorf("%.0f more than the limit says passed", worst)
	}
	if leased.Load() < 500 || refuse.Load() < 50 || kills < 3 || len(byUser) < users {
		t.Errorf("too little happened")
	}
}

// Four holders take all that may be held, wait until the limit is full again, which is
// less than a batch lasts, and then all that can pass does: max_overshoot more than the limit says, and not one more. Half of
// them are dead by then, and others want their place at once.
func TestHoldersReachTheBound(t *testing.T) {
	t.Parallel()
	p := hierarchy(40)
	l := node(t, engine.Redis(t).Addr, engine.FreshPrefix(), p)
	descriptors := map[string]string{"app": "a", "user": "u"}
	var passes []pass
	begun, worst := time.Now(), 0.0
	spend := func(units int64, until, now time.Duration) {
		for range units {
			if now < until {
				passes = append(passes, pass{"u", now, now})
			}
		}
	}
	for round := 0; round < 3 || worst < 10 && round < 20; round++ {
		var held []func(now time.Duration)
		for h := range 4 {
			asked := time.Since(begun)
			got, err := l.Lease(t.Context(), "t", ratelimit.LeaseRequest{Policy: "p", Descriptors: descriptors, Want: 25, Holder: fmt.Sprint(round, h)})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, func(now time.Duration) { spend(got.Granted, asked+got.ValidFor, now) })
		}
		time.Sleep(130 * time.Millisecond)
		now := time.Since(begun)
		dead := round % 2 * 2 // of the four
		for _, h := range held[dead:] {
			h(now)
		}
		if dead > 0 {
			got, err := l.Lease(t.Context(), "t", ratelimit.LeaseRequest{Policy: "p", Descriptors: descriptors, Want: 25})
			if err != nil {
				t.Fatal(err)
			}
			spend(got.Granted, now+got.ValidFor, now)
		}
		for allowed := true; allowed; {
			before := time.Since(begun)
			d, err := l.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: descriptors, Cost: 20, RequestID: fmt.Sprint(before)})
			if err != nil {
				t.Fatal(err)
			}
			if allowed = d.Allowed; allowed {
				for range 20 {
					passes = append(passes, pass{"u", before, time.Since(begun)})
				}
			}
		}
		worst = max(worst, overAdmitted(p.Limits[0], passes))
		time.Sleep(300 * time.Millisecond) // the next round begins with full limits
	}
	t.Logf("%d passed; at worst %.0f more than the limit says, the bound is %d", len(passes), worst, p.MaxOvershoot)
	if worst > float64(p.MaxOvershoot) || worst < 10 {
		t.Errorf("%.0f more than the limit says passed, the bound is %d", worst, p.MaxOvershoot)
	}
}

var calls = regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=(\d+)`)

// commands is how many scripts the server has run.
func commands(t *testing.T, c *redis.Client) (n int64) {
	t.Helper()
	info, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range calls.FindAllStringSubmatch(info, -1) {
		one, _ := strconv.ParseInt(found[1], 10, 64)
		n += one
	}
	return n
}

// A key that is asked for often costs Redis at most one command in a hundred decisions.
func TestACommandForAHundredDecisions(t *testing.T) {
	server := engine.StartRedis(t)
	client := dial(t, server.Addr)
	p := hierarchy(500)
	for i := range p.Limits {
		p.Limits[i].Rate, p.Limits[i].Burst = ratelimit.Rate{Count: 1_000_000_000, Per: time.Second}, 1_000_000_000
	}
	l := node(t, server.Addr, "one:", p)
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { l.RunLeases(ctx) })
	const decisions = 100_000
	before, begun := commands(t, client), time.Now()
	var workers sync.WaitGroup
	var refused atomic.Int64
	for range 4 {
		workers.Go(func() {
			for range decisions / 4 {
				d, err := l.Check(ctx, "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"app": "a", "user": "u"}, Cost: 1})
				if err != nil || !d.Allowed {
					refused.Add(1)
				}
			}
		})
	}
	workers.Wait()
	took, sent := time.Since(begun), commands(t, client)-before
	end()
	all.Wait()
	t.Logf("%d decisions in %v, %.0f a second: %d commands, one for %d decisions", decisions, took, decisions/took.Seconds(), sent, decisions/max(1, sent))
	if refused.Load() > 0 || sent > decisions/100 {
		t.Errorf("%d commands, %d refused", sent, refused.Load())
	}
	if err := l.ReturnLeases(t.Context()); err != nil {
		t.Error(err)
	}
	held, err := client.Keys(t.Context(), "one:*token_lease*").Result()
	if err != nil || l.LeasedUnits()["p"] != 0 {
		t.Errorf("after all was returned: %v held here, %v", l.LeasedUnits(), err)
	}
	for _, key := range held { // who held all that was spent
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > 1250*time.Millisecond || ttl == -1 {
			t.Errorf("%s lasts for %v", key, ttl)
		}
	}
}

// What Redis does not decide is spent while it lasts, and then the posture decides.
func TestABatchOutlastsRedis(t *testing.T) {
	server := engine.StartRedis(t)
	p := hierarchy(500)
	p.Limits = p.Limits[:1]
	p.Limits[0].Rate, p.Limits[0].Burst = ratelimit.Rate{Count: 1000, Per: time.Second}, 4000
	l := node(t, server.Addr, "one:", p)
	check := func() (ratelimit.Decision, error) {
		return l.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"app": "a", "user": "u"}, Cost: 1})
	}
	for l.LeasedUnits()["p"] < 2*tokenlease.MinBatch {
		if _, err := check(); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	left := l.LeasedUnits()["p"]
	for range left {
		if d, err := check(); err != nil || d.Source != ratelimit.SourceTokenLease {
			t.Fatalf("of %d units: %+v, %v", left, d, err)
		}
	}
	if d, err := check(); err == nil {
		t.Errorf("beyond them: %+v", d)
	}
}
