package ratelimittest

import (
	"testing"

	"github.com/coordsvc/coordsvc/ratelimit"
)

type op string

const (
	take   op = "take"
	refund op = "refund"
	// The slots that the take with that name in its place took.
	release op = "release"
)

// An act is a call after a pause, and what it must answer.
type act struct {
	why       string
	at        int64 // microseconds after start
	op        op
	cost      int64 // of a release: at which instant the slots were taken
	remaining int64
	wait      int64 // microseconds, 0 = allowed
	reset     int64 // microseconds
	delay     int64 // microseconds
}

type history struct {
	name string
	rule ratelimit.Rule
	acts []act
}

func ruleOf(a ratelimit.Algorithm, count, per, capacity int64) ratelimit.Rule {
	return ratelimit.Rule{Algorithm: a, Count: count, Per: per, Burst: capacity}
}

// The start is at 0 of a second, of a minute, and 20 s after a multiple of 100 s.
var histories = []history{
	{"a refund to a token bucket", bucketOf(10, sec, 10), []act{
		{"eight used", 0, take, 8, 2, 0, 800 * ms, 0},
		{"three come back", 0, refund, 3, 5, 0, 500 * ms, 0},
		{"at most what is missing", 100 * ms, refund, 9, 10, 0, 0, 0},
		{"a full one", 100 * ms, refund, 1_000_000_000, 10, 0, 0, 0},
		{"is not fuller", 100 * ms, take, 10, 0, 0, sec, 0},
		{"R17: one back at nothing left", 100 * ms, refund, 1, 1, 0, 900 * ms, 0},
		{"R15: and it is not refused", 100 * ms, take, 1, 0, 0, sec, 0},
	}},
	{"gcra", ruleOf(ratelimit.GCRA, 3, sec, 2), []act{
		{"one is 333,333⅓ µs", 0, take, 1, 1, 0, 333_334 * us, 0},
		{"the tolerance", 0, take, 1, 0, 0, 666_667 * us, 0},
		{"too soon by a third of a microsecond", 333_333 * us, take, 1, 0, us, 333_334 * us, 0},
		{"in time", 333_334 * us, take, 1, 0, 0, 666_666 * us, 0},
		{"thirds add up", 666_667 * us, take, 1, 0, 0, 666_667 * us, 0},
	}},
	{"fixed window", ruleOf(ratelimit.FixedWindow, 10, sec, 10), []act{
		{"within the second", 900 * ms, take, 10, 0, 0, 100 * ms, 0},
		{"used up", sec - us, take, 1, 0, us, us, 0},
		{"twice the rate around the boundary", sec, take, 10, 0, 0, sec, 0},
		{"waits for the next", 1500 * ms, take, 1, 0, 500 * ms, 500 * ms, 0},
		{"two back", 1500 * ms, refund, 2, 2, 0, 500 * ms, 0},
		{"one of them", 1500 * ms, take, 1, 1, 0, 500 * ms, 0},
		{"not above the rate", 1500 * ms, refund, 99, 10, 0, 0, 0},
		{"nor into a later window", 2500 * ms, refund, 5, 10, 0, 0, 0},
		{"nor from there", 2500 * ms, take, 10, 0, 0, 500 * ms, 0},
		{"a second back: no time has passed", 1500 * ms, take, 1, 0, 1500 * ms, 1500 * ms, 0},
		{"a minute back: the clock was set, the units stay", 2250*ms - 60*sec, take, 1, 0, 750 * ms, 750 * ms, 0},
		{"until that window ends", 3*sec - 60*sec, take, 10, 0, 0, sec, 0},
	}},
	{"sliding window counter", ruleOf(ratelimit.SlidingWindowCounter, 10, sec, 10), []act{
		{"all at the end of a window", 900 * ms, take, 10, 0, 0, 1100 * ms, 0},
		{"they count in the next", sec, take, 1, 0, 100 * ms, sec, 0},
		{"a tenth has gone", 1100 * ms, take, 1, 0, 0, 1900 * ms, 0},
		{"no two", 1100 * ms, take, 1, 0, 100 * ms, 1900 * ms, 0},
		{"rounded up", 1350 * ms, take, 1, 1, 0, 1650 * ms, 0},
		{"all but one has gone", 1999 * ms, take, 8, 7, ms, sec + ms, 0},
		{"all", 2 * sec, take, 8, 0, 0, 2 * sec, 0},
		{"650 ms back: no time has passed", 1350 * ms, take, 1, 0, 1150 * ms, 2650 * ms, 0},
	}},
	{"sliding window log", ruleOf(ratelimit.SlidingWindowLog, 10, sec, 10), []act{
		{"at the end of a second", 900 * ms, take, 6, 4, 0, sec, 0},
		{"a little later", 950 * ms, take, 4, 0, 0, sec, 0},
		{"the boundary means nothing", sec, take, 1, 0, 900 * ms, 950 * ms, 0},
		{"six come back first", sec, take, 7, 0, 950 * ms, 950 * ms, 0},
		{"a microsecond early", 1900*ms - us, take, 1, 0, us, 50*ms + us, 0},
		{"to the microsecond", 1900 * ms, take, 5, 1, 0, sec, 0},
		{"the latest charges go back first", 1900 * ms, refund, 6, 7, 0, 50 * ms, 0},
		{"three are left", 1900 * ms, take, 7, 0, 0, sec, 0},
		{"half a second back: no time has passed", 1400 * ms, take, 1, 0, 550 * ms, 1500 * ms, 0},
		{"an hour back: the clock was set, the charges stay", 1900*ms - 3600*sec, take, 1, 0, 50 * ms, sec, 0},
		{"and leave from there", 2900*ms - 3600*sec, take, 10, 0, 0, sec, 0},
	}},
	{"leaky bucket", ruleOf(ratelimit.LeakyBucket, 10, sec, 3), []act{
		{"the first flows at once", 0, take, 1, 2, 0, 100 * ms, 0},
		{"the next after it", 0, take, 1, 1, 0, 200 * ms, 100 * ms},
		{"and after that", 50 * ms, take, 1, 0, 0, 250 * ms, 150 * ms},
		{"the queue is full", 50 * ms, take, 1, 0, 50 * ms, 250 * ms, 0},
		{"one has gone", 100 * ms, take, 1, 0, 0, 300 * ms, 200 * ms},
		{"one gives up its place", 100 * ms, refund, 1, 1, 0, 200 * ms, 0},
		{"another gets it", 100 * ms, take, 1, 0, 0, 300 * ms, 200 * ms},
		{"empty again", sec, take, 3, 0, 0, 300 * ms, 0},
	}},
	{"concurrency", ruleOf(ratelimit.Concurrency, 3, sec, 3), []act{
		{"two slots", 0, take, 2, 1, 0, sec, 0},
		{"the third", 100 * ms, take, 1, 0, 0, sec, 0},
		{"none left", 200 * ms, take, 1, 0, 800 * ms, 900 * ms, 0},
		{"for three both must end", 200 * ms, take, 3, 0, 900 * ms, 900 * ms, 0},
		{"a refund is none", 200 * ms, refund, 3, 0, 0, 900 * ms, 0},
		{"released", 200 * ms, release, 100 * ms, 1, 0, 800 * ms, 0},
		{"again: nothing more", 200 * ms, release, 100 * ms, 1, 0, 800 * ms, 0},
		{"one is free", 200 * ms, take, 1, 0, 0, sec, 0},
		{"a microsecond before the first expire", sec - us, take, 1, 0, us, 200*ms + us, 0},
		{"expired", sec, take, 1, 1, 0, sec, 0},
		{"released when expired", sec, release, 0, 1, 0, sec, 0},
		{"an hour back: no slot lasts longer than its life", -3600 * sec, take, 2, 1, sec, sec, 0},
		{"and expires then", sec - 3600*sec, take, 3, 0, 0, sec, 0},
	}},
	{"concurrency by name", ruleOf(ratelimit.Concurrency, 3, sec, 3), []act{
		{"two slots", 0, take, 2, 1, 0, sec, 0},
		{"three in their place", 0, take, 3, 0, 0, sec, 0},
		{"one in the place of those", 0, take, 1, 2, 0, sec, 0},
		{"two by another name", 100 * ms, take, 2, 0, 0, sec, 0},
		{"no three in their place beside the first one", 100 * ms, take, 3, 0, 900 * ms, sec, 0},
		{"that changed nothing", 200 * ms, take, 1, 0, 800 * ms, 900 * ms, 0},
		{"one in place of two", 100 * ms, take, 1, 1, 0, sec, 0},
	}},
}

