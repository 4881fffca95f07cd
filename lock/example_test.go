package lock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/lock"
)

// One of several workers refreshes a cache; the others need not. If two did, nothing would break.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	locks := lock.New(lock.NewLocal(embedded.Memory()), lock.Options{Now: func() time.Time { return now }})

	first, err := locks.Acquire(ctx, "acme", "refresh", "worker-1", 10*time.Second)
	fmt.Println(first.ValidFor, err)
	fmt.Println(first.Warning)
	_, err = locks.Acquire(ctx, "acme", "refresh", "worker-2", 10*time.Second)
	fmt.Println(err)

	now = now.Add(10 * time.Second) // worker-1 pauses
	_, err = locks.Acquire(ctx, "acme", "refresh", "worker-2", 10*time.Second)
	fmt.Println(err)
	fmt.Println(locks.Release(ctx, "acme", "refresh", first.ID))
	// Output:
	// 10s <nil>
	// advisory only: the lock may be granted twice and has no fencing token; use a lease where that matters
	// lock: held for another 10s
	// <nil>
	// lock: not held by this id
}
