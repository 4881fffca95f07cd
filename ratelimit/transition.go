package ratelimit

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// A Rule is a limit reduced to its numbers.
type Rule struct {
	Algorithm  Algorithm
	Count, Per int64 // Count units in every Per microseconds; of Concurrency: Burst, and the life of a slot
	Burst      int64 // the capacity: units that pass at once from full
}

// A Bucket is what one limit of a policy counts for one request.
type Bucket struct {
	Key  string // of type keytype.RateBucket, or keytype.ConcurrencySlot with Concurrency
	Rule Rule
	Tag  string // buckets of one tag lie on the same part of a partitioned store
	// Cost, where not 0, stands for this bucket in place of that of the Take or Give.
	Cost int64
	// Leased says that what the bucket's slots count is units that were leased, and its
	// key of type keytype.TokenLease.
	Leased bool
}

// CostOf is what a Take or Give of the given cost means for the bucket.
func (b Bucket) CostOf(given int64) int64 {
	if given == 0 || b.Cost == 0 {
		return given
	}
	return b.Cost
}

// Type is the type of the bucket's key.
func (b Bucket) Type() *keytype.Type {
	if b.Leased {
		return keytype.TokenLease
	}
	if b.Rule.Algorithm == Concurrency {
		return keytype.ConcurrencySlot
	}
	return keytype.RateBucket
}

// A Take asks for Cost units from every bucket, or from none.
type Take struct {
	Buckets []Bucket // with distinct keys
	Cost    int64    // 1 to the smallest Burst of the rules, but see Repeat
	Now     int64    // microseconds since 1970, up to 2^53
	Peek    bool     // decide, and take nothing
	SlotID  string   // names what is taken from Concurrency, 1 to 64 bytes without a colon, in place of what it named before; unused elsewhere
	Record  string   // key of type keytype.ChargeRequest that makes a repetition exact, or ""
	Repeat  bool     // answer a repetition, whatever Cost; refuse everything else
	Bind    Bind     // ties the id of the request to what it came with; a Peek ignores it
	// Pending says that what is taken may still go back: a Give with Ends says what
	// becomes of it. A Take that is not, and repeats one that is, settles it.
	Pending bool

	told bool // nobody asks what to store
}

// A Give puts units back into buckets, and frees slots. What it names and a bucket
// has not, it leaves out: no bucket gets fuller than full.
type Give struct {
	Buckets []Bucket
	Cost    int64  // 0 to MaxCost, for all but Concurrency
	SlotID  string // for Concurrency, "" = none
	Now     int64
	// Charged is the instant of the Take whose charge goes back, 0 = unknown: with it
	// nothing goes back that lapsed in between, and nothing into another window.
	Charged int64
	Record  string // as for a Take; a repeated Give puts nothing back
	Bind    Bind   // as for a Take
	// Ends, where not "", says what becomes of the pending charge that was made at
	// Charged. With a Record, which then is the Take's, it does so as long as that one
	// says that the charge is pending.
	Ends End
}

// A State is what a store keeps under one key from now on. The zero State means
// that what it has may stay.
type State struct {
	Packed []byte
	Full   int64 // microseconds since 1970: from then on this state and no state say the same
	Gone   bool  // instead: the store drops what it has
}

// A Verdict is what one rule says of its bucket. Its durations are in microseconds, rounded up.
type Verdict struct {
	Remaining int64         // whole units left
	Wait      time.Duration // until the rule lets the same cost pass, 0 where it does now
	Reset     time.Duration // until the bucket is full
	Delay     time.Duration // LeakyBucket: until what was taken has its turn
	Pending   bool          // some of what it counts may still go back, as far as the rule can tell
}

// An Outcome is a store's answer to a Take or a Give.
type Outcome struct {
	Allowed  bool
	Verdicts []Verdict // by bucket, of what is left
	SlotID   string    // what was taken from Concurrency: the Take's own, or that of the Take which it repeats
	Source   Source
	// Repeated says that the Take was done before, Pending that what it got then may
	// still go back.
	Repeated, Pending bool
	// Mismatch says that the id of the request belongs to another: nothing was done, and
	// the verdicts are empty.
	Mismatch bool
}

// Stored is what a store has of a Take or a Give: nil where there is nothing.
type Stored struct {
	Record []byte
	Bound  []byte   // under the key of the Bind
	Packed [][]byte // by bucket
}

// Next is what a store keeps after it.
type Next struct {
	Record State
	Bound  State
	States []State // by bucket, none where nothing was taken by a Peek
}

// Decide is the whole decision: it returns what to store, and the outcome without
// its Source. Every store does as this function does.
func (t Take) Decide(s Stored) (Next, Outcome, error) {
	if t.Peek || t.Bind.Key == "" {
		return t.decide(s)
	}
	return t.Bind.before(s, t.Now, len(t.Buckets), t.decide)
}

