package redislimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// apart are a limit that everybody shares and one of a single user, in different slots.
func apart() ratelimit.Policy {
	return ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{
		{Name: "route", Key: []string{"route"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 100, Per: time.Second}, Burst: 500}},
		{Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 1}},
	}}
}

// refusedAtOnce uses up a user's limit and lets 16 callers ask on: whatever they do, the
// route has what it had.
func refusedAtOnce(t *testing.T, client redis.UniversalClient, asks int) {
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	limits, err := ratelimit.New(store, []ratelimit.Policy{apart()}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	req := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"route": "/x", "user": "ann"}}
	if d, err := limits.Check(t.Context(), "t", req); err != nil || !d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	var least atomic.Int64
	least.Store(500)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range asks {
				d, err := limits.Check(t.Context(), "t", req)
				if err != nil || d.Allowed || d.Limiting != "user" {
					t.Errorf("got %+v, %v", d, err)
					return
				}
				for left := d.Limits[0].Remaining; left < least.Load(); {
					least.Store(left)
				}
			}
		})
	}
	callers.Wait()
	if least.Load() < 499 { // that of the one that passed
		t.Errorf("refused requests have left the route %d of 500", least.Load())
	}
}

func TestRefusedRequestsLeaveASharedLimitAlone(t *testing.T) {
	refusedAtOnce(t, dial(t, engine.Redis(t).Addr), 100)
}

// Limits in two slots cost two round trips to be refused, at once, and two more, one
// after the other, to pass, and one for which nobody waits. In one slot it is one.
func TestWhatSlotsCost(t *testing.T) {
	client, w := dial(t, engine.Redis(t).Addr), &counter{}
	client.AddHook(w)
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	two := []ratelimit.Bucket{bucketOf("a", 1, time.Hour, 1), bucketOf("b", 1, time.Hour, 1)}
	one := []ratelimit.Bucket{bucketOf("c", 1, time.Hour, 1), bucketOf("d", 1, time.Hour, 1)}
	two[1].Tag = "other"
	take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("warm", 1, time.Hour, 1)}, Cost: 1})
	for _, c := range []struct {
		why     string
		buckets []ratelimit.Bucket
		peek    bool
		allowed bool
		scripts int64
	}{
		{"two slots, passed", two, false, true, 5},
		{"two slots, refused", two, false, false, 2},
		{"two slots, a peek", two, true, false, 2},
		{"one slot, passed", one, false, true, 1},
		{"one slot, refused", one, false, false, 1},
		{"one slot, a peek", one, true, false, 1},
	} {
		w.scripts.Store(0)
		out := take(t, store, ratelimit.Take{Buckets: c.buckets, Cost: 1, Peek: c.peek})
		for begun := time.Now(); w.scripts.Load() < c.scripts && time.Since(begun) < 5*time.Second; {
			time.Sleep(time.Millisecond)
		}
		if n := w.scripts.Load(); out.Allowed != c.allowed || n != c.scripts {
			t.Errorf("%s: allowed %t with %d scripts, want %t with %d", c.why, out.Allowed, n, c.allowed, c.scripts)
		}
	}
}

// A request that is repeated passes also where the other slot has nothing left.
func TestRepeatedOverTwoSlots(t *testing.T) {
	store := redislimit.New(dial(t, engine.Redis(t).Addr), redislimit.Options{Prefix: engine.FreshPrefix()})
	buckets := []ratelimit.Bucket{bucketOf("a", 1, time.Hour, 1), bucketOf("b", 1, time.Hour, 1)}
	buckets[1].Tag = "other"
	for range 2 {
		if out := take(t, store, ratelimit.Take{Buckets: buckets, Cost: 1, Record: "r"}); !out.Allowed || out.Verdicts[0].Remaining+out.Verdicts[1].Remaining != 0 {
			t.Errorf("got %+v", out)
		}
	}
	if out := take(t, store, ratelimit.Take{Buckets: buckets, Cost: 1, Record: "another"}); out.Allowed || fmt.Sprint(out.Verdicts[0].Wait > 0, out.Verdicts[1].Wait > 0) != "true true" {
		t.Errorf("another: got %+v", out)
	}
}

// A counter counts the scripts that are sent.
type counter struct{ scripts atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *counter) count(cmd redis.Cmder) {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		c.scripts.Add(1)
	}
}
