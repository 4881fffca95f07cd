package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func ExampleSet_Explain() {
	set, err := Parse("search.yaml", []byte(whatTheContractShows))
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := set.Explain(context.Background(), "default", "search", map[string]string{"tenant": "trial-7", "user": "ann"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range e.Limits {
		fmt.Println(l.Name, l.Algorithm, l.Rate.Count, l.Override)
	}
	// Output:
	// user token_bucket 10 0
	// tenant sliding_window_counter 100 2
	// exports concurrency 0 0
	// mail leaky_bucket 5 0
}

func TestExplainOverrides(t *testing.T) {
	set, err := Parse("f.yaml", []byte(file(`{name: l, key: [user, region], algorithm: gcra, rate: 10/s, burst: 5, overrides: [
        {match: {user: "big-*"}, burst: 20}, {match: {user: "big-s*"}, rate: 30/s}, {match: {user: big-shop}, burst: 20}]}
      - {name: sum, key: [region], algorithm: concurrency, slots: 2, slot_ttl: 1m, overrides: [{match: {region: eu}, slot_ttl: 2m}, {match: {region: us}, slots: 3}]}
      - {name: mail, key: [user], algorithm: leaky_bucket, rate: 1/s, queue: 3, overrides: [{match: {user: bob}, queue: 4}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	store := &listener{}
	l, err := ratelimit.New(store, set.Policies, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		why, user, region string
		overrides         [3]int
	}{
		{"none", "ann", "asia", [3]int{0, 0, 0}},
		{"a prefix", "big-tower", "eu", [3]int{1, 1, 0}},
		{"the longer prefix", "big-ship", "us", [3]int{2, 2, 0}},
		{"exact, though another has its numbers", "big-shop", "us", [3]int{3, 2, 0}},
		{"the last limit's", "bob", "eu", [3]int{0, 1, 1}},
	} {
		descriptors := map[string]string{"user": step.user, "region": step.region}
		e, err := set.Explain(t.Context(), "t", "p", descriptors)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Peek(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: descriptors, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		for i, got := range e.Limits {
			rule, numbers := store.asked.Buckets[i].Rule, got.Numbers
			if got.Override != step.overrides[i] || (got.Override > 0) != (len(got.Match) > 0) || got.Bucket != store.asked.Buckets[i].Key {
				t.Errorf("%s: limit %s: got %+v", step.why, got.Name, got)
			}
			if max(numbers.Burst, numbers.Slots, numbers.Queue) != rule.Burst || max(numbers.Rate.Per, numbers.SlotTTL).Microseconds() != rule.Per || max(numbers.Rate.Count, numbers.Slots) != rule.Count {
				t.Errorf("%s: limit %s: explained %+v, the limiter has %+v", step.why, got.Name, numbers, rule)
			}
		}
		if e.Limits[0].Apart || !e.Limits[1].Apart || !e.Limits[2].Apart {
			t.Errorf("%s: got %+v", step.why, e)
		}
	}
}

func TestExplainRefusesWhatCheckRefuses(t *testing.T) {
	set, err := Parse("f.yaml", []byte(file(plain)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Explain(t.Context(), "t", "other", nil); !errors.Is(err, ratelimit.ErrUnknownPolicy) {
		t.Errorf("an unknown policy: %v", err)
	}
	if _, err := set.Explain(t.Context(), "t", "p", map[string]string{"tenant": "x"}); err == nil {
		t.Error("a descriptor is missing")
	}
	if _, err := set.Explain(t.Context(), "", "p", map[string]string{"user": "u"}); !isValue(err) {
		t.Errorf("no tenant: %v", err)
	}
	if _, err := (&listener{}).Give(t.Context(), ratelimit.Give{}); err == nil {
		t.Error("a refund is explained")
	}
	if err := (&listener{}).Forget(t.Context(), nil); err == nil {
		t.Error("a reset is explained")
	}
}

func isValue(err error) bool {
	_, ok := errors.AsType[*keytype.ValueError](err)
	return ok
}
