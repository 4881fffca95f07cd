// Package ratelimittest decides whether a [ratelimit.Store] keeps its contract.
package ratelimittest

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Run checks a store. Each call of open returns an empty one that decides by the instant in the Take.
func Run(t *testing.T, open func(t *testing.T) ratelimit.Store) {
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) { table.run(t, open(t)) })
	}
	for _, history := range histories {
		t.Run(history.name, func(t *testing.T) { history.run(t, open(t)) })
	}
	t.Run("repeated requests", func(t *testing.T) { repeatedRequests(t, open(t)) })
	t.Run("a repeated request whose slot is gone", func(t *testing.T) { repeatedSlots(t, open(t)) })
	t.Run("an id belongs to one request", func(t *testing.T) { boundIDs(t, open(t)) })
	t.Run("a charge goes back into its own window", func(t *testing.T) { ownWindow(t, open(t)) })
	t.Run("a reset", func(t *testing.T) { reset(t, open(t)) })
	t.Run("all or nothing", func(t *testing.T) { allOrNothing(t, open(t)) })
	t.Run("buckets apart", func(t *testing.T) { bucketsApart(t, open(t)) })
	t.Run("a changed policy", func(t *testing.T) { changedPolicy(t, open(t)) })
	t.Run("pending charges", func(t *testing.T) { pendingCharges(t, open(t)) })
	t.Run("as the transition", func(t *testing.T) { asTheTransition(t, open(t)) })
	t.Run("race for one bucket", func(t *testing.T) { raceForOne(t, open(t)) })
	t.Run("race through two limits", func(t *testing.T) { raceThroughTwo(t, open(t)) })
}

// start is the first instant of every case.
const start = 2_000_000_000_000_000

const us = int64(1)

const (
	ms   = 1000 * us
	sec  = 1000 * ms
	day  = 24 * 3600 * sec
	year = 365 * day
)

// A step is a Take after a pause, and what it must answer.
type step struct {
	why       string
	at        int64 // microseconds after start
	cost      int64
	peek      bool
	remaining int64
	wait      int64 // microseconds, 0 = allowed
	reset     int64 // microseconds
}

type table struct {
	name  string
	rule  ratelimit.Rule
	steps []step
}

func bucketOf(count, per, burst int64) ratelimit.Rule {
	return ratelimit.Rule{Algorithm: ratelimit.TokenBucket, Count: count, Per: per, Burst: burst}
}

const peek = true

var tables = []table{
	{"ten a second", bucketOf(10, sec, 10), []step{
		{"a new bucket is full", 0, 1, peek, 10, 0, 0},
		{"and a peek took nothing", 0, 1, false, 9, 0, 100 * ms},
		{"the whole rest at once", 0, 9, false, 0, 0, sec},
		{"empty", 0, 1, false, 0, 100 * ms, sec},
		{"a refusal charged nothing, 1 µs is missing", 100*ms - us, 1, false, 0, us, 900*ms + us},
		{"a peek says the same", 100*ms - us, 1, peek, 0, us, 900*ms + us},
		{"to the microsecond", 100 * ms, 1, false, 0, 0, sec},
		{"several need several", 350 * ms, 3, false, 2, 50 * ms, 750 * ms},
		{"a smaller one passes", 350 * ms, 2, false, 0, 0, 950 * ms},
		{"full again, not fuller", year, 10, false, 0, 0, sec},
	}},
	{"three a second", bucketOf(3, sec, 2), []step{
		{"one is 333,333⅓ µs", 0, 1, false, 1, 0, 333_334 * us},
		{"two", 0, 1, false, 0, 0, 666_667 * us},
		{"a third of a microsecond too soon", 333_333 * us, 1, false, 0, us, 333_334 * us},
		{"not a moment later", 333_334 * us, 1, false, 0, 0, 666_666 * us},
		{"thirds add up", 666_667 * us, 1, false, 0, 0, 666_667 * us},
		{"to exactly three in a second", sec, 1, false, 0, 0, 666_667 * us},
		{"and none more", sec, 1, false, 0, 333_334 * us, 666_667 * us},
	}},
	{"one a year", bucketOf(1, year, 2), []step{
		{"the burst", 0, 2, false, 0, 0, 2 * year},
		{"a microsecond early", year - us, 1, false, 0, us, year + us},
		{"a year later", year, 1, false, 0, 0, 2 * year},
		{"both", 3 * year, 2, false, 0, 0, 2 * year},
	}},
	{"a million a second", bucketOf(1_000_000, sec, 1_000_000), []step{
		{"a cost of a million", 0, 1_000_000, false, 0, 0, sec},
		{"one comes back in 1 µs", us, 1, false, 0, 0, sec},
		{"a microsecond early for a million", sec, 1_000_000, false, 999_999, us, us},
		{"exactly", sec + us, 1_000_000, false, 0, 0, sec},
	}},
	{"a thousand million a second", bucketOf(1_000_000_000, sec, 1_000_000_000), []step{
		{"one is a nanosecond", 0, 1, false, 999_999_999, 0, us},
		{"1,001 of them", 0, 1_000, false, 999_998_999, 0, 2 * us},
		{"1,000 came back", us, 1, peek, 999_999_999, 0, us},
		{"the rest", us, 999_999_999, false, 0, 0, sec},
		{"1,000 in a microsecond", 2 * us, 1_001, false, 1_000, us, sec - us},
	}},
	{"a rate of no round numbers", bucketOf(999_999_937, 366*day, 1_000_000_000), []step{
		{"one is 31,622.4 µs", 0, 1, false, 999_999_999, 0, 31_623 * us},
		{"all the rest", 0, 999_999_999, false, 0, 0, 366*day + 1_992_212*us},
		{"half a burst", 183 * day, 499_999_969, false, 499_999_968, 15_812 * us, 183*day + 1_992_212*us},
	}},
	{"a clock that steps back", bucketOf(10, sec, 10), []step{
		{"eight used", 0, 8, false, 2, 0, 800 * ms},
		{"a second back: no time has passed", -sec, 1, false, 1, 0, sec + 900*ms},
		{"what is missing comes after the clock has caught up", -sec, 2, false, 1, sec + 100*ms, sec + 900*ms},
		{"too soon", 100*ms - us, 2, false, 1, us, 800*ms + us},
		{"the promised instant", 100 * ms, 2, false, 0, 0, sec},
		{"an hour back: the clock was set, the debt stays", 100*ms - 3600*sec, 1, false, 0, 100 * ms, sec},
		{"and is paid off from there", 200*ms - 3600*sec, 1, false, 0, 0, sec},
	}},
}

