package ratelimit

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// genRule draws from the whole range that compile accepts.
func genRule(r *rapid.T) Rule {
	rule := Rule{
		Algorithm: TokenBucket,
		Count: rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, maxCount),
			rapid.SampledFrom([]int64{1_000_000, maxCount})).Draw(r, "count"),
		Per: rapid.OneOf(rapid.SampledFrom([]int64{1000, 1_000_000, 60_000_000, 31_536_000_000_000, maxPer.Microseconds()}),
			rapid.Int64Range(1000, maxPer.Microseconds())).Draw(r, "per"),
		Burst: rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, maxBurst),
			rapid.SampledFrom([]int64{1_000_000, maxBurst})).Draw(r, "burst"),
	}
	for rule.tooSlow() {
		rule.Burst /= 2
	}
	return rule
}

// admitted is one request that passed.
type admitted struct{ at, cost int64 }

// fits is the bound itself: with this one more, no interval that ends at now holds
// more than burst + rate × its length.
func fits(rule Rule, passed []admitted, now, cost int64) bool {
	sum := cost
	if sum > rule.Burst {
		return false
	}
	for i := len(passed) - 1; i >= 0; i-- {
		sum += passed[i].cost
		beyondBurst := new(big.Int).Mul(big.NewInt(sum-rule.Burst), big.NewInt(rule.Per))
		refilled := new(big.Int).Mul(big.NewInt(now-passed[i].at), big.NewInt(rule.Count))
		if beyondBurst.Cmp(refilled) > 0 {
			return false
		}
	}
	return true
}

// A request passes exactly when the bound has room for it, waits exactly until it
// has, and is told exactly how much room there is.
func TestTokenBucketIsItsBound(t *testing.T) {
	allowed, refused := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		rule := genRule(r)
		window := rule.Window().Microseconds()
		now := int64(2_000_000_000_000_000)
		var packed []byte
		var passed []admitted
		for range rapid.IntRange(1, 25).Draw(r, "requests") {
			now += rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, max(1, window/rule.Burst*2)), rapid.Int64Range(0, window*3/2)).Draw(r, "pause")
			now = min(now, 1<<53)
			cost := rapid.OneOf(rapid.Int64Range(1, min(3, rule.Burst)), rapid.Int64Range(1, rule.Burst)).Draw(r, "cost")
			state, v, err := rule.Next(packed, now, cost, "")
			if err != nil {
				r.Fatal(err)
			}
			if got, want := v.Wait == 0, fits(rule, passed, now, cost); got != want {
				r.Fatalf("at %d, cost %d: allowed %t, but the bound says %t; passed %v", now, cost, got, want, passed)
			}
			if v.Wait == 0 {
				allowed++
				passed = append(passed, admitted{now, cost})
				packed = state.Packed
			} else {
				refused++
				checkWait(r, rule, passed, now, cost, v.Wait.Microseconds())
				if state.Packed != nil {
					r.Fatalf("a refusal stores %q", state.Packed)
				}
			}
			checkRoom(r, rule, passed, now, v)
		}
	})
	if allowed == 0 || refused == 0 {
		t.Errorf("%d allowed, %d refused: one side was never tested", allowed, refused)
	}
}

func checkWait(r *rapid.T, rule Rule, passed []admitted, now, cost, wait int64) {
	if !fits(rule, passed, now+wait, cost) {
		r.Fatalf("after the wait of %d µs there is no room", wait)
	}
	if fits(rule, passed, now+wait-1, cost) {
		r.Fatalf("there is room before the wait of %d µs is over", wait)
	}
}

func checkRoom(r *rapid.T, rule Rule, passed []admitted, now int64, v Verdict) {
	if v.Remaining > 0 && !fits(rule, passed, now, v.Remaining) {
		r.Fatalf("remaining %d is more than there is room for", v.Remaining)
	}
	if v.Remaining < rule.Burst && fits(rule, passed, now, v.Remaining+1) {
		r.Fatalf("remaining %d, and there is room for one more", v.Remaining)
	}
	full := now + v.Reset.Microseconds()
	if !fits(rule, passed, full, rule.Burst) {
		r.Fatalf("not full after the reset of %v", v.Reset)
	}
	if v.Reset > 0 && fits(rule, passed, full-1, rule.Burst) {
		r.Fatalf("full before the reset of %v", v.Reset)
	}
}

