package policy_test

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/policy"
)

const file = `
version: 1
policies:
  - name: search
    owner: search-team
    on_store_failure: local
    stage: enforce
    limits:
      - {name: user, key: [tenant, user], algorithm: token_bucket, rate: 10/s, burst: 2}
`

// A file is right as a whole, or its mistakes are named and nothing of it counts.
func ExampleParse() {
	set, err := policy.Parse("search.yaml", []byte(file))
	if err != nil {
		fmt.Println(err)
		return
	}
	limits, err := ratelimit.New(ratelimit.NewLocal(embedded.Bounded(100_000)), set.Policies, ratelimit.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	who := map[string]string{"tenant": "big-shop", "user": "ann"}
	d, err := limits.Check(context.Background(), "acme", ratelimit.Request{Policy: "search", Descriptors: who, Cost: 2})
	fmt.Println(d.Allowed, err)

	_, err = policy.Parse("search.yaml", []byte("version: 1\npolicies:\n  - {name: search, limits: []}\n"))
	fmt.Println(err)
	// Output:
	// true <nil>
	// search.yaml:3: policies[0].limits: must be a list of at least one
	// search.yaml:3: policies[0].on_store_failure: is required
}
