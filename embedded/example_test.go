package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// A program of its own, without the service: one file keeps leases and the marks that their tokens leave.
func Example() {
	dir, err := os.MkdirTemp("", "embedded")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	items, err := embedded.Open(filepath.Join(dir, "coordination.db"))
	if err != nil {
		panic(err)
	}
	defer items.Close()

	ctx := context.Background()
	leases := lease.New(lease.NewLocal(items), lease.Options{})
	fences := fencing.New(fencing.NewLocal(items))
	grant, err := leases.Acquire(ctx, "acme", "nightly-report", lease.AcquireRequest{Owner: "worker-1", TTL: time.Minute})
	fmt.Println("token", grant.Token, err)
	mark, err := fences.Admit(ctx, "acme", "nightly-report", fencing.Position{Token: grant.Token})
	fmt.Println("mark", mark.Token, err)
	_, err = fences.Admit(ctx, "acme", "nightly-report", fencing.Position{Token: 2})
	fmt.Println(err)
	// Output:
	// token 1 <nil>
	// mark 1 <nil>
	// fencing: the token is larger than any that was granted
}
