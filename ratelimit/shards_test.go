package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func sharded(shards int, l ratelimit.Limit) ratelimit.Limit {
	l.Shards = shards
	return l
}

// A witness is a store that says which buckets it is asked about.
type witness struct {
	ratelimit.Store
	met []ratelimit.Bucket
}

func (w *witness) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	w.met = t.Buckets
	return w.Store.Take(ctx, t)
}

func (w *witness) Give(ctx context.Context, g ratelimit.Give) (ratelimit.Outcome, error) {
	w.met = g.Buckets
	return w.Store.Give(ctx, g)
}

func (w *witness) Forget(ctx context.Context, buckets []ratelimit.Bucket) error {
	w.met = buckets
	return w.Store.Forget(ctx, buckets)
}

// counters are the parts of keys that say which bucket of a limit they are of.
func (w *witness) counters() (all []string) {
	for _, b := range w.met {
		parts, ok := keytype.RateBucket.Split(b.Key)
		if !ok {
			return []string{"no key: " + b.Key}
		}
		all = append(all, parts[2]+" "+parts[3])
	}
	return all
}

func newSharded(t *testing.T, policies ...ratelimit.Policy) (*ratelimit.Limiter, *witness) {
	t.Helper()
	w := &witness{Store: ratelimit.NewLocal(openMemory(t))}
	p := newPair(t, w, policies...)
	return p.other, w
}

// What has something beside the limit's key meets the same bucket again, whatever it asks.
func TestShardOfDescriptors(t *testing.T) {
	limits, w := newSharded(t, policy(limit("user", 1, time.Hour, 9, "tenant", "user"), sharded(16, limit("tenant", 16, time.Hour, 160, "tenant"))))
	shards := map[string]string{}
	for i := range 200 {
		req := of(1, strconv.Itoa(i), "")
		if _, err := limits.Check(t.Context(), "t", req); err != nil {
			t.Fatal(err)
		}
		first := w.counters()
		if len(first) != 2 || first[0] != "user debt" || !strings.HasPrefix(first[1], "tenant debt/") {
			t.Fatalf("got %q", first)
		}
		shards[first[1]] = w.met[1].Tag
		for what, ask := range map[string]func() error{
			"check":  func() error { _, err := limits.Check(t.Context(), "t", req); return err },
			"peek":   func() error { _, err := limits.Peek(t.Context(), "t", req); return err },
			"refund": func() error { _, err := limits.Refund(t.Context(), "t", req); return err },
			"an id": func() error {
				_, err := limits.Check(t.Context(), "t", of(1, strconv.Itoa(i), "id"+strconv.Itoa(i)))
				return err
			},
			"refund of parts": func() error {
				_, err := limits.RefundParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "tenant", "x", "user", strconv.Itoa(i))})
				return err
			},
			"parts": func() error {
				_, _, err := limits.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "tenant", "x"), part(1, "tenant", "x", "user", strconv.Itoa(i))})
				return err
			},
		} {
			if err := ask(); err != nil || !slices.Equal(w.counters(), first) {
				t.Errorf("user %d, %s: got %q, before %q, %v", i, what, w.counters(), first, err)
			}
		}
	}
	if len(shards) != 16 || len(slices.Compact(slices.Sorted(maps.Values(shards)))) != 16 {
		t.Errorf("200 users meet %d buckets", len(shards))
	}
	for counter, tag := range shards {
		if _, k, n := ratelimit.ShardOf(tag); n != 16 || "tenant debt/"+strconv.Itoa(k) != counter {
			t.Errorf("%q is %d of %d by its tag", counter, k, n)
		}
	}
}

