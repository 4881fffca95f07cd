package embedded_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// Many ids of refused requests make no limit full.
func TestBoundedKeepsIdsApart(t *testing.T) {
	limits, err := ratelimit.New(ratelimit.NewLocal(embedded.Bounded(10)), []ratelimit.Policy{{
		Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket,
			Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 30 * 24 * time.Hour}, Burst: 1},
		}},
	}}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	passes := func(user, id string) bool {
		d, err := limits.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": user}, Cost: 1, RequestID: id})
		if err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	if !passes("ann", "") || !passes("bob", "") {
		t.Fatal("refused at first")
	}
	for i := range 100 {
		if passes("bob", fmt.Sprint(i)) {
			t.Fatalf("bob passes again after %d", i)
		}
	}
	if passes("ann", "") {
		t.Error("ann's limit is full again")
	}
}