// Once State.Full has come, dropping the state changes nothing.
func TestStateMeansNothingOnceFull(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rule := genRule(r)
		now := int64(2_000_000_000_000_000)
		state, _, err := rule.Next(nil, now, rapid.Int64Range(1, rule.Burst).Draw(r, "cost"), "")
		if err != nil {
			r.Fatal(err)
		}
		later := state.Full + rapid.Int64Range(0, 5).Draw(r, "later")
		cost := rapid.Int64Range(0, rule.Burst).Draw(r, "next cost")
		kept, a, err := rule.Next(state.Packed, later, cost, "")
		if err != nil {
			r.Fatal(err)
		}
		dropped, b, err := rule.Next(nil, later, cost, "")
		if err != nil {
			r.Fatal(err)
		}
		if a != b || !bytes.Equal(kept.Packed, dropped.Packed) || kept.Full != dropped.Full {
			r.Fatalf("kept: %+v %+v, dropped: %+v %+v", kept, a, dropped, b)
		}
	})
}

// A clock that steps back never makes a bucket worse than if no time had passed,
// and never better.
func TestClockStepsBack(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rule := genRule(r)
		window := rule.Window().Microseconds()
		seen := 2*maxRefill.Microseconds() + 1
		state, _, err := rule.Next(nil, seen, rapid.Int64Range(1, rule.Burst).Draw(r, "used"), "")
		if err != nil {
			r.Fatal(err)
		}
		back := rapid.OneOf(rapid.Int64Range(1, window), rapid.Int64Range(window+1, 2*window+1)).Draw(r, "back")
		cost := rapid.Int64Range(1, rule.Burst).Draw(r, "cost")
		_, still, err := rule.Next(state.Packed, seen, cost, "")
		if err != nil {
			r.Fatal(err)
		}
		next, v, err := rule.Next(state.Packed, seen-back, cost, "")
		if err != nil {
			r.Fatal(err)
		}
		if back <= window {
			if still.Wait > 0 {
				still.Wait += micros(back)
			}
			still.Reset += micros(back)
		} else if next.Packed == nil {
			r.Fatal("a clock that was set is not stored")
		}
		if v != still {
			r.Fatalf("%d µs back, window %d: got %+v, want %+v", back, window, v, still)
		}
	})
}

// Changing the rate keeps the units that are owed, rounded up to 1/Count microseconds.
func TestConvertKeepsUnits(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		from, to := genRule(r), genRule(r)
		debt := from.price(rapid.Int64Range(1, min(from.Burst, to.Burst)).Draw(r, "used"))
		debt = debt.less(rapid.Int64Range(0, debt.us).Draw(r, "paid off"))
		got := to.convert(debt, from)
		owed := product(parts(debt, from), to.Per)
		if product(parts(got, to), from.Per).Cmp(owed) < 0 {
			r.Fatalf("%v under %+v becomes %v under %+v: fewer units", debt, from, got, to)
		}
		if less := new(big.Int).Sub(parts(got, to), big.NewInt(1)); product(less, from.Per).Cmp(owed) >= 0 {
			r.Fatalf("%v under %+v becomes %v under %+v: more units", debt, from, got, to)
		}
	})
}

// parts is the span in 1/Count microseconds.
func parts(s span, rule Rule) *big.Int {
	return new(big.Int).Add(product(big.NewInt(s.us), rule.Count), big.NewInt(s.rest))
}

func product(a *big.Int, b int64) *big.Int { return new(big.Int).Mul(a, big.NewInt(b)) }

func TestConvertIsBounded(t *testing.T) {
	from := Rule{Algorithm: TokenBucket, Count: maxCount, Per: 1000, Burst: maxBurst}
	to := Rule{Algorithm: TokenBucket, Count: 1, Per: maxPer.Microseconds(), Burst: 1}
	state, _, err := from.Next(nil, 0, maxBurst, "")
	if err != nil {
		t.Fatal(err)
	}
	_, v, err := to.Next(state.Packed, 0, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	if v.Reset != maxPer || v.Wait != maxPer || v.Remaining != 0 { // all that the bucket holds
		t.Errorf("got %+v", v)
	}
}

// us × Count is just below 2^64, and the rest carries it over.
func TestUnitsBeyond64Bits(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 999_999_937, Per: maxPer.Microseconds(), Burst: maxBurst}
	s := span{18_446_745_235, rule.Count - 1}
	want := new(big.Int).Quo(parts(s, rule), big.NewInt(rule.Per)).Int64()
	if got := rule.units(s); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}