// What has nothing beside it goes by its id, and without one takes turns.
func TestShardOfNothingElse(t *testing.T) {
	limits, w := newSharded(t, policy(sharded(4, limit("a", 100, time.Hour, 400, "tenant")), sharded(8, limit("b", 100, time.Hour, 400, "tenant"))))
	ask := func(id string) ratelimit.Request {
		return ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": "x"}, RequestID: id}
	}
	seen := map[string]int{}
	for range 80 {
		if _, err := limits.Peek(t.Context(), "t", ask("")); err != nil {
			t.Fatal(err)
		}
		looked := w.counters()
		if _, err := limits.Check(t.Context(), "t", ask("")); err != nil || !slices.Equal(looked, w.counters()) {
			t.Fatalf("a peek looks at %q, and the check after it meets %q, %v", looked, w.counters(), err)
		}
		for _, counter := range w.counters() {
			seen[counter]++
		}
	}
	if len(seen) != 12 || seen["a debt/0"] != 20 || seen["b debt/7"] != 10 {
		t.Errorf("80 checks meet %v", seen)
	}
	ids := map[string]bool{}
	for i := range 100 {
		id := "id" + strconv.Itoa(i)
		if _, err := limits.Check(t.Context(), "t", ask(id)); err != nil {
			t.Fatal(err)
		}
		first := w.counters()
		ids[first[1]] = true
		d, err := limits.Check(t.Context(), "t", ask(id))
		if err != nil || !slices.Equal(first, w.counters()) || !d.Allowed {
			t.Errorf("retry of %s: got %q, before %q, %+v, %v", id, w.counters(), first, d, err)
		}
		if _, err := limits.Refund(t.Context(), "t", ask(id)); err != nil || !slices.Equal(first, w.counters()) {
			t.Errorf("refund of %s: got %q, before %q, %v", id, w.counters(), first, err)
		}
	}
	if len(ids) != 8 {
		t.Errorf("100 ids meet %v", ids)
	}
}

// A retry takes nothing, a refund fills what was charged, and a reset fills everything.
func TestShardsGiveBack(t *testing.T) {
	limits, w := newSharded(t, policy(sharded(4, limit("a", 4, 24*time.Hour, 16, "tenant"))))
	ask := func(id string) ratelimit.Request {
		return ratelimit.Request{Policy: "p", Cost: 4, Descriptors: map[string]string{"tenant": "x"}, RequestID: id}
	}
	for i := range 2 {
		if d, err := limits.Check(t.Context(), "t", ask("one")); err != nil || !d.Allowed || d.Limits[0].Limit != 16 || d.Limits[0].Remaining != 0 {
			t.Fatalf("call %d: got %+v, %v", i+1, d, err)
		}
	}
	if states, err := limits.Refund(t.Context(), "t", ask("one")); err != nil || states[0].Remaining != 16 {
		t.Errorf("got %+v, %v", states, err)
	}
	passed := 0
	for range 12 {
		d, err := limits.Check(t.Context(), "t", ask(""))
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			passed++
		}
	}
	if passed != 4 {
		t.Errorf("%d of 4 passed", passed)
	}
	if err := limits.Reset(t.Context(), "t", "p", ask("").Descriptors); err != nil || len(w.met) != 4 {
		t.Fatalf("reset of %q: %v", w.counters(), err)
	}
	for i := range 4 {
		if d, err := limits.Check(t.Context(), "t", ask("")); err != nil || !d.Allowed {
			t.Errorf("call %d after a reset: got %+v, %v", i+1, d, err)
		}
	}
}

// Who gives a part of each check back, or all of it, meets each bucket as often as any other,
// and is refused nothing that the limit has.
func TestShardsTakeTurnsWhateverGoesBack(t *testing.T) {
	for _, refund := range []int64{2, 4} {
		limits, w := newSharded(t, policy(sharded(4, limit("a", 160, 24*time.Hour, 160, "tenant"))))
		ask := func(cost int64) ratelimit.Request {
			return ratelimit.Request{Policy: "p", Cost: cost, Descriptors: map[string]string{"tenant": "x"}}
		}
		met := map[string]int{}
		for i := range 72 { // which leave 16 of 160 units
			d, err := limits.Check(t.Context(), "t", ask(4))
			if err != nil || !d.Allowed {
				t.Fatalf("check %d of 4 units, of which %d go back: got %+v, %v", i+1, refund, d, err)
			}
			checked := w.counters()
			met[checked[0]]++
			if _, err := limits.Refund(t.Context(), "t", ask(refund)); err != nil || !slices.Equal(checked, w.counters()) {
				t.Fatalf("a refund meets %q, and the check before it %q, %v", w.counters(), checked, err)
			}
		}
		if len(met) != 4 || slices.Min(slices.Collect(maps.Values(met))) != 18 {
			t.Errorf("72 checks meet %v", met)
		}
	}
}

