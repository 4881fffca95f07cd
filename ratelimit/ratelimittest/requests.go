package ratelimittest

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// repeatedRequests sends a charge and a refund again: they take and give nothing more.
func repeatedRequests(t *testing.T, store ratelimit.Store) {
	buckets := []ratelimit.Bucket{
		{Key: "bucket", Rule: bucketOf(1, sec, 10), Tag: "tag"},
		{Key: "queue", Rule: ruleOf(ratelimit.LeakyBucket, 1, sec, 10), Tag: "tag"},
		{Key: "slots", Rule: ruleOf(ratelimit.Concurrency, 10, 60*sec, 10), Tag: "tag"},
	}
	want := func(why string, out ratelimit.Outcome, slot string, bucket, slots int64, delay time.Duration) {
		t.Helper()
		v := out.Verdicts
		if !out.Allowed || out.SlotID != slot || v[0].Remaining != bucket || v[2].Remaining != slots || v[1].Delay != delay {
			t.Errorf("%s: got %+v", why, out)
		}
	}
	charge := ratelimit.Take{Buckets: buckets, Cost: 4, Now: start, SlotID: "a", Record: "r1"}
	want("the first", do(t, store, charge), "a", 6, 6, 0)
	charge.Record, charge.SlotID = "r2", "b"
	want("another", do(t, store, charge), "b", 2, 2, 4*time.Second)
	charge.SlotID, charge.Cost, charge.Now = "c", 10, start+sec
	want("again, whatever else it says: what the first one got", do(t, store, charge), "b", 3, 2, 3*time.Second)
	charge.Peek = true
	if out := do(t, store, charge); out.Allowed {
		t.Errorf("a peek asks for a new charge: got %+v", out)
	}
	charge.Peek, charge.Record = false, "r3"
	for range 2 {
		if out := do(t, store, charge); out.Allowed || out.SlotID != "" {
			t.Errorf("a refused request is judged again: got %+v", out)
		}
	}
	back := ratelimit.Give{Buckets: buckets, Cost: 2, Now: start + sec, Record: "refund"}
	for _, why := range []string{"two back", "again: nothing more"} {
		if out := give(t, store, back); out.Verdicts[0].Remaining != 5 {
			t.Errorf("%s: got %+v", why, out)
		}
	}
	charge.Record, charge.Cost, charge.Now = "r1", 1, start+600*sec
	if out := do(t, store, charge); out.SlotID != "c" {
		t.Errorf("after ten minutes the id means a new request: got %+v", out)
	}
}

// ownWindow gives back a charge whose instant is known.
func ownWindow(t *testing.T, store ratelimit.Store) {
	for _, c := range []struct {
		why                string
		rule               ratelimit.Rule
		charged, given     int64 // microseconds after start
		other              int64 // when another 5 are charged
		remaining, without int64 // with the refund, and before it
	}{
		{"fixed window, the same", ruleOf(ratelimit.FixedWindow, 10, sec, 10), 0, 900 * ms, 100 * ms, 5, 0},
		{"fixed window, the next", ruleOf(ratelimit.FixedWindow, 10, sec, 10), 0, 1900 * ms, 1100 * ms, 5, 5},
		{"counter, the same", ruleOf(ratelimit.SlidingWindowCounter, 10, sec, 10), 0, 900 * ms, 100 * ms, 5, 0},
		{"counter, the next: off the last one", ruleOf(ratelimit.SlidingWindowCounter, 10, sec, 10), 0, 1600 * ms, 1500 * ms, 5, 3},
		{"counter, the one after", ruleOf(ratelimit.SlidingWindowCounter, 10, sec, 10), 0, 2600 * ms, 2500 * ms, 5, 5},
		{"log, still there", ruleOf(ratelimit.SlidingWindowLog, 10, sec, 10), 0, 900 * ms, 100 * ms, 5, 0},
		{"log, gone", ruleOf(ratelimit.SlidingWindowLog, 10, sec, 10), 0, sec, 100 * ms, 5, 5},
		{"bucket, at once", bucketOf(1, sec, 10), 0, 100 * us, 50 * us, 5, 0},
		{"bucket, partly paid off", bucketOf(1, sec, 10), 0, 2 * sec, sec, 5, 2},
		{"bucket, paid off", bucketOf(1, sec, 10), 0, 6 * sec, 5 * sec, 6, 6},
	} {
		buckets := []ratelimit.Bucket{{Key: c.why, Rule: c.rule, Tag: "tag"}}
		for _, at := range []int64{c.charged, c.other} {
			if !do(t, store, ratelimit.Take{Buckets: buckets, Cost: 5, Now: start + at}).Allowed {
				t.Errorf("%s: refused at %v", c.why, micros(at))
			}
		}
		before := do(t, store, ratelimit.Take{Buckets: buckets, Cost: 1, Now: start + c.given, Peek: true})
		after := give(t, store, ratelimit.Give{Buckets: buckets, Cost: 5, Now: start + c.given, Charged: start + c.charged})
		if got, was := after.Verdicts[0].Remaining, before.Verdicts[0].Remaining; got != c.remaining || was != c.without {
			t.Errorf("%s: %d left, %d before; want %d, %d", c.why, got, was, c.remaining, c.without)
		}
	}
}

// reset makes buckets full and slots free, those named and no others.
func reset(t *testing.T, store ratelimit.Store) {
	bucket := func(key string) []ratelimit.Bucket {
		return []ratelimit.Bucket{
			{Key: key, Rule: bucketOf(1, day, 1), Tag: "tag"},
			{Key: key + " slots", Rule: ruleOf(ratelimit.Concurrency, 1, day, 1), Tag: "tag"},
		}
	}
	charge := func(key string) bool {
		return do(t, store, ratelimit.Take{Buckets: bucket(key), Cost: 1, Now: start, SlotID: "s"}).Allowed
	}
	if !charge("a") || !charge("b") || charge("a") {
		t.Fatal("not one each")
	}
	if err := store.Forget(t.Context(), append(bucket("a"), bucket("never charged")...)); err != nil {
		t.Fatal(err)
	}
	if !charge("a") {
		t.Error("still used up after a reset")
	}
	if charge("b") {
		t.Error("another bucket was reset")
	}
}
