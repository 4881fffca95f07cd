package ratelimit

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A vessel is one bucket, and what a store has of it.
type vessel struct {
	bucket Bucket
	packed []byte
}

func (v *vessel) keep(states []State) {
	if states[0].Packed != nil {
		v.packed = states[0].Packed
	}
}

func (v *vessel) take(t require, cost, now int64, id string, pending bool) Verdict {
	take := Take{Buckets: []Bucket{v.bucket}, Cost: cost, Now: now, SlotID: id, Pending: pending}
	next, out, err := take.Decide(Stored{Packed: [][]byte{v.packed}})
	if err != nil {
		t.Fatalf("%q: %v", v.packed, err)
	}
	if out.Allowed {
		v.keep(next.States)
	}
	return out.Verdicts[0]
}

func (v *vessel) end(t require, c open, now int64, how End) {
	give := Give{Buckets: []Bucket{v.bucket}, Cost: c.cost, Now: now, SlotID: c.id, Charged: c.at, Ends: how}
	next, _, err := give.Decide(Stored{Packed: [][]byte{v.packed}})
	if err != nil {
		t.Fatalf("%q: %v", v.packed, err)
	}
	v.keep(next.States)
}

// level is what the bucket says at an instant: the same for all that it may be asked.
func (v *vessel) level(t require, now int64) string {
	state, verdict, err := v.bucket.Rule.Next(v.packed, now, v.bucket.Rule.Burst, "all")
	if err != nil {
		t.Fatalf("%q: %v", v.packed, err)
	}
	if v.bucket.Rule.Algorithm == FixedWindow {
		return fmt.Sprintf("%+v", verdict) // it keeps the last window, and never asks for it
	}
	return fmt.Sprintf("%+v %s", verdict, state.Packed)
}

type require interface {
	Fatalf(format string, args ...any)
}

// An open charge is one that is pending.
type open struct {
	at, cost int64
	id       string
}

// 500 charges that overlap and go back, each after 50 ms, take nothing from the bucket:
// its level is that of a twin that never saw them, to the microsecond, also while
// others use both.
func TestChargesThatGoBackTakeNothing(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, GCRA, LeakyBucket} {
		rule := Rule{Algorithm: a, Count: 100, Per: 1_000_000, Burst: 500}
		shared, twin := vessel{bucket: Bucket{Rule: rule}}, vessel{bucket: Bucket{Rule: rule}}
		start := int64(2_000_000_000_000_000)
		for i := range int64(500 + 9) {
			now := start + i*6000
			if i < 500 && shared.take(t, 1, now, "", true).Wait > 0 {
				t.Fatalf("%s: charge %d is refused", a, i)
			}
			if i%7 == 0 {
				shared.take(t, 3, now+1, "", false)
				twin.take(t, 3, now+1, "", false)
			}
			if charged := i - 9; charged >= 0 {
				shared.end(t, open{at: start + charged*6000, cost: 1}, now+2, Undone)
			}
		}
		now := start + 508*6000 + 2
		if got, want := shared.level(t, now), twin.level(t, now); got != want {
			t.Errorf("%s: got %s, want %s", a, got, want)
		}
		if shared.packed[0] != formatDebt {
			t.Errorf("%s: nothing is pending, and it keeps %q", a, shared.packed)
		}
	}
}

