package ratelimit_test

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

func BenchmarkCheck(b *testing.B) {
	run := func(name string, policy ratelimit.Policy) {
		b.Run(name, func(b *testing.B) {
			opts := ratelimit.Options{DenyCache: name == "refused from memory"}
			limits, err := ratelimit.New(ratelimit.NewLocal(openMemory(b)), []ratelimit.Policy{policy}, opts)
			if err != nil {
				b.Fatal(err)
			}
			ctx, req := b.Context(), ask(1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := limits.Check(ctx, "t", req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("allowed", policy(limit("l", 1_000_000_000, time.Second, 1_000_000_000)))
	run("refused", policy(limit("l", 1, 24*time.Hour, 1)))
	run("refused from memory", policy(limit("l", 1, 24*time.Hour, 1)))
	run("four limits", policy(
		limit("a", 1_000_000_000, time.Second, 1_000_000_000), limit("b", 1_000_000_000, time.Second, 1_000_000_000),
		limit("c", 1_000_000_000, time.Second, 1_000_000_000), limit("d", 1_000_000_000, time.Second, 1_000_000_000),
	))
}

func BenchmarkNext(b *testing.B) {
	rule := ratelimit.Rule{Algorithm: ratelimit.TokenBucket, Count: 10, Per: 1_000_000, Burst: 20}
	state, _, err := rule.Next(nil, 2_000_000_000_000_000, 10, "")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := rule.Next(state.Packed, 2_000_000_000_100_000, 1, ""); err != nil {
			b.Fatal(err)
		}
	}
}
