package redislimit_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
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

// Why one script: read, compute and write in three steps lets everybody pass who
// reads before the first write. A barrier between reading and writing makes sure of it.
func TestReadComputeWriteOverAdmits(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	const callers, limit = 64, 1
	var naive, exact atomic.Int64
	var all, read sync.WaitGroup
	read.Add(callers)
	for range callers {
		all.Go(func() {
			used, err := client.Get(t.Context(), prefix+"naive").Int64()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Error(err)
			}
			read.Done()
			read.Wait()
			if used < limit {
				naive.Add(1)
				client.Set(t.Context(), prefix+"naive", used+1, time.Minute)
			}
		})
	}
	all.Wait()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("exact", 1, time.Hour, limit)}, Cost: 1}
	for range callers {
		all.Go(func() {
			if take(t, store, charge).Allowed {
				exact.Add(1)
			}
		})
	}
	all.Wait()
	t.Logf("limit %d, %d callers: %d passed by GET, compute, SET; %d by the script", limit, callers, naive.Load(), exact.Load())
	if naive.Load() != callers || exact.Load() != limit {
		t.Errorf("%d and %d passed", naive.Load(), exact.Load())
	}
}

// Three clients with 64 callers each go through route ⊃ tenant ⊃ user: no level lets
// more pass than its limit, and what was refused charged none of them.
func TestThreeClientsThroughAHierarchy(t *testing.T) {
	addr, prefix := engine.Redis(t).Addr, engine.FreshPrefix()
	limit := func(name string, burst int64, key ...string) ratelimit.Limit {
		return ratelimit.Limit{Name: name, Key: key, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 24 * time.Hour}, Burst: burst}}
	}
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Slot: []string{"route"}, Limits: []ratelimit.Limit{
		limit("user", 12, "route", "tenant", "user"), limit("tenant", 40, "route", "tenant"), limit("route", 100, "route"),
	}}
	var passed [3][4]atomic.Int64 // by tenant and user
	var callers sync.WaitGroup
	for range 3 {
		limits, err := ratelimit.New(redislimit.New(dial(t, addr), redislimit.Options{Prefix: prefix}), []ratelimit.Policy{policy}, ratelimit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			callers.Go(func() {
				tenant, user := i%3, i%4
				for range 6 {
					d, err := limits.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{
						"route": "search", "tenant": strconv.Itoa(tenant), "user": strconv.Itoa(user),
					}})
					if err != nil {
						t.Error(err)
					} else if d.Allowed {
						passed[tenant][user].Add(1)
					}
				}
			})
		}
	}
	callers.Wait()
	client := dial(t, addr)
	limits, err := ratelimit.New(redislimit.New(client, redislimit.Options{Prefix: prefix}), []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := int64(0)
	for tenant := range passed {
		ofTenant := int64(0)
		for user := range passed[tenant] {
			n := passed[tenant][user].Load()
			ofTenant += n
			d, err := limits.Peek(t.Context(), "t", ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{
				"route": "search", "tenant": strconv.Itoa(tenant), "user": strconv.Itoa(user),
			}})
			if err != nil || n > 12 || n+d.Limits[0].Remaining != 12 {
				t.Errorf("tenant %d, user %d: %d passed, %+v, %v", tenant, user, n, d.Limits[0], err)
			}
		}
		all += ofTenant
		if ofTenant > 40 {
			t.Errorf("tenant %d: %d passed", tenant, ofTenant)
		}
	}
	if all != 100 {
		t.Errorf("%d passed, want exactly 100", all)
	}
}