func (table table) run(t *testing.T, store ratelimit.Store) {
	for _, s := range table.steps {
		take := ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: "k", Rule: table.rule}}, Cost: s.cost, Now: start + s.at, Peek: s.peek}
		out := do(t, store, take)
		want := ratelimit.Verdict{Remaining: s.remaining, Wait: micros(s.wait), Reset: micros(s.reset)}
		if out.Allowed != (s.wait == 0) || out.Verdicts[0] != want {
			t.Errorf("%s: got allowed %t, %+v; want allowed %t, %+v", s.why, out.Allowed, out.Verdicts[0], s.wait == 0, want)
		}
	}
}

func allOrNothing(t *testing.T, store ratelimit.Store) {
	buckets := []ratelimit.Bucket{
		{Key: "route", Rule: bucketOf(10, sec, 10)},
		{Key: "tenant", Rule: bucketOf(1, sec, 3)},
		{Key: "user", Rule: bucketOf(1, 10*sec, 4)},
	}
	take := ratelimit.Take{Buckets: buckets, Cost: 3, Now: start}
	if out := do(t, store, take); !out.Allowed {
		t.Fatalf("the first is refused: %+v", out)
	}
	want := []ratelimit.Verdict{
		{Remaining: 7, Reset: 300 * time.Millisecond},
		{Remaining: 0, Reset: 3 * time.Second, Wait: 3 * time.Second},
		{Remaining: 1, Reset: 30 * time.Second, Wait: 20 * time.Second},
	}
	for range 3 {
		out := do(t, store, take)
		for i, v := range out.Verdicts {
			if v != want[i] {
				t.Errorf("refused, limit %d: got %+v, want %+v", i, v, want[i])
			}
		}
		if out.Allowed {
			t.Error("two of three limits refuse, the request passes")
		}
	}
}

func bucketsApart(t *testing.T, store ratelimit.Store) {
	for i := range 3 {
		take := ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: strconv.Itoa(i), Rule: bucketOf(1, day, 1)}}, Cost: 1, Now: start}
		if !do(t, store, take).Allowed {
			t.Errorf("bucket %d is charged with what another one took", i)
		}
		if do(t, store, take).Allowed {
			t.Errorf("bucket %d lets two pass", i)
		}
	}
}