func (h history) run(t *testing.T, store ratelimit.Store) {
	buckets := []ratelimit.Bucket{{Key: "k", Rule: h.rule, Tag: "tag"}}
	for _, a := range h.acts {
		var out ratelimit.Outcome
		switch now := start + a.at; a.op {
		case take:
			out = do(t, store, ratelimit.Take{Buckets: buckets, Cost: a.cost, Now: now, SlotID: slotAt(a.at)})
			if a.wait == 0 && h.rule.Algorithm == ratelimit.Concurrency && out.SlotID != slotAt(a.at) {
				t.Errorf("%s: the slot is %q", a.why, out.SlotID)
			}
		case refund:
			out = give(t, store, ratelimit.Give{Buckets: buckets, Cost: a.cost, Now: now})
		case release:
			out = give(t, store, ratelimit.Give{Buckets: buckets, SlotID: slotAt(a.cost), Now: now})
		}
		want := ratelimit.Verdict{Remaining: a.remaining, Wait: micros(a.wait), Reset: micros(a.reset), Delay: micros(a.delay)}
		if out.Allowed != (a.wait == 0) || out.Verdicts[0] != want {
			t.Errorf("%s: got allowed %t, %+v; want allowed %t, %+v", a.why, out.Allowed, out.Verdicts[0], a.wait == 0, want)
		}
	}
}

// slotAt names the slots that are taken at an instant.
func slotAt(at int64) string { return "slot" + micros(at).String() }

func give(t testing.TB, store ratelimit.Store, g ratelimit.Give) ratelimit.Outcome {
	t.Helper()
	out, err := store.Give(t.Context(), g)
	if err != nil {
		t.Errorf("give: %v", err)
		return ratelimit.Outcome{Verdicts: make([]ratelimit.Verdict, len(g.Buckets))}
	}
	return out
}