// Whatever is taken, settled, given back or forgotten, and in which order: no more passes
// than the limit, and the bucket is as full as one that is charged when a charge is
// known to stay, and never where it goes back.
func TestPendingChargesKeepTheBound(t *testing.T) {
	allowed, refused, lapsed := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		rule := genRule(r)
		window := rule.Window().Microseconds()
		bucket, twin := vessel{bucket: Bucket{Rule: rule}}, vessel{bucket: Bucket{Rule: rule}}
		var passed []admitted
		var pending []open
		exact := true
		now := int64(2_000_000_000_000_000)
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			pause := rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, max(1, window/rule.Burst*2)), rapid.Int64Range(0, min(window, pendingAge)), rapid.Int64Range(0, pendingAge/2))
			if rapid.IntRange(0, 9).Draw(r, "a long pause") == 0 {
				pause = rapid.Int64Range(0, 3*pendingAge)
			}
			now += pause.Draw(r, "pause")
			for _, c := range pending {
				if ageOf(now)-ageOf(c.at) > 1 {
					lapsed++
					exact = false
				}
			}
			if len(pending) > 0 && rapid.Bool().Draw(r, "ends one") {
				i := rapid.IntRange(0, len(pending)-1).Draw(r, "which")
				c := pending[i]
				pending = slices.Delete(pending, i, i+1)
				how := rapid.SampledFrom([]End{Settled, Undone}).Draw(r, "how")
				bucket.end(r, c, now, how)
				if how == Undone {
					i := slices.Index(passed, admitted{c.at, c.cost})
					passed = slices.Delete(passed, i, i+1)
				} else if exact && twin.take(r, c.cost, now, "", false).Wait > 0 {
					r.Fatalf("a charge that stays has no room")
				}
				continue
			}
			cost := rapid.OneOf(rapid.Int64Range(1, min(3, rule.Burst)), rapid.Int64Range(1, rule.Burst)).Draw(r, "cost")
			later := rapid.Bool().Draw(r, "pending")
			if bucket.take(r, cost, now, "", later).Wait > 0 {
				refused++
				continue
			}
			allowed++
			if !fits(rule, passed, now, cost) {
				r.Fatalf("at %d, cost %d passes; passed %v", now, cost, passed)
			}
			passed = append(passed, admitted{now, cost})
			if later {
				pending = append(pending, open{at: now, cost: cost})
			} else if exact {
				twin.take(r, cost, now, "", false)
			}
		}
		if exact {
			for _, c := range pending {
				bucket.end(r, c, now, Undone)
			}
			if got, want := bucket.level(r, now), twin.level(r, now); got != want {
				r.Fatalf("got %s, want %s", got, want)
			}
		}
	})
	t.Logf("%d allowed, %d refused, %d met after their memory", allowed, refused, lapsed)
	if allowed == 0 || refused == 0 || lapsed == 0 {
		t.Errorf("%d allowed, %d refused, %d lapsed: one side was never tested", allowed, refused, lapsed)
	}
}

// What goes back leaves any limit as one that never saw it: also across the change of a
// window, and where others came between.
func TestWhatGoesBackWasNeverThere(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			ended := 0
			rapid.Check(t, func(r *rapid.T) {
				rule := genRule(r)
				if !a.refills() {
					rule = genWindow(r, a)
				}
				rule.Algorithm = a
				one, twin := vessel{bucket: Bucket{Rule: rule}}, vessel{bucket: Bucket{Rule: rule}}
				var pending []open
				now := int64(2_000_000_000_000_000)
				for i := range rapid.IntRange(1, 25).Draw(r, "steps") {
					now += rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, min(rule.Per/2, pendingAge/25)), rapid.Int64Range(0, pendingAge/25)).Draw(r, "pause")
					if len(pending) > 0 && rapid.Bool().Draw(r, "one goes back") {
						i := rapid.IntRange(0, len(pending)-1).Draw(r, "which")
						one.end(r, pending[i], now, Undone)
						pending, ended = slices.Delete(pending, i, i+1), ended+1
						continue
					}
					c := open{now, rapid.Int64Range(1, max(1, rule.Burst/2)).Draw(r, "cost"), fmt.Sprint(i)}
					later := rapid.Bool().Draw(r, "pending")
					if one.take(r, c.cost, now, c.id, later).Wait > 0 {
						continue
					}
					if later {
						pending = append(pending, c)
					} else {
						twin.take(r, c.cost, now, c.id, false)
					}
				}
				for _, c := range pending {
					one.end(r, c, now, Undone)
				}
				if got, want := one.level(r, now), twin.level(r, now); got != want {
					r.Fatalf("got %s, want %s", got, want)
				}
			})
			if ended == 0 {
				t.Error("nothing went back")
			}
		})
	}
}

// A charge that nobody ends counts from 5 to 10 seconds on, and its end then gives back
// no more than time cannot have paid off.
func TestPendingLapses(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 1, Per: 1_000_000, Burst: 20}
	start := 2_000_000_000_000_000 / pendingAge * pendingAge
	v := vessel{bucket: Bucket{Rule: rule}}
	remaining := func(why string, after, want int64) {
		t.Helper()
		_, verdict, err := rule.Next(v.packed, start+after, 0, "")
		if err != nil || verdict.Remaining != want {
			t.Errorf("%s: %d left of 20, want %d; %v", why, verdict.Remaining, want, err)
		}
	}
	lost := open{at: start + pendingAge - 1, cost: 12}
	v.take(t, lost.cost, lost.at, "", true)
	kept := v.packed
	remaining("taken", pendingAge-1, 8)
	remaining("no time pays it off", 2*pendingAge-1, 8)
	remaining("then it does", 2*pendingAge+3_000_000, 11)
	remaining("and at last it is full", 2*pendingAge+12_000_000, 20)
	v.end(t, lost, start+2*pendingAge, Undone)
	if remaining("it goes back late", 2*pendingAge, 14); v.packed[0] != formatDebt { // 5 s after the charge
		t.Errorf("it has lapsed, and the bucket keeps %q", v.packed)
	}
	v.packed = kept
	v.end(t, lost, start+2*pendingAge-1, Settled)
	remaining("it stays just in time", 2*pendingAge-1, 8)
	remaining("and is paid off from then on", 2*pendingAge+1_000_000-1, 9)
	v.packed = kept
	v.end(t, lost, start+2*pendingAge, Settled)
	remaining("it stays too late: as if nobody had said so", 2*pendingAge+1_000_000, 9)
}

