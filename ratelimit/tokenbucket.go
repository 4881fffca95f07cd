package ratelimit

import (
	"math/big"
	"math/bits"
)

// A token bucket is kept as what it lacks to be full, and that as the time in which
// it comes back. One unit weighs Per/Count microseconds: charging adds the weight of
// the cost, and time pays the debt off microseconds for microseconds. Whole
// microseconds and the rest, in 1/Count microseconds, make this exact for every rate;
// below 53 bits each, they also fit a script whose numbers are doubles. It is the
// generic cell rate algorithm (ITU-T I.371) seen from the other side: seen + debt is
// its theoretical arrival time. A leaky bucket is the same again: the debt is the
// time until what is in it has flowed out.
type tokenBucket struct {
	seen int64 // microseconds since 1970: the debt is that of this instant
	debt span
}

// A span is a time of us + rest/Count microseconds, Count being that of the rule in
// use. The rest is from 0 to Count-1, also where us is negative.
type span struct{ us, rest int64 }

func (r Rule) nextDebt(packed []byte, now, cost int64) (State, Verdict, error) {
	b, err := r.unpack(packed)
	if err != nil {
		return State{}, Verdict{}, err
	}
	capacity := r.price(r.Burst)
	b, changed := b.at(now, capacity)
	owed := r.add(b.debt, r.price(cost))
	wait, delay := int64(0), int64(0)
	if over := r.sub(owed, capacity).ceil(); over > 0 {
		wait = over + b.seen - now
	} else {
		delay = b.full() - now
		b.debt, changed = owed, changed || cost > 0
	}
	state, v := r.debtVerdict(b, now, changed)
	v.Wait = micros(wait)
	if r.Algorithm == LeakyBucket {
		v.Delay = micros(delay)
	}
	return state, v, nil
}

// backDebt pays off the price of what is put back. Of a charge that was made at a
// known instant so much goes back at most as time cannot have paid off since:
// whatever came between, the bucket is not fuller than had it never been charged.
func (r Rule) backDebt(packed []byte, g Give) (State, Verdict, error) {
	b, err := r.unpack(packed)
	if err != nil {
		return State{}, Verdict{}, err
	}
	b, changed := b.at(g.Now, r.price(r.Burst))
	amount := r.price(min(g.Cost, r.Burst))
	if g.Charged > 0 {
		amount = amount.less(max(0, b.seen-g.Charged))
	}
	if left := r.sub(b.debt, amount); left != b.debt {
		if left.us < 0 {
			left = span{}
		}
		changed = changed || left != b.debt
		b.debt = left
	}
	state, v := r.debtVerdict(b, g.Now, changed)
	return state, v, nil
}

func (r Rule) debtVerdict(b tokenBucket, now int64, changed bool) (State, Verdict) {
	v := Verdict{
		Remaining: r.units(r.sub(r.price(r.Burst), b.debt)),
		Reset:     micros(max(0, b.full()-now)),
	}
	if !changed {
		return State{}, v
	}
	return State{Packed: r.pack(b), Full: b.full()}, v
}

// full is when the debt is paid off.
func (b tokenBucket) full() int64 { return b.seen + b.debt.ceil() }

// at brings the bucket to the instant now. Its time does not run backwards: while a
// clock is behind seen, the debt stays as it is. But a clock that is behind by more
// than the time in which any debt is paid off has been set, and the bucket goes on
// from there with the debt that it has, rather than refuse until the clock is back
// where it was. It reports that, because it helps only once it is stored.
func (b tokenBucket) at(now int64, capacity span) (moved tokenBucket, changed bool) {
	switch elapsed := now - b.seen; {
	case elapsed >= 0:
		return tokenBucket{seen: now, debt: b.debt.less(elapsed)}, false
	case -elapsed > capacity.ceil():
		return tokenBucket{seen: now, debt: b.debt}, true
	default:
		return b, false
	}
}

