package tokenlease_test

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// A counter hands out batches of what it has, to one holder. A source that has several
// must also see to it that together they never hold more than MaxOvershoot.
type counter struct{ units int64 }

func (c *counter) Lease(_ context.Context, ask tokenlease.Ask) (tokenlease.Grant, error) {
	if c.units < ask.Least {
		return tokenlease.Grant{RetryAfter: time.Minute, MaxOvershoot: 100}, nil
	}
	n := min(ask.Want, c.units)
	c.units -= n
	return tokenlease.Grant{Granted: n, ValidFor: time.Second, MaxOvershoot: 100, Room: 100 - ask.Left - n}, nil
}

func (c *counter) Return(_ context.Context, u tokenlease.Unspent) error {
	c.units += u.Units
	return nil
}

func Example() {
	source := &counter{units: 6}
	lessee := tokenlease.New(source, tokenlease.Options{})
	defer lessee.Close(context.Background())
	key := tokenlease.Key{Policy: "search", Descriptors: map[string]string{"user": "ada"}}
	for range 12 {
		answer, err := lessee.Spend(context.Background(), key, 1)
		switch {
		case err != nil:
			fmt.Println(err)
		case answer.Exact: // too seldom yet for a batch
			fmt.Print("ask the source, ")
		case answer.Allowed:
			fmt.Print("yes, ")
		default:
			fmt.Print("no, ")
		}
	}
	fmt.Println(source.units, "left")
	// Output: ask the source, ask the source, ask the source, ask the source, yes, yes, yes, yes, yes, yes, no, no, 0 left
}
