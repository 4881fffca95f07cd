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

var algorithms = []ratelimit.Algorithm{
	ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter,
	ratelimit.SlidingWindowLog, ratelimit.LeakyBucket, ratelimit.Concurrency,
}

// asTheTransition drives the store and the bare transition with the same random
// calls over a few buckets and demands the same answers.
func asTheTransition(t *testing.T, store ratelimit.Store) {
	history := 0
	rapid.Check(t, func(r *rapid.T) {
		history++
		m := model{}
		now, charged := int64(start), int64(0)
		for i := range rapid.IntRange(1, 30).Draw(r, "calls") {
			now += rapid.SampledFrom([]int64{0, us, 333 * us, 40 * ms, sec, 100 * sec, day, -us, -sec, -100 * sec}).Draw(r, "pause")
			take := drawTake(r, strconv.Itoa(history), now)
			take.SlotID = "slot" + strconv.Itoa(i%5)
			switch rapid.IntRange(0, 7).Draw(r, "call") {
			case 0:
				give := ratelimit.Give{
					Buckets: take.Buckets, Cost: take.Cost, Now: now, SlotID: take.SlotID, Record: take.Record,
					Charged: rapid.SampledFrom([]int64{0, charged}).Draw(r, "charged"),
				}
				if give.Record != "" {
					give.Record += "/refund"
					give.Bind = ratelimit.Bind{Key: take.Bind.Key + "/refund", Content: take.Bind.Content}
				}
				if rapid.Bool().Draw(r, "ends a charge") {
					give.Record, give.Bind, give.Charged = take.Record, ratelimit.Bind{}, charged
					give.Ends = rapid.SampledFrom([]ratelimit.End{ratelimit.Settled, ratelimit.Undone}).Draw(r, "how")
				}
				got, err := store.Give(t.Context(), give)
				m.compare(r, give, got, err, give.Record, give.Bind, give.Buckets, give.Decide)
			case 1:
				if err := store.Forget(t.Context(), take.Buckets); err != nil {
					r.Fatal(err)
				}
				for _, b := range take.Buckets {
					delete(m, b.Key)
				}
			default:
				got, err := store.Take(t.Context(), take)
				m.compare(r, take, got, err, take.Record, take.Bind, take.Buckets, take.Decide)
				charged = now
			}
		}
	})
}

func drawTake(r *rapid.T, prefix string, now int64) ratelimit.Take {
	take := ratelimit.Take{Now: now, Peek: rapid.IntRange(0, 4).Draw(r, "peek") == 0, Pending: rapid.Bool().Draw(r, "pending")}
	largest := slices.Max(bursts)
	for i := range rapid.IntRange(1, 3).Draw(r, "limits") {
		algorithm := rapid.SampledFrom(algorithms).Draw(r, "algorithm")
		rule := bucketOf(rapid.SampledFrom(counts).Draw(r, "count"), rapid.SampledFrom(pers).Draw(r, "per"), rapid.SampledFrom(bursts).Draw(r, "burst"))
		rule.Algorithm = algorithm
		if family(algorithm) != "debt" {
			rule.Count = rule.Burst
		}
		largest = min(largest, rule.Burst)
		key := prefix + "/" + strconv.Itoa(i) + "/" + family(algorithm) + strconv.Itoa(rapid.IntRange(0, 1).Draw(r, "key"))
		bucket := ratelimit.Bucket{Key: key, Rule: rule, Tag: "tag"}
		if rapid.IntRange(0, 3).Draw(r, "has its own cost") == 0 {
			bucket.Cost = rapid.Int64Range(1, rule.Burst).Draw(r, "own cost")
		}
		take.Buckets = append(take.Buckets, bucket)
	}
	take.Cost = rapid.Int64Range(1, largest).Draw(r, "cost")
	if rapid.IntRange(0, 3).Draw(r, "has id") == 0 {
		content := strconv.Itoa(rapid.IntRange(0, 1).Draw(r, "content"))
		id := prefix + "/request" + strconv.Itoa(rapid.IntRange(0, 2).Draw(r, "id"))
		take.Record, take.Bind = id+"/"+content, ratelimit.Bind{Key: id, Content: content}
		take.Repeat = rapid.IntRange(0, 3).Draw(r, "repeat") == 0
	}
	return take
}

// family tells apart the algorithms whose states differ.
func family(a ratelimit.Algorithm) string {
	switch a {
	case ratelimit.FixedWindow, ratelimit.SlidingWindowCounter:
		return "window"
	case ratelimit.SlidingWindowLog:
		return "log"
	case ratelimit.Concurrency:
		return "slots"
	case ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.LeakyBucket:
	}
	return "debt"
}

// A model is a store that forgets nothing.
type model map[string][]byte

// compare runs the decision on the model and demands what the store answered.
func (m model) compare(r *rapid.T, call any, got ratelimit.Outcome, err error, record string, bind ratelimit.Bind, buckets []ratelimit.Bucket,
	decide func(ratelimit.Stored) (ratelimit.Next, ratelimit.Outcome, error),
) {
	if err != nil {
		r.Fatal(err)
	}
	stored := ratelimit.Stored{Record: m[record], Bound: m[bind.Key], Packed: make([][]byte, len(buckets))}
	for i, b := range buckets {
		stored.Packed[i] = m[b.Key]
	}
	next, want, err := decide(stored)
	if err != nil {
		r.Fatal(err)
	}
	for i, state := range next.States {
		if state.Packed != nil {
			m[buckets[i].Key] = state.Packed
		}
	}
	if next.Record.Gone {
		delete(m, record)
	} else if next.Record.Packed != nil {
		m[record] = next.Record.Packed
	}
	if next.Bound.Packed != nil {
		m[bind.Key] = next.Bound.Packed
	}
	if got.Mismatch != want.Mismatch || got.Allowed != want.Allowed || got.SlotID != want.SlotID || !slices.Equal(got.Verdicts, want.Verdicts) {
		r.Fatalf("%+v:\nthe store says  %+v\nthe transition  %+v", call, got, want)
	}
}