// A refund takes back what was charged also before that is settled, and the end of the
// charge then does nothing more.
func TestRefundOfAPendingCharge(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 1, Per: 1_000_000, Burst: 20}
	now := int64(2_000_000_000_000_000)
	v := vessel{bucket: Bucket{Rule: rule}}
	v.take(t, 5, now, "", true)
	next, _, err := Give{Buckets: []Bucket{v.bucket}, Cost: 4, Now: now}.Decide(Stored{Packed: [][]byte{v.packed}})
	if err != nil {
		t.Fatal(err)
	}
	v.keep(next.States)
	v.end(t, open{at: now, cost: 5}, now, Settled)
	if _, left, _ := rule.Next(v.packed, now, 0, ""); left.Remaining != 19 || v.packed[0] != formatDebt {
		t.Errorf("%d left of 20, and it keeps %q", left.Remaining, v.packed)
	}
}

// A change of the policy, and a clock that was set, make debt of what is pending.
func TestPendingBecomesDebt(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 10, Per: 1_000_000, Burst: 20}
	start := int64(2_000_000_000_000_000)
	for _, c := range []struct {
		why       string
		rule      Rule
		after     int64
		remaining int64
		until     int64 // one passes
	}{
		{"another rate", Rule{TokenBucket, 1, 1_000_000, 20}, 0, 8, 0},
		{"a lower burst", Rule{TokenBucket, 10, 1_000_000, 10}, 0, 0, 100_000},
		{"a higher burst", Rule{TokenBucket, 10, 1_000_000, 30}, 0, 18, 0},
		{"a clock that was set", rule, -2_000_001, 8, 0},
	} {
		v := vessel{bucket: Bucket{Rule: rule}}
		v.take(t, 3, start, "", false)
		v.take(t, 9, start, "", true)
		v.bucket.Rule = c.rule
		now := start + c.after
		state, verdict, err := c.rule.Next(v.packed, now, 0, "")
		if err != nil || verdict.Remaining != c.remaining {
			t.Errorf("%s: %d left, want %d; %v", c.why, verdict.Remaining, c.remaining, err)
		}
		if c.after != 0 && state.Packed == nil {
			t.Errorf("%s is not stored", c.why)
		}
		if v.take(t, 1, now+c.until, "", false); c.why != "a higher burst" && bytes.HasPrefix(v.packed, []byte{formatPending}) {
			t.Errorf("%s: it keeps %q", c.why, v.packed)
		}
	}
}