// debtOf is a packed debt of any numbers.
func debtOf(seen, us float64, rest uint32, rule string) string {
	packed := binary.LittleEndian.AppendUint64([]byte("3"), math.Float64bits(seen))
	packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(us))
	return string(binary.LittleEndian.AppendUint32(packed, rest)) + rule
}

func TestPackedForm(t *testing.T) {
	rule := Rule{Algorithm: TokenBucket, Count: 3, Per: 1_000_000, Burst: 10}
	state, _, err := rule.Next(nil, 1_790_000_000_000_000, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	const was = "1:1790000000000000:1333333:1:3:1000000"
	if got, want := string(state.Packed), "3\x00\x80\x97\x68\xfb\x6f\x19\x43\x00\x00\x00\x00\x55\x58\x34\x41\x01\x00\x00\x003:1000000"; got != want {
		t.Errorf("got %q, want %q", got, want)
	} else if now, _, err := rule.unpack(state.Packed); err != nil || !bytes.Equal(rule.pack(now), state.Packed) {
		t.Errorf("%q does not survive: %+v, %v", got, now, err)
	} else if before, _, err := rule.unpack([]byte(was)); err != nil || before != now {
		t.Errorf("%q is %+v, %v, want %+v", was, before, err, now)
	}
	if want := int64(1_790_000_001_333_334); state.Full != want {
		t.Errorf("full at %d, want %d", state.Full, want)
	}
	for _, wrong := range []string{
		"", "1", "2:1790000000000000:1333333:1:3:1000000", "1:1790000000000000:1333333:1:3",
		"1:1790000000000000:1333333:3:3:1000000", "1:1790000000000000:1333333:1:3:1000000 ",
		"1:17900000000000000:1333333:1:3:1000000", "1:1790000000000000:-1:1:3:1000000",
		"1:1790000000000000:1333333:1:0:1000000", "1:1790000000000000:1333333:1:3:0", "1:::::",
		"1790000000000000:1333333:1:3:1000000", "11:1:1:3:1000000", "1:1::1:3:1000000", "1:1:1:1:3:1000000:",
		"1:1790000000000000:9999999999999999:1:3:1000000", "1:1:1:1:3:99999999999999", "1:1:1:1:1000000001:1000",
		"3", debtOf(1.79e15, 1333333, 1, ""), debtOf(1.79e15, 1333333, 1, "3"), debtOf(1.79e15, 1333333, 1, ":1000000"),
		debtOf(1.79e15, 1333333, 1, "3:1000000:"), debtOf(1.79e15, 1333333, 1, "0:1000000"), debtOf(1.79e15, 1333333, 1, "3:0"),
		debtOf(1.79e15, 1333333, 3, "3:1000000"), debtOf(1.79e15, 3.2e15, 1, "3:1000000"), debtOf(1.79e15, 0.5, 1, "3:1000000"),
		debtOf(1.79e15, -1, 1, "3:1000000"), debtOf(1.79e15, math.NaN(), 1, "3:1000000"), debtOf(1.79e15, math.Inf(1), 1, "3:1000000"),
		debtOf(0.5, 1333333, 1, "3:1000000"), debtOf(-1, 1333333, 1, "3:1000000"), debtOf(1<<53, 1333333, 1, "3:1000000"),
		debtOf(math.NaN(), 1333333, 1, "3:1000000"), debtOf(1e300, 1333333, 1, "3:1000000"), "1" + debtOf(1.79e15, 1333333, 1, "3:1000000")[1:],
	} {
		if _, _, err := rule.Next([]byte(wrong), 0, 1, ""); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// What is refused or only looked at leaves every stored state as it is.
func TestNothingTakenNothingStored(t *testing.T) {
	empty, full := Rule{TokenBucket, 1, 1_000_000, 1}, Rule{TokenBucket, 1, 1_000_000, 5}
	take := Take{Buckets: []Bucket{{Key: "full", Rule: full}, {Key: "empty", Rule: empty}}, Cost: 1, Now: 1_000_000}
	next, _, err := take.Decide(Stored{Packed: [][]byte{nil, nil}})
	if err != nil || next.States[0].Packed == nil || next.States[1].Packed == nil {
		t.Fatalf("both are charged: %v, %v", next, err)
	}
	packed := [][]byte{next.States[0].Packed, next.States[1].Packed}
	take.Now++
	for _, take.Peek = range []bool{false, true} {
		next, out, err := take.Decide(Stored{Packed: packed})
		if err != nil || out.Allowed {
			t.Fatalf("%+v, %v", out, err)
		}
		for i, state := range next.States {
			if state.Packed != nil {
				t.Errorf("peek %t stores %q for %s", take.Peek, state.Packed, take.Buckets[i].Key)
			}
		}
	}
}

func TestNextKnowsItsAlgorithms(t *testing.T) {
	if _, _, err := (Rule{Algorithm: "tokens", Count: 1, Per: 1, Burst: 1}).Next(nil, 0, 1, ""); err == nil {
		t.Error("an unknown algorithm decides")
	}
}

func FuzzNext(f *testing.F) {
	f.Add([]byte("1:1790000000000000:1333333:1:3:1000000"), int64(3), int64(1_000_000), int64(10), int64(1_790_000_000_000_000), int64(1))
	f.Add([]byte(debtOf(1.79e15, 1333333, 1, "3:1000000")), int64(3), int64(1_000_000), int64(10), int64(1_790_000_000_000_000), int64(1))
	f.Add([]byte("1:0:3162240000000000:999999999:1000000000:1000"), int64(1), int64(31_536_000_000_000), int64(100), int64(0), int64(100))
	f.Fuzz(func(t *testing.T, packed []byte, count, per, burst, now, cost int64) {
		limit := Limit{Name: "l", Key: []string{"k"}, Algorithm: TokenBucket, Numbers: Numbers{Rate: Rate{count, time.Duration(per) * time.Microsecond}, Burst: burst}}
		const farFuture = 8_000_000_000_000_000 // the year 2223
		if limit.Rate.Per.Microseconds() != per || limit.mistakes() != nil || now < 0 || now > farFuture || cost < 1 || cost > burst {
			t.Skip()
		}
		rule := limit.rule()
		state, v, err := rule.Next(packed, now, cost, "")
		if err != nil {
			return
		}
		if v.Wait < 0 || v.Reset < 0 || v.Remaining < 0 || v.Remaining > burst {
			t.Fatalf("out of range: %+v", v)
		}
		if state.Packed != nil && !bytes.Equal(state.Packed, packed) {
			b, _, err := rule.unpack(state.Packed)
			if err != nil || !bytes.Equal(rule.pack(b), state.Packed) || state.Full < b.seen {
				t.Fatalf("%q does not survive: %v", state.Packed, err)
			}
			packed = state.Packed
		}
		if v.Wait == 0 {
			return
		}
		if _, retry, err := rule.Next(packed, now+v.Wait.Microseconds(), cost, ""); err != nil || retry.Wait != 0 {
			t.Fatalf("after the wait of %v: %+v, %v", v.Wait, retry, err)
		}
	})
}

// Whether or not anybody asks what to store, the outcome is the same.
func TestOutcomeIsThatOfDecide(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		take, most := Take{Now: 2_000_000_000_000_000}, int64(3)
		for i := range rapid.IntRange(1, 3).Draw(r, "buckets") {
			rule := genRule(r)
			rule.Algorithm = rapid.SampledFrom(algorithms[:]).Draw(r, "algorithm")
			rule.Burst = min(rule.Burst, MaxEntries)
			if !rule.Algorithm.refills() {
				rule.Count = rule.Burst // as it is compiled
			}
			most = min(most, rule.Burst)
			take.Buckets = append(take.Buckets, Bucket{Key: string(rune('a' + i)), Rule: rule})
		}
		stored := Stored{Packed: make([][]byte, len(take.Buckets))}
		for range rapid.IntRange(1, 10).Draw(r, "takes") {
			take.Now += rapid.Int64Range(0, 2_000_000).Draw(r, "pause")
			take.Cost, take.SlotID = rapid.Int64Range(1, most).Draw(r, "cost"), rapid.StringMatching(`[a-c]`).Draw(r, "slot")
			take.Peek, take.Pending = rapid.Bool().Draw(r, "peek"), rapid.Bool().Draw(r, "pending")
			take.Record = rapid.SampledFrom([]string{"", "r"}).Draw(r, "record")
			next, want, err := take.Decide(stored)
			if err != nil {
				r.Fatal(err)
			}
			told, err := take.Outcome(stored)
			if err != nil || !reflect.DeepEqual(told, want) {
				r.Fatalf("told %+v, %v, decided %+v", told, err, want)
			}
			for i, state := range next.States {
				if state.Packed != nil {
					stored.Packed[i] = state.Packed
				}
			}
			if next.Record.Packed != nil {
				stored.Record = next.Record.Packed
			}
		}
	})
}
