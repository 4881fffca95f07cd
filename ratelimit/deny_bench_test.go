package ratelimit

import "testing"

// What it costs to find a refusal of a bucket, with a thousand others beside it.
func BenchmarkDenied(b *testing.B) {
	d := newDenials()
	bucket := Bucket{Key: "7:default6:search6:tenant4:debt18:6:tenant8:big-shop", Rule: Rule{Algorithm: TokenBucket, Count: 1, Per: 1_000_000, Burst: 9}}
	for i := range 1000 {
		d.remember(bucket.Key+string(rune('a'+i)), denial{rule: bucket.Rule, cost: 1, until: 2}, 0)
	}
	d.remember(bucket.Key, denial{rule: bucket.Rule, cost: 1, until: 2}, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, refuses := d.find(bucket, 1, 1); !refuses {
			b.Fatal("not found")
		}
	}
}
