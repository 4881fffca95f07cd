package ratelimit

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// genWindow draws a rule of the algorithms that count in windows, or of slots.
func genWindow(r *rapid.T, a Algorithm) Rule {
	largest := int64(maxBurst)
	if a == SlidingWindowLog || a == Concurrency {
		largest = MaxEntries
	}
	n := rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1, largest), rapid.Just(largest)).Draw(r, "count")
	per := rapid.OneOf(rapid.SampledFrom([]int64{1000, 1_000_000, 60_000_000, maxPer.Microseconds()}),
		rapid.Int64Range(1000, maxPer.Microseconds())).Draw(r, "per")
	return Rule{Algorithm: a, Count: n, Per: per, Burst: n}
}

// within is how many units passed from an instant on.
func within(passed []admitted, from int64) (units int64) {
	for _, p := range passed {
		if p.at >= from {
			units += p.cost
		}
	}
	return units
}

// room is the bound of an algorithm: how many units fit at now, given all that passed.
var room = map[Algorithm]func(rule Rule, passed []admitted, now int64) int64{
	FixedWindow: func(rule Rule, passed []admitted, now int64) int64 {
		return rule.Count - within(passed, now-now%rule.Per)
	},
	SlidingWindowCounter: func(rule Rule, passed []admitted, now int64) int64 {
		start := now - now%rule.Per
		cur := within(passed, start)
		old := within(passed, start-rule.Per) - cur
		return rule.Count - cur - mulDivCeil(old, start+rule.Per-now, rule.Per)
	},
	SlidingWindowLog: func(rule Rule, passed []admitted, now int64) int64 {
		return rule.Count - within(passed, now-rule.Per+1)
	},
	Concurrency: func(rule Rule, passed []admitted, now int64) int64 {
		return rule.Count - within(passed, now-rule.Per+1)
	},
}

// A request passes exactly when the bound has room for it, waits exactly until it
// has, and is told exactly how much room there is and when all is free.
func TestEachAlgorithmIsItsBound(t *testing.T) {
	for a, room := range room {
		t.Run(string(a), func(t *testing.T) {
			allowed, refused := 0, 0
			rapid.Check(t, func(r *rapid.T) {
				rule := genWindow(r, a)
				now := int64(2_000_000_000_000_000)
				var packed []byte
				var passed []admitted
				for i := range rapid.IntRange(1, 25).Draw(r, "requests") {
					now += rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, rule.Per/4), rapid.Int64Range(0, 3*rule.Per)).Draw(r, "pause")
					cost := rapid.OneOf(rapid.Int64Range(1, min(3, rule.Burst)), rapid.Int64Range(1, rule.Burst)).Draw(r, "cost")
					state, v, err := rule.Next(packed, now, cost, fmt.Sprint(i))
					if err != nil {
						r.Fatal(err)
					}
					if got, want := v.Wait == 0, cost <= room(rule, passed, now); got != want {
						r.Fatalf("at %d, cost %d: allowed %t, but the bound says %t; passed %v", now, cost, got, want, passed)
					}
					if v.Wait == 0 {
						allowed++
						passed, packed = append(passed, admitted{now, cost}), state.Packed
					} else {
						refused++
						wait := v.Wait.Microseconds()
						if room(rule, passed, now+wait) < cost || room(rule, passed, now+wait-1) >= cost {
							r.Fatalf("the wait of %d µs is not exact", wait)
						}
					}
					if want := max(0, room(rule, passed, now)); v.Remaining != want {
						r.Fatalf("remaining %d, want %d", v.Remaining, want)
					}
					if full := now + v.Reset.Microseconds(); room(rule, passed, full) != rule.Burst {
						r.Fatalf("not full after the reset of %v", v.Reset)
					}
				}
			})
			if allowed == 0 || refused == 0 {
				t.Errorf("%d allowed, %d refused: one side was never tested", allowed, refused)
			}
		})
	}
}

// What a leaky bucket lets flow, each after its delay, never flows faster than the rate.
func TestLeakyBucketFlowsAtItsRate(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rule := genRule(r)
		rule.Algorithm = LeakyBucket
		now, free := int64(2_000_000_000_000_000), int64(0)
		var packed []byte
		for range rapid.IntRange(1, 25).Draw(r, "requests") {
			now += rapid.Int64Range(0, rule.Window().Microseconds()/4+1).Draw(r, "pause")
			cost := rapid.Int64Range(1, rule.Burst).Draw(r, "cost")
			state, v, err := rule.Next(packed, now, cost, "")
			if err != nil {
				r.Fatal(err)
			}
			if v.Wait > 0 {
				continue
			}
			packed = state.Packed
			flows := now + v.Delay.Microseconds()
			if flows < free {
				r.Fatalf("flows at %d, and the one before it until %d", flows, free)
			}
			free = flows + rule.price(cost).us
		}
	})
}

