package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Refused requests, each with an id of its own, make nobody's limit full.
func TestRefusedIdsEvictNoLimit(t *testing.T) {
	local := ratelimit.NewLocal(newLimitsMemory(100, time.Now))
	limits, err := ratelimit.New(local, []ratelimit.Policy{ratelimit.DefaultPolicy()}, ratelimit.Options{
		Now: func() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(user, id string) ratelimit.Decision {
		d, err := limits.Check(t.Context(), "t", ratelimit.Request{
			Policy: "default", Descriptors: map[string]string{"tenant": "t", "user": user}, Cost: 20, RequestID: id,
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if !ask("ann", "").Allowed || !ask("bob", "").Allowed {
		t.Fatal("refused at first")
	}
	for i := range 1000 {
		if ask("bob", fmt.Sprint(i)).Allowed {
			t.Fatalf("bob passes again after %d", i)
		}
	}
	if ask("ann", "").Allowed {
		t.Error("ann's limit is full again")
	}
}