// A refund that says nothing of which bucket was charged fills those charged last. One of an id
// of its own fills any, and loses what that does not lack; nor does one of several checks reach
// more than one bucket.
func TestShardsAndRefundsWithoutAClue(t *testing.T) {
	for why, c := range map[string]struct {
		checked, refunded string
		checks            int // of 4 units
		refunds           int
		refund, passes    int64
	}{
		"by the check's id":            {"id", "id", 1, 1, 4, 4},
		"by turns":                     {"", "", 1, 1, 4, 4},
		"by turns, of several checks":  {"", "", 3, 3, 4, 4},
		"by an id of its own":          {"id", "id8", 1, 1, 4, 3}, // of another bucket
		"of two checks at once":        {"", "", 4, 1, 8, 1},
		"of all that there is at once": {"", "", 4, 1, 16, 1},
	} {
		limits, _ := newSharded(t, policy(sharded(4, limit("a", 4, 24*time.Hour, 16, "tenant"))))
		ask := func(cost int64, id string) ratelimit.Request {
			return ratelimit.Request{Policy: "p", Cost: cost, Descriptors: map[string]string{"tenant": "x"}, RequestID: id}
		}
		for range c.checks {
			if d, err := limits.Check(t.Context(), "t", ask(4, c.checked)); err != nil || !d.Allowed {
				t.Fatalf("%s: got %+v, %v", why, d, err)
			}
		}
		for range c.refunds {
			if states, err := limits.Refund(t.Context(), "t", ask(c.refund, c.refunded)); err != nil || states[0].Remaining != 16 {
				t.Errorf("%s: got %+v, %v", why, states, err)
			}
		}
		passed := int64(0)
		for range 8 {
			d, err := limits.Check(t.Context(), "t", ask(4, ""))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				passed++
			}
		}
		if passed != c.passes {
			t.Errorf("%s: then %d checks passed, want %d", why, passed, c.passes)
		}
	}
}

// What is larger than a share never passes, and where nobody is refused it takes nothing.
func TestShardsBoundTheCost(t *testing.T) {
	one := policy(sharded(16, limit("a", 16, time.Hour, 97, "user")))
	limits, _ := newSharded(t, one)
	_, err := limits.Check(t.Context(), "t", ask(7)) // one of the buckets holds it
	if cost, ok := errors.AsType[*ratelimit.CostError](err); !ok || cost.Capacity != 6 {
		t.Errorf("got %v", err)
	}
	_, _, err = limits.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(7, "user", "u")})
	if cost, ok := errors.AsType[*ratelimit.CostError](err); !ok || cost.Capacity != 6 {
		t.Errorf("got %v", err)
	}
	one.Stage, one.Limits[0].Burst = ratelimit.Warn, 96
	limits, _ = newSharded(t, one)
	if d, err := limits.Check(t.Context(), "t", ask(9)); err != nil || !d.Allowed || d.OverBy != 50 || d.Limits[0].Remaining != 96 {
		t.Errorf("got %+v, %v", d, err)
	}
	limits, _ = newSharded(t, policy(limit("b", 1, time.Hour, 50), sharded(16, limit("a", 16, time.Hour, 96))))
	_, err = limits.Check(t.Context(), "t", ask(7))
	if cost, ok := errors.AsType[*ratelimit.CostError](err); !ok || cost.LimitName != "a" {
		t.Errorf("a limit of 50 beside shares of 6: %v", err)
	}
	few := part(1, "user", "u")
	few.Rate = &ratelimit.Rate{Count: 2, Per: 366 * 24 * time.Hour} // two units make two buckets, and these would be too slow
	for i := range 3 {
		if d, _, err := limits.CheckParts(t.Context(), "t", "p", []ratelimit.Part{few}); err != nil || (d.Limiting == "") != (i < 2) {
			t.Errorf("call %d at two a year: %+v, %v", i+1, d, err)
		}
	}
}