func changedPolicy(t *testing.T, store ratelimit.Store) {
	for _, s := range []struct {
		why       string
		rule      ratelimit.Rule
		cost      int64
		allowed   bool
		remaining int64
		wait      time.Duration
	}{
		{"8 of 10 used", bucketOf(10, sec, 10), 8, true, 2, 0},
		{"burst 10 to 20 leaves 12", bucketOf(10, sec, 20), 13, false, 12, 100 * time.Millisecond},
		{"half the rate: as many used, each for longer", bucketOf(5, sec, 20), 13, false, 12, 200 * time.Millisecond},
		{"or by a longer period", bucketOf(10, 5*sec, 20), 13, false, 12, 500 * time.Millisecond},
		{"a burst below what is used: nothing is left, and no more than that is missing", bucketOf(10, sec, 5), 1, false, 0, 100 * time.Millisecond},
		{"a refusal forgets nothing of what was used", bucketOf(10, sec, 20), 12, true, 0, 0},
		{"the same rate in other words", bucketOf(600, 60*sec, 20), 1, false, 0, 100 * time.Millisecond},
		{"another rate and a charge under it", bucketOf(3, sec, 21), 1, true, 0, 0},
		{"21 used", bucketOf(10, sec, 30), 9, true, 0, 0},
		{"30 used, and a hundredth of the rate and a tenth of the burst", bucketOf(1, 10*sec, 3), 1, false, 0, 10 * time.Second},
		{"of all: as long as the policy says", bucketOf(1, 10*sec, 3), 3, false, 0, 30 * time.Second},
	} {
		take := ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: "k", Rule: s.rule}}, Cost: s.cost, Now: start}
		out := do(t, store, take)
		if v := out.Verdicts[0]; out.Allowed != s.allowed || v.Remaining != s.remaining || v.Wait != s.wait {
			t.Errorf("%s: got allowed %t, %+v", s.why, out.Allowed, v)
		}
	}
	do(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: "burst", Rule: bucketOf(10, sec, 10)}}, Cost: 10, Now: start})
	for _, later := range []struct {
		key     string
		rule    ratelimit.Rule
		at      int64
		allowed bool
	}{
		{"k", bucketOf(1, 10*sec, 3), 5 * sec, false},
		{"k", bucketOf(1, 10*sec, 3), 10*sec - us, false},
		{"k", bucketOf(1, 10*sec, 3), 10 * sec, true},
		{"burst", bucketOf(10, sec, 2), 100*ms - us, false},
		{"burst", bucketOf(10, sec, 2), 100 * ms, true},
	} {
		take := ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: later.key, Rule: later.rule}}, Cost: 1, Now: start + later.at}
		if out := do(t, store, take); out.Allowed != later.allowed {
			t.Errorf("%s, %v after the change: got %+v", later.key, micros(later.at), out)
		}
	}
}

// raceForOne sends 250 checks at a bucket of 100 within one instant.
func raceForOne(t *testing.T, store ratelimit.Store) {
	take := ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: "k", Rule: bucketOf(1, year, 100)}}, Cost: 1, Now: start}
	var allowed atomic.Int64
	atOnce(250, func(int) {
		if do(t, store, take).Allowed {
			allowed.Add(1)
		}
	})
	if n := allowed.Load(); n != 100 {
		t.Errorf("%d passed, want exactly 100", n)
	}
}

// raceThroughTwo sends 10 users' checks through one shared limit of 60 and their
// own of 10 within one instant: a refused one that left a charge anywhere would
// keep the shared limit from being used up, or a user's.
func raceThroughTwo(t *testing.T, store ratelimit.Store) {
	shared := ratelimit.Bucket{Key: "shared", Rule: bucketOf(1, year, 60)}
	user := func(i int) ratelimit.Bucket {
		return ratelimit.Bucket{Key: "user" + strconv.Itoa(i), Rule: bucketOf(1, year, 10)}
	}
	var passed [10]atomic.Int64
	atOnce(200, func(i int) {
		i %= len(passed)
		if do(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{user(i), shared}, Cost: 1, Now: start}).Allowed {
			passed[i].Add(1)
		}
	})
	total := int64(0)
	for i := range passed {
		n := passed[i].Load()
		total += n
		left := do(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{user(i)}, Cost: 1, Now: start, Peek: true}).Verdicts[0].Remaining
		if n+left != 10 {
			t.Errorf("user %d: %d passed and %d are left of 10", i, n, left)
		}
	}
	if total != 60 {
		t.Errorf("%d passed, want exactly 60", total)
	}
}

func atOnce(n int, do func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			do(i)
		})
	}
	close(begin)
	wg.Wait()
}

func do(t testing.TB, store ratelimit.Store, take ratelimit.Take) ratelimit.Outcome {
	t.Helper()
	out, err := store.Take(t.Context(), take)
	if err != nil {
		t.Errorf("take: %v", err)
		return ratelimit.Outcome{Verdicts: make([]ratelimit.Verdict, len(take.Buckets))}
	}
	if out.Source == "" {
		t.Error("the outcome does not name its source")
	}
	return out
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
