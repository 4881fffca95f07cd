package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/idempotency"
)

// An executor stops between its effect and its completion. The retry has a larger
// attempt, by which a fence refuses what the first one still does, and its response
// is the one that everybody gets.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	records := idempotency.New(idempotency.NewLocal(embedded.Memory()), idempotency.Options{Now: func() time.Time { return now }})
	claim := func(fingerprint string) idempotency.Claimed {
		c, err := records.Claim(ctx, "acme", "order-7", idempotency.ClaimRequest{Fingerprint: fingerprint, LockTTL: 30 * time.Second, TTL: 24 * time.Hour})
		if inFlight, ok := errors.AsType[*idempotency.InFlightError](err); ok {
			fmt.Println("in flight, try again in", inFlight.RetryAfter.Round(time.Second))
		} else {
			fmt.Println(c.Completed, c.Attempt, c.Response, err)
		}
		return c
	}

	first := claim("charge 5 EUR")
	claim("charge 5 EUR")
	claim("charge 500 EUR")
	now = now.Add(time.Minute) // the first executor pauses
	second := claim("charge 5 EUR")
	fmt.Println(records.Complete(ctx, "acme", "order-7", second.ID, `{"charge":"ch_1"}`))
	fmt.Println(records.Complete(ctx, "acme", "order-7", first.ID, `{"charge":"ch_2"}`))
	claim("charge 5 EUR")
	// Output:
	// false 1  <nil>
	// in flight, try again in 30s
	// false 0  idempotency: the key belongs to another request, or to another response
	// false 2  <nil>
	// <nil>
	// idempotency: the claim is not the latest, or has ended
	// true 0 {"charge":"ch_1"} <nil>
}