// The same of a canary's identities are refused, however their limit is split.
func TestShardsLeaveTheCanaryAlone(t *testing.T) {
	for user := range 50 {
		var refuses []bool
		for _, shards := range []int{0, 4} {
			one := policy(sharded(shards, limit("a", 1, time.Hour, 4, "user")))
			one.Stage, one.Percent = ratelimit.Canary, 50
			limits, _ := newSharded(t, one)
			req := ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": strconv.Itoa(user)}, Cost: 1}
			all := true
			for range 5 {
				d, err := limits.Check(t.Context(), "t", req)
				if err != nil {
					t.Fatal(err)
				}
				all = all && d.Allowed
			}
			refuses = append(refuses, !all)
		}
		if refuses[0] != refuses[1] {
			t.Errorf("user %d: %v", user, refuses)
		}
	}
}

// While the store fails a node allows what the whole limit would.
func TestShardsAndTheLocalPosture(t *testing.T) {
	p := newPatient()
	p.falls(&ratelimit.FaultError{Reason: "readonly", Err: keytype.ErrUnavailable}, 0)
	one := policy(sharded(4, limit("a", 1, time.Hour, 12, "user")))
	one.Stage = ratelimit.Warn
	limits, err := ratelimit.New(p, []ratelimit.Policy{one}, ratelimit.Options{Fallback: inMemory()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 13 {
		d, err := limits.Check(t.Context(), "t", ask(1))
		if err != nil || d.Source != ratelimit.SourceLocal || (d.OverBy == 0) != (i < 12) || i == 12 && d.OverBy != 9 || d.Limits[0].Remaining != max(0, 11-int64(i)) {
			t.Errorf("call %d: got %+v, %v", i+1, d, err)
		}
	}
}

func TestShardsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(l *ratelimit.Limit){
		"":                              func(*ratelimit.Limit) {},
		"shards 1 must be":              func(l *ratelimit.Limit) { l.Shards = 1 },
		"shards 65 must be":             func(l *ratelimit.Limit) { l.Shards = 65 },
		"shards -2 must be":             func(l *ratelimit.Limit) { l.Shards = -2 },
		"capacity of 15: each needs":    func(l *ratelimit.Limit) { l.Burst = 15 },
		"shards are not for leaky":      func(l *ratelimit.Limit) { l.Algorithm, l.Burst, l.Queue = ratelimit.LeakyBucket, 0, 99 },
		"shards are not for concurrenc": func(l *ratelimit.Limit) { *l = sharded(16, numbered("l", ratelimit.Concurrency, slots(99), "user")) },
		"more than 366 days":            func(l *ratelimit.Limit) { l.Rate = ratelimit.Rate{Count: 1, Per: 23 * 24 * time.Hour} },
		"or 36,600 for the burst":       func(l *ratelimit.Limit) { l.Rate, l.Burst = ratelimit.Rate{Count: 1, Per: 10 * 24 * time.Hour}, 3650 },
		`override "1": shards 16 are`: func(l *ratelimit.Limit) {
			l.Overrides = []ratelimit.Override{{Match: map[string]string{"user": "u"}, Numbers: ratelimit.Numbers{Burst: 15}}}
		},
		"shards 16 are more than the limit's capacity of 9": func(l *ratelimit.Limit) {
			l.Algorithm, l.Burst, l.Rate.Count = ratelimit.FixedWindow, 0, 9
		},
	} {
		l := sharded(16, limit("l", 100, time.Second, 100))
		change(&l)
		one := policy(l)
		one.Posture = ratelimit.FailOpen
		err := ratelimit.CheckPolicies([]ratelimit.Policy{one})
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	leased := policy(sharded(16, limit("l", 100, time.Second, 100)))
	leased.Mode, leased.MaxOvershoot = ratelimit.Leased, 100
	if err := ratelimit.CheckPolicies([]ratelimit.Policy{leased}); err == nil || !strings.Contains(err.Error(), "which has shards") {
		t.Errorf("got %v", err)
	}
}

// Whatever the requests meet, all shards together let no more pass than the limit.
func TestShardsNeverExceedTheLimit(t *testing.T) {
	refused := 0
	rapid.Check(t, func(r *rapid.T) {
		count, per := rapid.Int64Range(8, 40).Draw(r, "count"), rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second}).Draw(r, "per")
		l := ratelimit.Limit{Name: "l", Key: []string{"tenant"}, Shards: rapid.IntRange(2, 8).Draw(r, "shards"), Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: count, Per: per}}}
		l.Algorithm = rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowLog}).Draw(r, "algorithm")
		if l.Algorithm == ratelimit.TokenBucket {
			l.Burst = rapid.Int64Range(8, 40).Draw(r, "burst")
		}
		p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(l))
		p.now = p.now.Truncate(time.Second)
		type pass struct {
			at    time.Time
			units int64
		}
		var passed []pass
		for i := range rapid.IntRange(50, 200).Draw(r, "calls") {
			p.now = p.now.Add(rapid.SampledFrom([]time.Duration{0, 0, 0, time.Microsecond, time.Millisecond, 30 * time.Millisecond}).Draw(r, "pause"))
			req := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": "x"}}
			if rapid.Bool().Draw(r, "has a user") {
				req.Descriptors["user"] = strconv.Itoa(i % 50)
			}
			d, err := p.node.Check(t.Context(), "t", req)
			if err != nil {
				r.Fatal(err)
			}
			if !d.Allowed {
				refused++
				continue
			}
			passed = append(passed, pass{p.now, 1})
		}
		for i, from := range passed {
			units := int64(0)
			for _, later := range passed[i:] {
				units += later.units
				elapsed := later.at.Sub(from.at)
				most := count
				switch {
				case l.Algorithm == ratelimit.TokenBucket:
					most = l.Burst + int64(elapsed)*count/int64(per)
				case l.Algorithm == ratelimit.FixedWindow && !from.at.Truncate(per).Equal(later.at.Truncate(per)), elapsed >= per:
					continue // in another window
				}
				if units > most {
					r.Fatalf("%d units in %v, want at most %d", units, elapsed, most)
				}
			}
		}
	})
	if refused < 100 {
		t.Errorf("only %d were refused", refused)
	}
}

