package redislimit_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// Checks that come together are decided in fewer calls, and each as if it had come by
// itself: exactly as many pass as there are units, and no two are told of the same rest.
func TestChecksThatComeTogether(t *testing.T) {
	client := dial(t, engine.StartRedis(t).Addr)
	numbers := func(units, burst int64) ratelimit.Numbers {
		return ratelimit.Numbers{Rate: ratelimit.Rate{Count: units, Per: 24 * time.Hour}, Burst: burst}
	}
	for _, c := range []struct {
		algorithm ratelimit.Algorithm
		numbers   ratelimit.Numbers
		cost      int64
		others    int64 // that of every other caller
	}{
		{ratelimit.TokenBucket, numbers(1, 900), 1, 1},
		{ratelimit.TokenBucket, numbers(1, 901), 3, 3},
		{ratelimit.TokenBucket, numbers(1, 899), 1, 2},
		{ratelimit.TokenBucket, numbers(1, 10), 1, 1}, // all together would not fit into it
		{ratelimit.FixedWindow, numbers(900, 0), 1, 1},
		{ratelimit.SlidingWindowCounter, numbers(900, 0), 2, 2},
		{ratelimit.SlidingWindowLog, numbers(900, 0), 1, 1},
	} {
		t.Run(fmt.Sprintf("%s of %d by %d and %d", c.algorithm, c.numbers.Burst, c.cost, c.others), func(t *testing.T) {
			store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
			guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: 10 * time.Second})
			t.Cleanup(func() { _ = guard.Close() })
			wide := ratelimit.Limit{Name: "wide", Key: []string{"a"}, Algorithm: ratelimit.GCRA, Numbers: numbers(1, 20_000)}
			limits, err := ratelimit.New(guard, []ratelimit.Policy{{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{
				{Name: "l", Key: []string{"a"}, Algorithm: c.algorithm, Numbers: c.numbers}, wide,
			}}}, ratelimit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			units := max(c.numbers.Burst, c.numbers.Rate.Count)
			before := ran(t, client)
			var told sync.Map
			var passed, checks atomic.Int64 // of the key that they share
			var callers sync.WaitGroup
			for i := range 64 {
				cost := c.cost
				if i%2 == 1 {
					cost = c.others
				}
				callers.Go(func() {
					other := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"a": strconv.Itoa(i)}}
					if _, err := limits.Check(t.Context(), "t", other); err != nil { // so that the first ones come together
						t.Error(err)
					}
					for range 20 {
						d, err := limits.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Cost: cost, Descriptors: map[string]string{"a": "x"}})
						if err != nil {
							t.Error(err)
							return
						}
						checks.Add(1)
						if !d.Allowed {
							continue
						}
						left := d.Limits[0].Remaining
						passed.Add(cost)
						if _, twice := told.LoadOrStore(left, true); twice || left != d.Limits[1].Remaining-20_000+units {
							t.Errorf("told twice of %d left, or %+v", left, d.Limits)
						}
					}
				})
			}
			callers.Wait()
			calls := ran(t, client) - before
			t.Logf("%d checks, %d units passed, %d calls", checks.Load(), passed.Load(), calls)
			if left := units - passed.Load(); left < 0 || left >= c.cost || calls >= checks.Load()+64 {
				t.Errorf("%d of %d units passed in %d calls", passed.Load(), units, calls)
			}
			if d, err := limits.Peek(t.Context(), "t", ratelimit.Request{Policy: "p", Cost: c.cost, Descriptors: map[string]string{"a": "x"}}); err != nil || d.Limits[0].Remaining != units-passed.Load() {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// No more join than fit into the bucket: the rest of those that wait for one convoy go by
// a call of their own, and nobody who would pass alone is refused.
func TestNoMoreJoinThanFit(t *testing.T) {
	p, store, _ := newPipelines(t)
	held, let := p.stall()
	ask := func(b ratelimit.Bucket) ratelimit.Asked {
		return store.Ask(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{b}, Cost: 2})
	}
	before := ask(bucketOf("before", 1, time.Hour, 2))
	<-held
	var all []ratelimit.Asked
	for range 5 { // two fit into the bucket, as one call; the next two are another
		all = append(all, ask(bucketOf("shared", 1, time.Hour, 5)))
	}
	waiting := redislimit.Waiting(store)
	close(let)
	<-before.Done()
	passed := 0
	for _, a := range all {
		<-a.Done()
		out, err := a.Result()
		if err != nil {
			t.Fatal(err)
		}
		if out.Allowed {
			passed++
		}
	}
	if waiting != 3 || passed != 2 {
		t.Errorf("%d calls waited, and %d passed; want 3 and 2", waiting, passed)
	}
}
