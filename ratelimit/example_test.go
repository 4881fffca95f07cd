package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func Example() {
	policy := ratelimit.Policy{
		Name: "search", Posture: ratelimit.Local, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: "user", Key: []string{"tenant", "user"}, Algorithm: ratelimit.TokenBucket,
			Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 10, Per: time.Second}, Burst: 20},
		}, {
			Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.TokenBucket,
			Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1000, Per: time.Minute}, Burst: 25},
		}},
	}
	now := time.Now() // stands still here, so that the output does not depend on it
	store := ratelimit.NewLocal(embedded.Bounded(100_000))
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, user := range []string{"ann", "ann", "bob"} {
		d, err := limits.Check(context.Background(), "acme", ratelimit.Request{
			Policy: "search", Descriptors: map[string]string{"tenant": "big-shop", "user": user}, Cost: 12,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(user, d.Allowed, d.Limiting, d.RetryAfter)
		for _, l := range d.Limits {
			fmt.Printf("  %s: %d of %d left, full in %v\n", l.Name, l.Remaining, l.Limit, l.Reset)
		}
	}
	// Output:
	// ann true  0s
	//   user: 8 of 20 left, full in 1.2s
	//   tenant: 13 of 25 left, full in 720ms
	// ann false user 400ms
	//   user: 8 of 20 left, full in 1.2s
	//   tenant: 13 of 25 left, full in 720ms
	// bob true  0s
	//   user: 8 of 20 left, full in 1.2s
	//   tenant: 1 of 25 left, full in 1.44s
}

func ExampleLimiter_Release() {
	policy := ratelimit.Policy{
		Name: "exports", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.Concurrency,
			Numbers: ratelimit.Numbers{Slots: 1, SlotTTL: 5 * time.Minute},
		}},
	}
	store := ratelimit.NewLocal(embedded.Memory())
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, shop := context.Background(), map[string]string{"tenant": "big-shop"}
	request := ratelimit.Request{Policy: "exports", Descriptors: shop, Cost: 1}
	first, _ := limits.Check(ctx, "acme", request)
	second, _ := limits.Check(ctx, "acme", request)
	fmt.Println("first:", first.Allowed, "second:", second.Allowed, "by", second.Limiting)
	if err := limits.Release(ctx, "acme", "exports", shop, first.SlotID); err != nil {
		fmt.Println(err)
		return
	}
	third, _ := limits.Check(ctx, "acme", request)
	fmt.Println("after the release:", third.Allowed)
	// Output:
	// first: true second: false by tenant
	// after the release: true
}