// How many checks are refused early at 90 % of the limit: of some that come at random, of
// users of whom one asks often or all ask alike, or of nobody in particular, beginning
// with full buckets.
func TestShardsAtNineTenths(t *testing.T) {
	t.Parallel()
	const rate = 1000
	checks := 20_000
	if depth, _ := os.LookupEnv("COORD_TEST_DEPTH"); depth == "proof" {
		checks = 200_000
	}
	for _, c := range []struct {
		name  string
		burst int64
		user  func(r *rand.Rand) string
	}{
		{"in turns, burst of 1 s", rate, nil},
		{"in turns, burst of 0.1 s", rate / 10, nil},
		{"by 10,000 users alike, burst of 1 s", rate, func(r *rand.Rand) string { return strconv.Itoa(r.IntN(10_000)) }},
		{"by 10,000 users alike, burst of 10 s", 10 * rate, func(r *rand.Rand) string { return strconv.Itoa(r.IntN(10_000)) }},
		{"by users of whom the first sends 2 %, burst of 1 s", rate, func(r *rand.Rand) string {
			if r.IntN(50) == 0 {
				return "first"
			}
			return strconv.Itoa(r.IntN(10_000))
		}},
	} {
		var shares []string
		for _, shards := range []int{0, 4, 16, 64} {
			random := rand.New(rand.NewPCG(1, 2))
			p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(sharded(shards, limit("tenant", rate, time.Second, c.burst, "tenant"))))
			begin, passed, refused := p.now, int64(0), 0
			for range checks {
				p.now = p.now.Add(time.Duration(-math.Log(1-random.Float64()) * float64(time.Second) / (0.9 * rate)))
				req := ratelimit.Request{Policy: "p", Cost: 1, Descriptors: map[string]string{"tenant": "x"}}
				if c.user != nil {
					req.Descriptors["user"] = c.user(random)
				}
				d, err := p.other.Check(t.Context(), "t", req)
				if err != nil {
					t.Fatal(err)
				}
				if passed++; !d.Allowed {
					passed, refused = passed-1, refused+1
				}
			}
			if most := c.burst + int64(p.now.Sub(begin).Seconds()*rate) + 1; passed > most {
				t.Errorf("%s, %d shards: %d passed of %d", c.name, shards, passed, most)
			}
			shares = append(shares, fmt.Sprintf("%d: %.2f %%", max(1, shards), 100*float64(refused)/float64(checks)))
		}
		t.Logf("%s: %s", c.name, strings.Join(shares, ", "))
	}
}
