package lease_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// A worker that pauses loses its lease. Its fencing token, smaller than its
// successor's, keeps it from writing when it wakes up.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	store := embedded.Memory()
	leases := lease.New(lease.NewLocal(store), lease.Options{Now: func() time.Time { return now }})
	fences := fencing.New(fencing.NewLocal(store))

	first, err := leases.Acquire(ctx, "acme", "reports", lease.AcquireRequest{Owner: "worker-1", TTL: 10 * time.Second})
	fmt.Println("worker-1:", first.Token, first.ValidFor, err)

	_, err = leases.Acquire(ctx, "acme", "reports", lease.AcquireRequest{Owner: "worker-2", TTL: 10 * time.Second})
	if held, ok := errors.AsType[*lease.HeldError](err); ok {
		fmt.Println("worker-2: held until", held.HeldUntil.Format(time.TimeOnly))
	}

	now = now.Add(time.Minute) // worker-1 pauses
	second, err := leases.Acquire(ctx, "acme", "reports", lease.AcquireRequest{Owner: "worker-2", TTL: 10 * time.Second})
	fmt.Println("worker-2:", second.Token, second.ValidFor, err)

	for _, g := range []lease.Grant{second, first} {
		_, err := fences.Admit(ctx, "acme", "reports", fencing.Position{Token: g.Token})
		fmt.Println(g.Owner, "writes:", err)
	}
	_, err = leases.Renew(ctx, "acme", "reports", lease.Holder{ID: first.ID, Token: first.Token}, 10*time.Second)
	fmt.Println("worker-1:", err)
	// Output:
	// worker-1: 1 10s <nil>
	// worker-2: held until 12:00:10
	// worker-2: 2 10s <nil>
	// worker-2 writes: <nil>
	// worker-1 writes: fencing: stale token: the mark is at 2
	// worker-1: lease: another grant, or none, is the latest
}

// The same owner and request id get the same grant again, so a lost answer costs nothing.
func ExampleManager_Acquire() {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	leases := lease.New(lease.NewLocal(embedded.Memory()), lease.Options{Now: func() time.Time { return now }})
	acquire := func() {
		g, err := leases.Acquire(ctx, "acme", "reports", lease.AcquireRequest{Owner: "worker-1", RequestID: "run-7", TTL: 10 * time.Second})
		fmt.Println(g.Token, g.ValidFor, err)
	}

	acquire()
	now = now.Add(4 * time.Second)
	acquire()
	now = now.Add(time.Minute)
	acquire()
	// Output:
	// 1 10s <nil>
	// 1 6s <nil>
	// 0 0s lease: the grant of this request id has ended
}
