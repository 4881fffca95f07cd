package ratelimit

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// The shares of a rule are the rule: units and rates add up to it exactly, and none is empty.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := Limit{Algorithm: rapid.SampledFrom([]Algorithm{TokenBucket, GCRA, FixedWindow, SlidingWindowCounter, SlidingWindowLog}).Draw(r, "algorithm")}
		limit.Shards = rapid.IntRange(2, MaxShards).Draw(r, "shards")
		rule := Rule{Algorithm: limit.Algorithm, Count: rapid.Int64Range(1, maxCount).Draw(r, "count"), Per: rapid.Int64Range(1, maxPer.Microseconds()).Draw(r, "per")}
		rule.Burst = rule.Count
		if rule.Algorithm.refills() {
			rule.Burst = rapid.Int64Range(1, 1000).Draw(r, "burst")
		}
		n := limit.shardsOf(rule)
		units, rate := int64(0), new(big.Rat)
		for k := range n {
			part := rule.shard(k, n)
			units += part.Burst
			rate.Add(rate, big.NewRat(part.Count, part.Per))
			if part.Burst < 1 || part.Burst < rule.Burst/n || part.Count < 1 || part.Per > maxPer.Microseconds() {
				r.Fatalf("%d of %d: %+v", k, n, part)
			}
		}
		if units != rule.Burst || rate.Cmp(big.NewRat(rule.Count, rule.Per)) != 0 {
			r.Fatalf("%d parts have %d units at %v, want %+v", n, units, rate, rule)
		}
	})
}

// The hash is part of the contract between nodes: another one would have a tenant's users
// meet other buckets while a deployment is under way.
func TestStableHash(t *testing.T) {
	for in, want := range map[[2]string]uint64{{"", ""}: 13331581593930102267, {"user", "ann"}: 7291039989749057664, {"use", "rann"}: 2594482058458572695} {
		if got := stableHash(in[0], in[1]); got != want {
			t.Errorf("%q: %d", in, got)
		}
	}
}
