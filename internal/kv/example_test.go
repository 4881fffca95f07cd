package kv_test

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

type door struct {
	Owner string `json:"owner"`
}

// A refusal is a value that the transaction hands out; what is slow, such as
// reading the clock, is done before it.
func Example() {
	store := kv.NewMemory(kv.MemoryOptions{})
	take := func(owner string, now time.Time) (holder string, err error) {
		err = store.Update(context.Background(), func(tx kv.Tx) error {
			held, found, err := kv.Load[door](tx, "doors", "front")
			if err != nil {
				return err
			}
			if found {
				holder = held.Owner
				return nil
			}
			holder = owner
			return kv.Save(tx, "doors", "front", door{Owner: owner}, now.Add(time.Hour))
		})
		return holder, err
	}
	now := time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)
	fmt.Println(take("ann", now))
	fmt.Println(take("bob", now))
	fmt.Println(store.Sweep(context.Background(), now.Add(time.Hour), 100))
	fmt.Println(take("bob", now.Add(time.Hour)))
	// Output:
	// ann <nil>
	// ann <nil>
	// 1 <nil>
	// bob <nil>
}
