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

// Work that is longer than its lease has it renewed, and sends the token with each write.
func ExampleKeep() {
	store := embedded.Memory()
	leases, fences := lease.New(lease.NewLocal(store), lease.Options{}), fencing.New(fencing.NewLocal(store))
	kept, err := lease.Keep(context.Background(), leases, "acme", "reports", lease.AcquireRequest{Owner: "worker-1", TTL: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { fmt.Println("released:", kept.Release(context.Background())) }()
	for line := range 3 {
		if kept.Context().Err() != nil { // the work must stop
			fmt.Println("stop:", context.Cause(kept.Context()))
			return
		}
		_, err := fences.Write(kept.Context(), "acme", "reports", "cursor", fencing.WriteRequest{
			Position: fencing.Position{Token: kept.Token()}, LeaseID: kept.LeaseID(), Value: fmt.Append(nil, line),
		})
		fmt.Println("line", line, err)
	}
	// Output:
	// line 0 <nil>
	// line 1 <nil>
	// line 2 <nil>
	// released: <nil>
}

// A job that every node starts runs on one of them.
func ExampleRunOne() {
	ctx := context.Background()
	leases := lease.New(lease.NewLocal(embedded.Memory()), lease.Options{})
	job := func(node string, work lease.Work) {
		err := lease.RunOne(ctx, leases, "acme", "nightly-report", lease.AcquireRequest{Owner: node, TTL: time.Minute}, work)
		if _, held := errors.AsType[*lease.HeldError](err); held {
			fmt.Println(node, "leaves it to another")
		}
	}
	job("node-1", func(context.Context, fencing.Token) error {
		fmt.Println("node-1 begins")
		job("node-2", nil)
		fmt.Println("node-1 ends")
		return nil
	})
	// Output:
	// node-1 begins
	// node-2 leaves it to another
	// node-1 ends
}

// One of several candidates leads; when it stops, the next one does.
func ExampleLead() {
	leases := lease.New(lease.NewLocal(embedded.Memory()), lease.Options{})
	candidate := lease.AcquireRequest{Owner: "node-1", TTL: time.Minute}
	for range 2 {
		err := lease.Lead(context.Background(), leases, "acme", "scheduler", candidate, func(ctx context.Context, token fencing.Token) error {
			fmt.Println("leading with token", token, ctx.Err())
			return nil // resigns
		})
		fmt.Println(err)
	}
	// Output:
	// leading with token 1 <nil>
	// <nil>
	// leading with token 2 <nil>
	// <nil>
}
