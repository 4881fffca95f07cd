package quota_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/quota"
)

// Two mails are reserved before they are sent; only one could be. When the answer
// to the commit is lost, the caller commits again.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	quotas := quota.New(quota.NewLocal(embedded.Memory()), quota.Options{Now: func() time.Time { return now }})
	mails := quota.ID{Tenant: "acme", Name: "mails", Subject: "ann"}

	_, err := quotas.Set(ctx, mails, quota.Definition{Limit: 3, Window: quota.Day, Zone: "Europe/Berlin"})
	fmt.Println("set:", err)

	granted, err := quotas.Reserve(ctx, mails, quota.ReserveRequest{Amount: 2, RequestID: "newsletter-7", TTL: time.Minute})
	fmt.Println("reserved:", granted.Reserved, "available:", granted.Available, err)

	_, err = quotas.Consume(ctx, mails, 2, "invoice-9")
	if exceeded, ok := errors.AsType[*quota.ExceededError](err); ok {
		fmt.Println("available:", exceeded.Available, "wait:", exceeded.RetryAfter)
	}

	for range 2 {
		q, err := quotas.Commit(ctx, mails, granted.Reservation, 1)
		fmt.Println("used:", q.Used, "available:", q.Available, err)
	}

	now = now.Add(12 * time.Hour)
	q, err := quotas.Get(ctx, mails)
	fmt.Println("tomorrow:", q.Available, err)
	// Output:
	// set: <nil>
	// reserved: 2 available: 1 <nil>
	// available: 1 wait: 11h0m0s
	// used: 1 available: 2 <nil>
	// used: 1 available: 2 <nil>
	// tomorrow: 3 <nil>
}
