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
	charge.Repeat, charge.Cost = true, 1_000_000
	want("only again, at a cost that no limit has any more", do(t, store, charge), "b", 2, 2, 4*time.Second)
	charge.Record = "never sent"
	if out := do(t, store, charge); out.Allowed || out.SlotID != "" || out.Verdicts[0].Remaining != 2 {
		t.Errorf("only again, and it never was: got %+v", out)
	}
	charge.Repeat, charge.Record = false, "r2"
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

// repeatedSlots sends an id again whose slot was released or has expired: it is a new
// request, that must find a slot.
func repeatedSlots(t *testing.T, store ratelimit.Store) {
	buckets := []ratelimit.Bucket{
		{Key: "slots", Rule: ruleOf(ratelimit.Concurrency, 1, sec, 1), Tag: "tag"},
		{Key: "bucket", Rule: bucketOf(1, day, 10), Tag: "tag"},
	}
	charge := func(why, record, slot string, at int64, want string, left int64) {
		t.Helper()
		out := do(t, store, ratelimit.Take{Buckets: buckets, Cost: 1, Now: start + at, SlotID: slot, Record: record})
		if out.SlotID != want || out.Allowed != (want != "") || out.Verdicts[1].Remaining != left {
			t.Errorf("%s: got %+v, want slot %q and %d left", why, out, want, left)
		}
	}
	charge("the first", "r", "a", 0, "a", 9)
	charge("again: the slot is still its own", "r", "b", sec-us, "a", 9)
	give(t, store, ratelimit.Give{Buckets: buckets[:1], SlotID: "a", Now: start + 1})
	charge("another gets the slot that was released", "other", "c", 2, "c", 8)
	charge("again: somebody else has it", "r", "d", 3, "", 8)
	give(t, store, ratelimit.Give{Buckets: buckets[:1], SlotID: "c", Now: start + 4})
	charge("again: a new one", "r", "e", 5, "e", 7)
	charge("and again: that one", "r", "f", 6, "e", 7)
	charge("when it has expired: a new one", "r", "g", 5+sec, "g", 6)
	charge("which is held", "other", "h", 6+sec, "", 6)
}

// boundIDs sends an id again with something else: nothing is done, whatever the buckets
// and their tags, and whether the first one passed or not.
func boundIDs(t *testing.T, store ratelimit.Store) {
	bucket := func(key string) []ratelimit.Bucket {
		return []ratelimit.Bucket{{Key: key, Rule: bucketOf(1, day, 10), Tag: key}, {Key: key + " slots", Rule: ruleOf(ratelimit.Concurrency, 10, day, 10), Tag: key}}
	}
	charge := func(why, key, content string, cost, at, left int64, want bool) {
		t.Helper()
		charge := ratelimit.Take{
			Buckets: bucket(key), Cost: cost, Now: start + at, SlotID: "s",
			Record: "record " + content, Bind: ratelimit.Bind{Key: "id", Content: content},
		}
		out := do(t, store, charge)
		if out.Mismatch == want || len(out.Verdicts) != 2 || out.Mismatch && (out.Allowed || out.SlotID != "") {
			t.Errorf("%s: got %+v", why, out)
		}
		charge.Peek = true
		if seen := do(t, store, charge); seen.Mismatch || seen.Verdicts[0].Remaining != left || seen.Verdicts[1].Remaining != left {
			t.Errorf("%s: then a peek says %+v, want %d left", why, seen, left)
		}
	}
	charge("the first", "a", "x", 4, 0, 6, true)
	charge("again", "a", "x", 4, 0, 6, true)
	charge("with another cost", "a", "y", 5, 0, 6, false)
	charge("of another bucket", "b", "z", 4, 0, 10, false)
	charge("the first once more", "a", "x", 4, 600*sec-us, 6, true)
	charge("after ten minutes it is free", "b", "z", 4, 600*sec, 6, true)
	charge("and taken", "a", "x", 4, 600*sec, 6, false)

	give := func(why, content string, at, left int64, want bool) {
		t.Helper()
		out := give(t, store, ratelimit.Give{Buckets: bucket("b"), Cost: 1, Now: start + at, Record: "back " + content, Bind: ratelimit.Bind{Key: "refund id", Content: content}})
		if seen := do(t, store, ratelimit.Take{Buckets: bucket("b"), Cost: 1, Now: start + at, Peek: true}); out.Mismatch == want || seen.Verdicts[0].Remaining != left {
			t.Errorf("%s: got %+v, and left are %d", why, out, seen.Verdicts[0].Remaining)
		}
	}
	give("a refund", "x", 600*sec, 7, true)
	give("again", "x", 600*sec, 7, true)
	give("another with its id", "y", 600*sec, 7, false)

	full := ratelimit.Take{Buckets: bucket("c"), Cost: 10, Now: start, Bind: ratelimit.Bind{Key: "other id", Content: "x"}, Record: "record full"}
	do(t, store, ratelimit.Take{Buckets: bucket("c"), Cost: 1, Now: start, SlotID: "t"})
	if out := do(t, store, full); out.Allowed || out.Mismatch {
		t.Errorf("a refused request: got %+v", out)
	}
	full.Bind.Content, full.Cost = "y", 1
	if out := do(t, store, full); !out.Mismatch {
		t.Errorf("its id with another cost: got %+v", out)
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