// less is what is left of the span after so many microseconds.
func (s span) less(us int64) span {
	if us > s.us {
		return span{}
	}
	return span{s.us - us, s.rest}
}

// ceil rounds up to microseconds.
func (s span) ceil() int64 {
	if s.rest > 0 {
		return s.us + 1
	}
	return s.us
}

func (r Rule) add(a, b span) span {
	sum := span{a.us + b.us, a.rest + b.rest}
	if sum.rest >= r.Count {
		return span{sum.us + 1, sum.rest - r.Count}
	}
	return sum
}

func (r Rule) sub(a, b span) span {
	diff := span{a.us - b.us, a.rest - b.rest}
	if diff.rest < 0 {
		return span{diff.us - 1, diff.rest + r.Count}
	}
	return diff
}

// price is the time in which n units come back. For n up to Burst no product
// overflows: the first is at most the result, the second less than Burst × Count.
func (r Rule) price(n int64) span {
	rest := n * (r.Per % r.Count)
	return span{n*(r.Per/r.Count) + rest/r.Count, rest % r.Count}
}

// units is how many whole units come back in s, at most the price of Burst; 0 where s is negative.
//
//nolint:gosec // no number is negative, and the quotient is at most Burst
func (r Rule) units(s span) int64 {
	if s.us < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(s.us), uint64(r.Count))
	lo, carry := bits.Add64(lo, uint64(s.rest), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(r.Per))
	return int64(n)
}

// pack writes "1:seen:us:rest:Count:Per": the debt is that of seen, under the rate that follows it.
func (r Rule) pack(b tokenBucket) []byte {
	return packNumbers(b.seen, b.debt.us, b.debt.rest, r.Count, r.Per)
}

// unpack reads what a rule packed, perhaps one with another rate or capacity; nothing
// is a full bucket. None lacks more than all that it holds, so that after a change of
// the policy it is full again when the policy says.
func (r Rule) unpack(packed []byte) (tokenBucket, error) {
	if packed == nil {
		return tokenBucket{}, nil
	}
	rest, err := cutFormat(packed)
	if err != nil {
		return tokenBucket{}, err
	}
	var n [5]int64
	if rest, err = cutNumbers(rest, n[:]); err != nil {
		return tokenBucket{}, err
	}
	b, from := tokenBucket{seen: n[0], debt: span{n[1], n[2]}}, Rule{Count: n[3], Per: n[4]}
	if len(rest) > 0 || !from.couldOwe(b.debt) {
		return tokenBucket{}, errFormat
	}
	if from.Count != r.Count || from.Per != r.Per {
		b.debt = r.convert(b.debt, from)
	}
	if capacity := r.price(r.Burst); r.sub(capacity, b.debt).us < 0 {
		b.debt = capacity
	}
	return b, nil
}

// couldOwe reports whether a token bucket of the rate could have packed the debt.
func (r Rule) couldOwe(debt span) bool {
	return r.Count >= 1 && r.Count <= maxCount && r.Per >= 1 && r.Per <= maxPer.Microseconds() &&
		debt.us <= maxRefill.Microseconds() && debt.rest < r.Count
}

// convert restates a debt of from's rate, so that after a change of the policy as
// many units are missing as before. A debt longer than maxRefill becomes that.
func (r Rule) convert(debt span, from Rule) span {
	n := new(big.Int).Mul(big.NewInt(debt.us), big.NewInt(from.Count))
	n.Add(n, big.NewInt(debt.rest)) // n/from.Per units
	n.Mul(n, big.NewInt(r.Per))
	n.Add(n, big.NewInt(from.Per-1))
	n.Quo(n, big.NewInt(from.Per)) // n/Count microseconds, rounded up
	us, rest := n.QuoRem(n, big.NewInt(r.Count), new(big.Int))
	if longest := maxRefill.Microseconds(); us.Cmp(big.NewInt(longest)) >= 0 {
		return span{longest, 0}
	}
	return span{us.Int64(), rest.Int64()}
}
