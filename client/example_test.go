package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A login, a check, and work under a lease, as the README shows them.
func Example() {
	url, key := client.ServiceForExamples()
	ctx, total := context.Background(), json.RawMessage(`{"sum":1}`)
	who := api.Descriptors{"tenant": "shop", "user": "ada"}

	options := client.Options{APIKey: key, OnNoAnswer: api.PostureFailClosed}
	options.CheckTimeout = 5 * time.Second // tests run on slow machines, too
	c, err := client.New(url, options)
	check(err)
	session, err := c.CreateSession(ctx, api.CreateSession{UserID: "ada"})
	check(err)
	verdict, err := c.VerifySession(ctx, api.VerifySession{Token: session.Token})
	check(err)
	fmt.Println("active:", verdict.Active)

	decision, err := c.Check(ctx, api.RateLimitRequest{Policy: "default", Descriptors: who})
	check(err)
	fmt.Println("allowed:", decision.Allowed)

	kept, err := c.KeepLease(ctx, "report", api.AcquireLease{Owner: "worker-1", TTLMS: 30_000})
	check(err)
	written, err := c.WriteProtected(kept.Context(), "report", "total", api.WriteProtected{
		FencingToken: int64(kept.Token()), LeaseID: new(kept.LeaseID()), Sequence: new(int64(1)), Value: total,
	})
	check(err)
	fmt.Println("version:", written.Version)
	check(kept.Release(ctx))
	// Output:
	// active: true
	// allowed: true
	// version: 1
}

// A list is read page by page while it is ranged over.
func ExampleClient_Sessions() {
	url, key := client.ServiceForExamples()
	c, err := client.New(url, client.Options{APIKey: key})
	check(err)
	defer func() { check(c.Close()) }()
	ctx := context.Background()
	for _, device := range []string{"laptop", "phone"} {
		_, err := c.CreateSession(ctx, api.CreateSession{UserID: "grace", DeviceID: new(device)})
		check(err)
	}
	for session, err := range c.Sessions(ctx, "grace") {
		check(err)
		if session.DeviceID == "phone" {
			_, err := c.RevokeHandle(ctx, session.Handle)
			check(err)
		}
	}
	for session, err := range c.Sessions(ctx, "grace") {
		check(err)
		fmt.Println(session.DeviceID)
	}
	// Output: laptop
}

// What the service refuses is told by its code, with what belongs to it.
func ExampleProblemError() {
	url, key := client.ServiceForExamples()
	c, err := client.New(url, client.Options{APIKey: key})
	check(err)
	ctx := context.Background()
	_, err = c.AcquireLease(ctx, "refused", api.AcquireLease{Owner: "worker-1", TTLMS: 30_000})
	check(err)
	_, err = c.AcquireLease(ctx, "refused", api.AcquireLease{Owner: "worker-2", TTLMS: 30_000})
	if refused, ok := errors.AsType[*client.ProblemError](err); ok {
		fmt.Println(refused.Code, refused.Retryable, refused.RetryAfter > 0)
	}
	// Output: lease_held true true
}

// Many checks of one key cost few requests, where the policy is leased.
func ExampleLimiter() {
	url, key := client.ServiceForExamples()
	c, err := client.New(url, client.Options{APIKey: key, OnNoAnswer: api.PostureFailClosed, CheckTimeout: 5 * time.Second})
	check(err)
	ctx := context.Background()
	limits := c.NewLimiter()
	allowed := 0
	for range 100 {
		decision, err := limits.Check(ctx, api.RateLimitRequest{Policy: "often", Descriptors: api.Descriptors{"app": "example"}})
		check(err)
		if decision.Allowed {
			allowed++
		}
	}
	fmt.Println(allowed, limits.Close(ctx))
	// Output: 100 <nil>
}
