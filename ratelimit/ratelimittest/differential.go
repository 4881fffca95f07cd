package ratelimittest

import (
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Rates, with exact and inexact units, and bursts that suit them all.
var (
	counts = []int64{1, 3, 10, 997, 65_535, 1_000_000, 999_999_937}
	pers   = []int64{ms, sec, 7 * sec, 60 * sec, 3600 * sec, day, 366 * day}
	bursts = []int64{1, 2, 10, 99}
)

// asTheTransition drives the store and the bare transition with the same random
// requests over a few buckets and demands the same answers.
func asTheTransition(t *testing.T, store ratelimit.Store) {
	history := 0
	rapid.Check(t, func(r *rapid.T) {
		history++
		model := map[string][]byte{}
		now := int64(start)
		for range rapid.IntRange(1, 30).Draw(r, "requests") {
			now += rapid.SampledFrom([]int64{0, us, 333 * us, 40 * ms, sec, 100 * sec, day, -us, -sec, -100 * sec}).Draw(r, "pause")
			take := drawTake(r, strconv.Itoa(history), now)
			got, err := store.Take(t.Context(), take)
			if err != nil {
				r.Fatal(err)
			}
			want := decide(r, model, take)
			if got.Allowed != want.Allowed || !slices.Equal(got.Verdicts, want.Verdicts) {
				r.Fatalf("%+v:\nthe store says  %+v\nthe transition  %+v", take, got, want)
			}
		}
	})
}

func drawTake(r *rapid.T, prefix string, now int64) ratelimit.Take {
	take := ratelimit.Take{Now: now, Peek: rapid.IntRange(0, 4).Draw(r, "peek") == 0}
	largest := slices.Max(bursts)
	for i := range rapid.IntRange(1, 3).Draw(r, "limits") {
		rule := bucketOf(rapid.SampledFrom(counts).Draw(r, "count"), rapid.SampledFrom(pers).Draw(r, "per"), rapid.SampledFrom(bursts).Draw(r, "burst"))
		largest = min(largest, rule.Burst)
		key := prefix + "/" + strconv.Itoa(i) + "/" + strconv.Itoa(rapid.IntRange(0, 1).Draw(r, "key"))
		take.Buckets = append(take.Buckets, ratelimit.Bucket{Key: key, Rule: rule})
	}
	take.Cost = rapid.Int64Range(1, largest).Draw(r, "cost")
	return take
}

// decide is a store that forgets nothing.
func decide(r *rapid.T, model map[string][]byte, take ratelimit.Take) ratelimit.Outcome {
	packed := make([][]byte, len(take.Buckets))
	for i, b := range take.Buckets {
		packed[i] = model[b.Key]
	}
	next, out, err := take.Decide(packed)
	if err != nil {
		r.Fatal(err)
	}
	for i, state := range next {
		if state.Packed != nil {
			model[take.Buckets[i].Key] = state.Packed
		}
	}
	return out
}