// Outcome is that of Decide, for one who has no use for what to store: packing it is a good
// part of the whole.
func (t Take) Outcome(s Stored) (Outcome, error) {
	t.told = true
	_, out, err := t.Decide(s)
	return out, err
}

func (t Take) decide(s Stored) (Next, Outcome, error) {
	first, repeated, err := unpackRecord(s.Record, t.Now)
	if err != nil {
		return Next{}, Outcome{}, err
	}
	next := Next{}
	if !t.told {
		next.States = make([]State, len(t.Buckets))
	}
	out := Outcome{Allowed: true, Verdicts: make([]Verdict, len(t.Buckets))}
	if repeated && !t.Peek {
		if repeated, err = t.holds(first, s.Packed); err != nil {
			return Next{}, Outcome{}, err
		}
	}
	if repeated && !t.Peek {
		return t.repeat(first, s.Packed)
	}
	if t.Repeat {
		out.Allowed = false
		return Next{}, out, t.apply(0, s.Packed, next.States, out.Verdicts)
	}
	if err := t.apply(t.Cost, s.Packed, next.States, out.Verdicts); err != nil {
		return Next{}, Outcome{}, err
	}
	delay := time.Duration(0)
	for _, v := range out.Verdicts {
		out.Allowed = out.Allowed && v.Wait == 0
		delay = max(delay, v.Delay)
	}
	if !out.Allowed || t.Peek {
		if err := t.apply(0, s.Packed, next.States, out.Verdicts); err != nil {
			return Next{}, Outcome{}, err
		}
	}
	switch {
	case t.Peek:
		next = Next{}
	case out.Allowed:
		out.SlotID = t.SlotID
		if t.Record != "" {
			next.Record = record{at: t.Now, turn: t.Now + delay.Microseconds(), slotID: t.SlotID, pending: t.Pending}.state()
		}
	}
	return next, out, nil
}

// holds reports whether what a repeated Take got of the limits with slots is still its
// own. A slot that was released or has expired may be somebody else's by now: then the
// request is a new one, and takes everything anew.
func (t Take) holds(first record, packed [][]byte) (bool, error) {
	for i, b := range t.Buckets {
		if b.Rule.Algorithm != Concurrency {
			continue
		}
		slots, _, err := b.Rule.unpackSlots(packed[i], t.Now)
		if err != nil {
			return false, fmt.Errorf("bucket %d: %w", i, err)
		}
		if !slices.ContainsFunc(slots, func(s slot) bool { return s.id == first.slotID }) {
			return false, nil
		}
	}
	return true, nil
}

// repeat answers a Take that was done before: it takes nothing, and has what the first
// one got. Where that is pending it stays from now on, unless this Take is pending too.
func (t Take) repeat(first record, packed [][]byte) (Next, Outcome, error) {
	next := Next{States: make([]State, len(t.Buckets))}
	out := Outcome{Allowed: true, Verdicts: make([]Verdict, len(t.Buckets)), SlotID: first.slotID, Repeated: true, Pending: first.pending && t.Pending}
	if err := t.apply(0, packed, next.States, out.Verdicts); err != nil {
		return Next{}, Outcome{}, err
	}
	for i, b := range t.Buckets {
		if b.Rule.Algorithm == LeakyBucket {
			out.Verdicts[i].Delay = micros(max(0, first.turn-t.Now))
		}
	}
	if !first.pending || t.Pending || t.Repeat {
		return Next{}, out, nil
	}
	settled := Give{Buckets: t.Buckets, Cost: t.Cost, Now: t.Now, Charged: first.at, Ends: Settled}
	for i := range t.Buckets {
		var err error
		if next.States[i], _, err = settled.back(i, packed); err != nil {
			return Next{}, Outcome{}, err
		}
	}
	first.pending = false
	next.Record = first.state()
	return next, out, nil
}

// apply charges every bucket with cost. A cost of 0 leaves waits and delays as they
// are: they are those of the cost that was refused.
func (t Take) apply(cost int64, packed [][]byte, next []State, verdicts []Verdict) error {
	for i, b := range t.Buckets {
		state, v, err := b.Rule.next(packed[i], t, b.CostOf(cost))
		if err != nil {
			return fmt.Errorf("bucket %d: %w", i, err) // a key holds ids, which belong in no log
		}
		if cost == 0 {
			v.Wait, v.Delay = verdicts[i].Wait, verdicts[i].Delay
		}
		verdicts[i] = v
		if next != nil {
			next[i] = state
		}
	}
	return nil
}

