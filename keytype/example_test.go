package keytype_test

import (
	"fmt"

	"github.com/coordsvc/coordsvc/keytype"
)

// What is promised of a kind of key, and what of it is in force on a node.
func Example() {
	lease, _ := keytype.ByName("lease")
	fmt.Println(lease.Durability, "|", lease.OnStoreFailure, "|", lease.Pattern())
	for _, mode := range []keytype.Mode{{}, {DynamoDB: true}} {
		fmt.Println(mode.InForce(lease).Durability)
	}
	// Output:
	// durable | fail closed: 503 | <n>:{tenant}<n>:{resource}
	// durable on this node only
	// durable
}

// Every id of every package is checked by one rule.
func ExampleCheckID() {
	fmt.Println(keytype.CheckID("owner", "worker-1"))
	fmt.Println(keytype.CheckID("owner", ""))
	fmt.Println(keytype.CheckID("owner", ".."))
	// Output:
	// <nil>
	// owner is required
	// owner must not be "." or ".."
}