// Once State.Full has come, dropping the state changes nothing.
func TestEveryStateMeansNothingOnceFull(t *testing.T) {
	for a := range room {
		t.Run(string(a), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				rule := genWindow(r, a)
				now := int64(2_000_000_000_000_000) + rapid.Int64Range(0, rule.Per).Draw(r, "into the window")
				state, _, err := rule.Next(nil, now, rapid.Int64Range(1, rule.Burst).Draw(r, "cost"), "a")
				if err != nil {
					r.Fatal(err)
				}
				later := state.Full + rapid.Int64Range(0, 5).Draw(r, "later")
				cost := rapid.Int64Range(1, rule.Burst).Draw(r, "next cost")
				kept, x, err := rule.Next(state.Packed, later, cost, "b")
				if err != nil {
					r.Fatal(err)
				}
				dropped, y, err := rule.Next(nil, later, cost, "b")
				if err != nil || x != y || kept.Full != dropped.Full {
					r.Fatalf("kept: %+v, dropped: %+v, %v", x, y, err)
				}
				if a != SlidingWindowCounter && a != FixedWindow && !bytes.Equal(kept.Packed, dropped.Packed) {
					r.Fatalf("kept %q, dropped %q", kept.Packed, dropped.Packed)
				}
			})
		})
	}
}

// Around a boundary of a second up to 10 units of 10 per second pass, but for the
// algorithm that forgets at it. docs/algorithms.md has these figures.
func TestBoundaryBurst(t *testing.T) {
	for _, c := range []struct {
		rule   Rule
		within time.Duration
		passed int64
	}{
		{Rule{TokenBucket, 10, 1_000_000, 10}, 2 * time.Millisecond, 10},
		{Rule{GCRA, 10, 1_000_000, 10}, 2 * time.Millisecond, 10},
		{Rule{FixedWindow, 10, 1_000_000, 10}, 2 * time.Millisecond, 20},
		{Rule{SlidingWindowCounter, 10, 1_000_000, 10}, 2 * time.Millisecond, 10},
		{Rule{SlidingWindowLog, 10, 1_000_000, 10}, 2 * time.Millisecond, 10},
		{Rule{LeakyBucket, 10, 1_000_000, 10}, 2 * time.Millisecond, 10},
		{Rule{TokenBucket, 10, 1_000_000, 10}, time.Second, 20},
		{Rule{SlidingWindowCounter, 10, 1_000_000, 10}, time.Second - time.Millisecond, 19},
		{Rule{SlidingWindowLog, 10, 1_000_000, 10}, time.Second - time.Microsecond, 10},
	} {
		var packed []byte
		passed := int64(0)
		const boundary = 2_000_000_000_000_000
		for at := int64(boundary - 1000); at <= boundary-1000+c.within.Microseconds(); at += 500 {
			for {
				state, v, err := c.rule.Next(packed, at, 1, fmt.Sprint(passed))
				if err != nil {
					t.Fatal(err)
				}
				if v.Wait > 0 {
					break
				}
				packed, passed = state.Packed, passed+1
			}
		}
		t.Logf("%s: %d within %v", c.rule.Algorithm, passed, c.within)
		if passed != c.passed {
			t.Errorf("%s within %v: %d passed, want %d", c.rule.Algorithm, c.within, passed, c.passed)
		}
	}
}

// FuzzPacked feeds any algorithm any stored bytes: it refuses them or stays in range.
func FuzzPacked(f *testing.F) {
	for i, packed := range []string{
		"1:1790000000000000:1333333:1:3:1000000", "1:1790000000000000:7:9:1000000", "1:1790000000000000:3:500:1",
		debtOf(1.79e15, 1333333, 1, "3:1000000"), "1:1790000000500000:2:slt_A:1790000000700000:1:b", "1", "", "2:1", "1:9999999999999999:1000000000:1000000000:1",
	} {
		f.Add([]byte(packed), byte(i), int64(10), int64(1_000_000), int64(1_790_000_000_100_000), int64(1))
	}
	f.Fuzz(func(t *testing.T, packed []byte, pick byte, count, per, now, cost int64) {
		rule := Rule{Algorithm: algorithms[int(pick)%len(algorithms)], Count: count, Per: per, Burst: count}
		if count < 1 || count > MaxEntries || per < 1000 || per > maxPer.Microseconds() || now < 0 || now > 1<<53 || cost < 1 || cost > count || rule.tooSlow() {
			t.Skip()
		}
		in := func(state State, v Verdict, err error) {
			if err == nil && (v.Remaining < 0 || v.Remaining > count || v.Wait < 0 || v.Reset < 0 || v.Delay < 0) {
				t.Fatalf("%s of %q: %+v", rule.Algorithm, packed, v)
			}
			if err == nil && state.Packed != nil {
				if _, _, err := rule.Next(state.Packed, now, cost, "a"); err != nil {
					t.Fatalf("%q, then %q: %v", packed, state.Packed, err)
				}
			}
		}
		in(rule.Next(packed, now, cost, "a"))
		in(rule.Back(packed, Give{Cost: cost, SlotID: "b", Now: now}))
		in(rule.Back(packed, Give{Cost: cost, Now: now, Charged: now - 1}))
		_, _, _ = unpackRecord(packed, now)
	})
}