// Decide is the whole decision: it returns what to store, and the outcome without
// its Source.
func (g Give) Decide(s Stored) (Next, Outcome, error) {
	return g.Bind.before(s, g.Now, len(g.Buckets), g.decide)
}

func (g Give) decide(s Stored) (Next, Outcome, error) {
	first, found, err := unpackRecord(s.Record, g.Now)
	if err != nil {
		return Next{}, Outcome{}, err
	}
	repeated := found
	if g.Ends != "" {
		repeated = g.Record != "" && (!found || !first.pending || first.at != g.Charged)
	}
	next := Next{States: make([]State, len(g.Buckets))}
	out := Outcome{Allowed: true, Verdicts: make([]Verdict, len(g.Buckets)), Repeated: repeated}
	if repeated {
		g.Cost, g.SlotID = 0, ""
	}
	for i := range g.Buckets {
		if next.States[i], out.Verdicts[i], err = g.back(i, s.Packed); err != nil {
			return Next{}, Outcome{}, err
		}
		if repeated { // it changes nothing, not even a state that a set clock has left odd
			next.States[i] = State{}
		}
	}
	switch {
	case g.Record == "" || repeated:
	case g.Ends == Undone:
		next.Record = State{Gone: true}
	case g.Ends == Settled:
		first.pending = false
		next.Record = first.state()
	default:
		next.Record = record{at: g.Now, turn: g.Now}.state()
	}
	return next, out, nil
}

// back puts into the bucket i what there is for it.
func (g Give) back(i int, packed [][]byte) (State, Verdict, error) {
	g.Cost = g.Buckets[i].CostOf(g.Cost)
	state, v, err := g.Buckets[i].Rule.Back(packed[i], g)
	if err != nil {
		return State{}, Verdict{}, fmt.Errorf("bucket %d: %w", i, err)
	}
	return state, v, nil
}

// Next charges one bucket with cost, 0 to Burst, unless it must wait for that, and
// leaves what is stored alone where nothing changes. It fails on a packed state
// that no Next has written.
func (r Rule) Next(packed []byte, now, cost int64, slotID string) (State, Verdict, error) {
	return r.next(packed, Take{Now: now, SlotID: slotID}, cost)
}

func (r Rule) next(packed []byte, t Take, cost int64) (State, Verdict, error) {
	switch r.Algorithm {
	case TokenBucket, GCRA, LeakyBucket:
		return r.nextDebt(packed, t, cost)
	case FixedWindow, SlidingWindowCounter:
		return r.nextWindow(packed, t.Now, cost)
	case SlidingWindowLog:
		return r.nextLog(packed, t.Now, cost)
	case Concurrency:
		return r.nextSlots(packed, t.Now, cost, t.SlotID)
	default:
		return State{}, Verdict{}, fmt.Errorf("no algorithm %q", r.Algorithm)
	}
}

// Back puts into one bucket what the Give has for it.
func (r Rule) Back(packed []byte, g Give) (State, Verdict, error) {
	if g.Ends == Settled && !r.Algorithm.refills() { // these have it as they keep it
		g.Cost, g.SlotID = 0, ""
	}
	switch r.Algorithm {
	case TokenBucket, GCRA, LeakyBucket:
		return r.backDebt(packed, g)
	case FixedWindow, SlidingWindowCounter:
		return r.backWindow(packed, g)
	case SlidingWindowLog:
		return r.backLog(packed, g)
	case Concurrency:
		return r.backSlots(packed, g)
	default:
		return State{}, Verdict{}, fmt.Errorf("no algorithm %q", r.Algorithm)
	}
}

// Window is the time in which a limit that was used up is full again, in microseconds rounded up.
func (r Rule) Window() time.Duration {
	if r.Algorithm.refills() {
		return micros(r.price(r.Burst).ceil())
	}
	return micros(r.Per)
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// mulDiv is a × b / c, rounded down, and the rest. No argument is negative, c is
// positive, and the quotient fits 63 bits.
//
//nolint:gosec // see above
func mulDiv(a, b, c int64) (quo, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q), int64(r)
}

// mulDivCeil is a × b / c, rounded up.
func mulDivCeil(a, b, c int64) int64 {
	quo, rem := mulDiv(a, b, c)
	if rem > 0 {
		return quo + 1
	}
	return quo
}

// A Price is the time in which some units come back: MicroSeconds, and Rest of the
// Count-th parts of one more.
type Price struct{ MicroSeconds, Rest int64 }

// Price is what n units, 0 to Burst, cost under a rule of a token bucket, GCRA or a leaky bucket.
func (r Rule) Price(n int64) Price {
	s := r.price(n)
	return Price{s.us, s.rest}
}

// RequestMemory is how long a request id is known.
const RequestMemory = 10 * time.Minute