// The form of a bucket with something pending, and what is none.
func TestPendingForm(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 3, Per: 1_000_000, Burst: 10}
	v := vessel{bucket: Bucket{Rule: rule}}
	at := 2_000_000_000_000_000 / pendingAge * pendingAge
	v.take(t, 4, at-1, "", true)
	v.take(t, 1, at, "", true)
	v.take(t, 2, at, "", false)
	if got, want := string(v.packed), "2:2000000000000000:666666:2:3:1000000:333333:1:1333333:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, wrong := range []string{
		"2", "2:2000000000000000:666666:2:3:1000000", "2:2000000000000000:666666:2:3:1000000:333333:1:1333333",
		"2:2000000000000000:666666:2:3:1000000:333333:1:1333333:3", "2:2000000000000000:666666:2:3:1000000:333333:3:1333333:1",
		"2:2000000000000000:666666:2:3:1000000:333333:1:1333333:1:", "2:2000000000000000:666666:2:3:1000000:9999999999999999:1:1333333:1",
		"3:2000000000000000:666666:2:3:1000000:333333:1:1333333:1", "1:2000000000000000:666666:2:3:1000000:333333:1:1333333:1",
	} {
		if _, _, err := rule.Next([]byte(wrong), 0, 1, ""); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// Once State.Full has come, dropping a state with something pending changes nothing.
func TestPendingMeansNothingOnceFull(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		v := vessel{bucket: Bucket{Rule: genRule(r)}}
		rule := v.bucket.Rule
		now := 2_000_000_000_000_000 + rapid.Int64Range(0, pendingAge).Draw(r, "into the age")
		v.take(r, rapid.Int64Range(1, rule.Burst).Draw(r, "cost"), now, "", true)
		now += rapid.Int64Range(0, pendingAge).Draw(r, "then")
		take := Take{Buckets: []Bucket{v.bucket}, Cost: rapid.Int64Range(1, rule.Burst).Draw(r, "another"), Now: now, Pending: rapid.Bool().Draw(r, "pending")}
		next, _, err := take.Decide(Stored{Packed: [][]byte{v.packed}})
		if err != nil || next.States[0].Packed == nil {
			return
		}
		v.keep(next.States)
		later := next.States[0].Full + rapid.Int64Range(0, 5).Draw(r, "later")
		if got, want := v.level(r, later), (&vessel{bucket: v.bucket}).level(r, later); got != want {
			r.Fatalf("%q says %s, and nothing says %s", v.packed, got, want)
		}
	})
}

// Of two attempts with the same id one may find the other's charge pending. Where it
// passes for good, the charge is its own, and the other does not take it back.
func TestARepetitionKeepsWhatItFound(t *testing.T) {
	bucket := Bucket{Key: "k", Rule: Rule{Algorithm: TokenBucket, Count: 1, Per: 1_000_000, Burst: 20}}
	now := int64(2_000_000_000_000_000)
	stored := Stored{Packed: [][]byte{nil}}
	keep := func(next Next, out Outcome, err error) Outcome {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if next.Record.Gone {
			stored.Record = nil
		} else if next.Record.Packed != nil {
			stored.Record = next.Record.Packed
		}
		if len(next.States) > 0 && next.States[0].Packed != nil {
			stored.Packed[0] = next.States[0].Packed
		}
		return out
	}
	take := Take{Buckets: []Bucket{bucket}, Cost: 3, Now: now, Record: "r", Pending: true}
	end := Give{Buckets: []Bucket{bucket}, Cost: 3, Now: now, Charged: now, Record: "r", Ends: Undone}
	steps := []struct {
		why       string
		decide    func(Stored) (Next, Outcome, error)
		want      Outcome // but for its verdicts
		remaining int64
		state     byte
	}{
		{"the first attempt", take.Decide, Outcome{Allowed: true}, 17, formatPending},
		{"the second finds it pending", take.Decide, Outcome{Allowed: true, Repeated: true, Pending: true}, 17, formatPending},
		{"and passes for good", func(s Stored) (Next, Outcome, error) {
			final := take
			final.Pending, final.Now = false, now+1
			return final.Decide(s)
		}, Outcome{Allowed: true, Repeated: true}, 17, formatDebt},
		{"the first is refused elsewhere: too late", end.Decide, Outcome{Allowed: true, Repeated: true}, 17, formatDebt},
		{"a third finds it done", take.Decide, Outcome{Allowed: true, Repeated: true}, 17, formatDebt},
	}
	for _, step := range steps {
		out := keep(step.decide(stored))
		left := out.Verdicts[0].Remaining
		out.Verdicts = nil
		if fmt.Sprintf("%+v", out) != fmt.Sprintf("%+v", step.want) || left != step.remaining || stored.Packed[0][0] != step.state {
			t.Errorf("%s: got %+v with %d left, and it keeps %q", step.why, out, left, stored.Packed[0])
		}
	}
	stored = Stored{Packed: [][]byte{nil}}
	keep(take.Decide(stored))
	other := end
	other.Charged--
	if out := keep(other.Decide(stored)); !out.Repeated || out.Verdicts[0].Remaining != 17 {
		t.Errorf("another charge ends: got %+v", out)
	}
	if out := keep(end.Decide(stored)); out.Repeated || out.Verdicts[0].Remaining != 20 || stored.Record != nil {
		t.Errorf("it goes back: got %+v, and the record is %q", out, stored.Record)
	}
	if out := keep(take.Decide(stored)); out.Repeated || out.Verdicts[0].Remaining != 17 {
		t.Errorf("then the next is a new one: got %+v", out)
	}
}
