package ratelimit

import (
	"encoding/binary"
	"math/big"
	"math/bits"
	"strconv"
)

// A token bucket is kept as what it lacks to be full, and that as the time in which
// it comes back. One unit weighs Per/Count microseconds: charging adds the weight of
// the cost, and time pays the debt off microseconds for microseconds. Whole
// microseconds and the rest, in 1/Count microseconds, make this exact for every rate;
// below 53 bits each, they also fit a script whose numbers are doubles. It is the
// generic cell rate algorithm (ITU-T I.371) seen from the other side: seen + debt is
// its theoretical arrival time. A leaky bucket is the same again: the debt is the
// time until what is in it has flowed out.
//
// Beside the debt stands what is pending (see End): it takes room as debt does, but
// time does not pay it off.
type tokenBucket struct {
	seen    int64 // microseconds since 1970: the debt is that of this instant
	debt    span
	pending [2]span // what was charged in the age of seen, and in the one before
}

// A span is a time of us + rest/Count microseconds, Count being that of the rule in
// use. The rest is from 0 to Count-1, also where us is negative.
type span struct{ us, rest int64 }

func (r Rule) nextDebt(packed []byte, t Take, cost int64) (State, Verdict, error) {
	b, kept, err := r.unpack(packed)
	if err != nil {
		return State{}, Verdict{}, err
	}
	capacity, price, now := r.price(r.Burst), r.price(cost), t.Now
	b, changed := r.at(b, now)
	wait, delay := int64(0), int64(0)
	if over := r.sub(r.add(r.owed(b), price), capacity).ceil(); over > 0 {
		wait = over + b.seen - now
	} else {
		delay = r.full(b) - now
		if t.Pending {
			b.pending[0] = r.add(b.pending[0], price)
		} else {
			b.debt = r.add(b.debt, price)
		}
		changed = changed || cost > 0
	}
	state, v := r.debtVerdict(b, now, changed && !t.told)
	if full := r.full(b); !changed && kept > 0 && full > kept { // what it holds may stay, and longer than it would
		state = State{Packed: packed, Full: full}
	}
	v.Wait = micros(wait)
	if r.Algorithm == LeakyBucket {
		v.Delay = micros(delay)
	}
	return state, v, nil
}

// backDebt pays off the price of what is put back. Of a charge that was made at a
// known instant, and is not known to be pending, so much goes back at most as time
// cannot have paid off since: whatever came between, the bucket is not fuller than had
// it never been charged.
func (r Rule) backDebt(packed []byte, g Give) (State, Verdict, error) {
	was, _, err := r.unpack(packed)
	if err != nil {
		return State{}, Verdict{}, err
	}
	was, changed := r.at(was, g.Now)
	b, amount := was, r.price(min(g.Cost, r.Burst))
	if g.Ends != "" {
		b, amount = r.end(b, amount, g)
	}
	if g.Charged > 0 {
		amount = amount.less(max(0, b.seen-g.Charged))
	}
	b.debt, amount = r.pay(b.debt, amount)
	if g.Charged == 0 { // then it may be one of those that are pending
		for i := range b.pending {
			b.pending[i], amount = r.pay(b.pending[i], amount)
		}
	}
	state, v := r.debtVerdict(b, g.Now, changed || b != was)
	return state, v, nil
}

// end takes a charge of the price off what is pending of its age: one that stays becomes
// debt. It returns what then still must be paid back.
func (r Rule) end(b tokenBucket, price span, g Give) (tokenBucket, span) {
	found := span{}
	if age := ageOf(b.seen) - ageOf(g.Charged); age == 0 || age == 1 {
		left, rest := r.pay(b.pending[age], price)
		found, price = r.sub(b.pending[age], left), rest
		b.pending[age] = left
	}
	if g.Ends == Settled {
		b.debt = r.add(b.debt, found)
		return b, span{}
	}
	return b, price
}

func (r Rule) debtVerdict(b tokenBucket, now int64, changed bool) (State, Verdict) {
	full := r.full(b)
	v := Verdict{
		Remaining: r.units(r.sub(r.price(r.Burst), r.owed(b))),
		Reset:     micros(max(0, full-now)),
		Pending:   b.isPending(),
	}
	if !changed {
		return State{}, v
	}
	return State{Packed: r.pack(b), Full: r.kept(b)}, v
}

// kept is until when the state says more than no state.
func (r Rule) kept(b tokenBucket) int64 {
	if b.isPending() { // for two ages at most, and then it is debt
		return r.full(b) + 2*pendingAge
	}
	return r.full(b)
}

// owed is the debt, and what may become it.
func (r Rule) owed(b tokenBucket) span { return r.add(b.debt, r.add(b.pending[0], b.pending[1])) }

// full is when the debt is paid off, if all that is pending becomes debt now.
func (r Rule) full(b tokenBucket) int64 { return b.seen + r.owed(b).ceil() }