// What one key takes on Redis is what docs/algorithms.md says: with one charge, and for
// each further one where they are kept apart.
func TestBytesPerKey(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix})
	info, err := client.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range fuzzed {
		cell := bytesInDocs(t, a)
		one := bytesOfKey(t, client, store, prefix, a, 1)
		t.Logf("%s: %d bytes, %d on the page", a, one, cell)
		// Another version may pack keys otherwise.
		if exact := strings.Contains(info, "redis_version:7.0."); exact && one != cell[0] || one > cell[0]+50 {
			t.Errorf("%s: %d bytes, docs/algorithms.md says %d", a, one, cell[0])
		}
		if a != ratelimit.SlidingWindowLog && a != ratelimit.Concurrency {
			continue
		}
		hundred := bytesOfKey(t, client, store, prefix, a, 100)
		t.Logf("%s with 100 charges: %d bytes", a, hundred)
		if most := cell[len(cell)-1]; hundred-one > 99*most {
			t.Errorf("%s: 99 charges more take %d bytes, docs/algorithms.md says %d each", a, hundred-one, most)
		}
	}
}

// bytesInDocs returns the numbers of the algorithm's cell.
func bytesInDocs(t *testing.T, a ratelimit.Algorithm) []int64 {
	t.Helper()
	page, err := os.ReadFile("../../docs/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	var numbers []int64
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) > 5 && strings.Contains(cells[1], "`"+string(a)+"`") {
			for _, digits := range regexp.MustCompile(`\d+`).FindAllString(cells[5], -1) {
				n, err := strconv.ParseInt(digits, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) == 0 {
		t.Fatalf("docs/algorithms.md does not say how many bytes a key of %s takes", a)
	}
	return numbers
}

// bytesOfKey is what a key with so many charges takes, with names of some length.
func bytesOfKey(t *testing.T, client *redis.Client, store *redislimit.Store, prefix string, a ratelimit.Algorithm, charges int) int64 {
	t.Helper()
	limit := ratelimit.Limit{Name: "user", Key: []string{"tenant", "user"}, Algorithm: a}
	switch n := &limit.Numbers; a {
	case ratelimit.Concurrency:
		n.Slots, n.SlotTTL = 100, time.Hour
	case ratelimit.LeakyBucket:
		n.Rate, n.Queue = ratelimit.Rate{Count: 100, Per: time.Hour}, 100
	case ratelimit.TokenBucket, ratelimit.GCRA:
		n.Rate, n.Burst = ratelimit.Rate{Count: 100, Per: time.Hour}, 100
	case ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog:
		n.Rate = ratelimit.Rate{Count: 100, Per: time.Hour}
	}
	policy := ratelimit.Policy{Name: "search", Posture: ratelimit.FailOpen, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{limit}}
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tenant := fmt.Sprintf("acme-%s-%d", a[:3], charges)
	for range charges {
		if _, err := limits.Check(t.Context(), tenant, ratelimit.Request{Policy: "search", Cost: 1, Descriptors: map[string]string{"tenant": "shop-1", "user": "user-4242"}}); err != nil {
			t.Fatal(err)
		}
	}
	found := keys(t, client, prefix)
	bytes, err := client.MemoryUsage(t.Context(), found[0]).Result()
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	client.Del(t.Context(), found[0])
	return bytes
}

// While two versions of a policy are in use, each call meets the other's state and
// the script leaves it to the transition: not one unit more passes for that.
func TestTwoRulesOnOneKey(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	rules := []ratelimit.Bucket{bucketOf("k", 1, 24*time.Hour, 50), bucketOf("k", 1, 48*time.Hour, 50)}
	var allowed, contended atomic.Int64
	var callers sync.WaitGroup
	for i := range 40 {
		callers.Go(func() {
			for n := range 5 {
				out, err := store.Take(t.Context(), ratelimit.Take{Buckets: rules[(i+n)%2 : (i+n)%2+1], Cost: 1})
				if e, ok := errors.AsType[*ratelimit.FaultError](err); ok && e.Reason == "contended" {
					contended.Add(1)
				} else if err != nil {
					t.Error(err)
				} else if out.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d of 50 passed, %d gave up", allowed.Load(), contended.Load())
	if n := allowed.Load(); n > 50 || n+contended.Load() < 45 {
		t.Errorf("%d passed, %d gave up", n, contended.Load())
	}
}
