package fencing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/fencing"
)

// A place that is written to remembers the largest token, and so refuses a writer
// that paused while another took over.
func ExampleManager_Admit() {
	ctx := context.Background()
	fences := fencing.New(fencing.NewLocal(embedded.Memory()))

	for _, token := range []fencing.Token{33, 34, 33} {
		mark, err := fences.Admit(ctx, "acme", "reports", fencing.Position{Token: token})
		if stale, ok := errors.AsType[*fencing.StaleError](err); ok {
			fmt.Printf("token %d refused, the mark is at %d\n", token, stale.HighWater.Token)
			continue
		}
		fmt.Printf("token %d passed, the mark is at %d, %v\n", token, mark.Token, err)
	}
	// Output:
	// token 33 passed, the mark is at 33, <nil>
	// token 34 passed, the mark is at 34, <nil>
	// token 33 refused, the mark is at 34
}

// With a sequence a write can be repeated after an answer that never came.
func ExampleManager_Write() {
	ctx := context.Background()
	fences := fencing.New(fencing.NewLocal(embedded.Memory()))
	write := func(sequence int64, value string) {
		r, err := fences.Write(ctx, "acme", "reports", "cursor", fencing.WriteRequest{
			Position: fencing.Position{Token: 34, Sequence: sequence},
			Mode:     fencing.HighWater,
			Value:    []byte(value),
		})
		fmt.Println(r.Version, r.Sequence, err)
	}

	write(1, `{"line": 100}`)
	write(1, `{"line": 100}`)
	write(1, `{"line": 200}`)
	write(2, `{"line": 200}`)
	// Output:
	// 1 1 <nil>
	// 1 1 <nil>
	// 0 0 fencing: this token and sequence already wrote another value
	// 2 2 <nil>
}