func (b tokenBucket) isPending() bool { return b.pending != [2]span{} }

// at brings the bucket to the instant now. Its time does not run backwards: while a
// clock is behind seen, the debt stays as it is. But a clock that is behind by more
// than the time in which any debt is paid off has been set, and the bucket goes on
// from there with the debt that it has, rather than refuse until the clock is back
// where it was. It reports that, because it helps only once it is stored.
func (r Rule) at(b tokenBucket, now int64) (moved tokenBucket, changed bool) {
	if now < b.seen {
		if b.seen-now <= r.price(r.Burst).ceil() {
			return b, false
		}
		return tokenBucket{seen: now, debt: r.owed(b)}, true
	}
	for b.isPending() && ageOf(b.seen) < ageOf(now) {
		ends := (ageOf(b.seen) + 1) * pendingAge
		b = tokenBucket{ends, r.add(b.debt.less(ends-b.seen), b.pending[1]), [2]span{1: b.pending[0]}}
	}
	return tokenBucket{now, b.debt.less(now - b.seen), b.pending}, false
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

// pay takes so much off a debt, and returns what is left of both.
func (r Rule) pay(debt, amount span) (left, rest span) {
	if left = r.sub(debt, amount); left.us < 0 {
		return span{}, r.sub(amount, debt)
	}
	return left, span{}
}

// pack writes "3", seen and us as doubles and rest in 32 bits, all little-endian, and
// "Count:Per": the debt is that of seen, under the rate that follows it. Where something is
// pending it is "2:seen:us:rest:Count:Per", and then us and rest of what was charged in the
// age of seen, and in the one before.
func (r Rule) pack(b tokenBucket) []byte {
	if !b.isPending() {
		packed := appendDouble(appendDouble(append(make([]byte, 0, 48), formatDebt), b.seen), b.debt.us)
		packed = binary.LittleEndian.AppendUint32(packed, uint32(b.debt.rest)) //nolint:gosec // less than Count
		return appendNumber(strconv.AppendInt(packed, r.Count, 10), r.Per)
	}
	packed := packNumbers(b.seen, b.debt.us, b.debt.rest, r.Count, r.Per)
	packed[0] = formatPending
	for _, s := range b.pending {
		packed = appendNumber(appendNumber(packed, s.us), s.rest)
	}
	return packed
}

// unpack reads what a rule packed, perhaps one with another rate or capacity; nothing
// is a full bucket. None lacks more than all that it holds, so that after a change of
// the policy it is full again when the policy says. Such a change also makes debt of
// what is pending. Of a state with another rate it tells until when it is kept, else 0.
func (r Rule) unpack(packed []byte) (b tokenBucket, kept int64, err error) {
	if packed == nil {
		return tokenBucket{}, 0, nil
	}
	b, from, err := unpackDebt(packed)
	if err != nil || !from.couldOwe(b.debt) || !from.couldOwe(b.pending[0]) || !from.couldOwe(b.pending[1]) {
		return tokenBucket{}, 0, errFormat
	}
	if from.Count != r.Count || from.Per != r.Per {
		kept = from.kept(b)
		b = tokenBucket{seen: b.seen, debt: r.convert(from.owed(b), from)}
	}
	if capacity := r.price(r.Burst); r.sub(capacity, r.owed(b)).us < 0 {
		b = tokenBucket{seen: b.seen, debt: capacity}
	}
	return b, kept, nil
}

// unpackDebt reads what pack writes, and "1:seen:us:rest:Count:Per", which it once wrote.
func unpackDebt(packed []byte) (b tokenBucket, from Rule, err error) {
	const head = 1 + 8 + 8 + 4
	var n [9]int64
	if len(packed) > head && packed[0] == formatDebt {
		n[0], n[1], n[2] = doubleOf(packed[1:]), doubleOf(packed[9:]), int64(binary.LittleEndian.Uint32(packed[17:]))
		var whole bool
		if n[3], packed, whole = cutDigits(packed[head:]); !whole || n[0] < 0 || n[1] < 0 {
			return tokenBucket{}, Rule{}, errFormat
		}
		packed, err = cutNumbers(packed, n[4:5])
	} else {
		var pending bool
		if packed, pending, err = cutEitherFormat(packed); err != nil {
			return tokenBucket{}, Rule{}, err
		}
		numbers := n[:5]
		if pending {
			numbers = n[:]
		}
		packed, err = cutNumbers(packed, numbers)
	}
	if err != nil || len(packed) > 0 {
		return tokenBucket{}, Rule{}, errFormat
	}
	return tokenBucket{n[0], span{n[1], n[2]}, [2]span{{n[5], n[6]}, {n[7], n[8]}}}, Rule{Count: n[3], Per: n[4]}, nil
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
