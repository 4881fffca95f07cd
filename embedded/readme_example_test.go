package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// An order is charged once: every library over one file, as the README shows them.
func Example_everyPackage() {
	dir, err := os.MkdirTemp("", "embedded")
	check(err)
	defer os.RemoveAll(dir)
	ctx, path, routeKey := context.Background(), filepath.Join(dir, "coordination.db"), make([]byte, 32)

	items, err := embedded.Open(path)
	check(err)
	defer items.Close()
	sessions := session.New(session.NewLocal(items), session.Options{RouteKey: routeKey})
	leases := lease.New(lease.NewLocal(items), lease.Options{})
	fences := fencing.New(fencing.NewLocal(items))
	records := idempotency.New(idempotency.NewLocal(items), idempotency.Options{})
	quotas := quota.New(quota.NewLocal(items), quota.Options{})
	locks := lock.New(lock.NewLocal(embedded.Memory()), lock.Options{})
	policies := []ratelimit.Policy{ratelimit.DefaultPolicy()}
	limits, err := ratelimit.New(ratelimit.NewLocal(embedded.Bounded(100_000)), policies, ratelimit.Options{})
	check(err)

	token, _, err := sessions.Create(ctx, "acme", session.CreateRequest{UserID: "ada"})
	check(err)
	verdict, err := sessions.Verify(ctx, "acme", token.Reveal(), session.VerifyRequest{})
	check(err)
	fmt.Println("active:", verdict.Active)

	who := map[string]string{"tenant": "shop", "user": "ada"}
	decision, err := limits.Check(ctx, "acme", ratelimit.Request{Policy: "default", Descriptors: who, Cost: 1})
	check(err)
	fmt.Println("allowed:", decision.Allowed)

	orders := quota.ID{Tenant: "acme", Name: "orders", Subject: "ada"}
	_, err = quotas.Set(ctx, orders, quota.Definition{Limit: 100, Window: quota.Day})
	check(err)
	left, err := quotas.Consume(ctx, orders, 1, "order-7")
	check(err)
	fmt.Println("left today:", left.Available)

	claim, err := records.Claim(ctx, "acme", "order-7", idempotency.ClaimRequest{
		Fingerprint: "charge 5 EUR", LockTTL: time.Minute, TTL: 24 * time.Hour,
	})
	check(err)
	kept, err := lease.Keep(ctx, leases, "acme", "order-7", lease.AcquireRequest{Owner: "worker-1", TTL: time.Minute})
	check(err)
	defer func() { check(kept.Release(ctx)) }()
	record, err := fences.Write(kept.Context(), "acme", "order-7", "state", fencing.WriteRequest{
		Position: fencing.Position{Token: kept.Token()}, LeaseID: kept.LeaseID(), Value: []byte(`"charged"`),
	})
	check(err)
	fmt.Println("charged under token", record.Token, "in attempt", claim.Attempt)
	err = records.Complete(ctx, "acme", "order-7", claim.ID, `{"charge":"ch_1"}`)
	check(err)

	hint, err := locks.Acquire(ctx, "acme", "refresh-cache", "worker-1", time.Minute)
	check(err)
	fmt.Println(hint.Warning)
	// Output:
	// active: true
	// allowed: true
	// left today: 99
	// charged under token 1 in attempt 1
	// advisory only: the lock may be granted twice and has no fencing token; use a lease where that matters
}
