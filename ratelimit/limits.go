package ratelimit

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Posture says what a policy answers while its store is unreachable. Where the stage
// lets no refusal count, none does then.
type Posture string

// The postures.
const (
	FailOpen   Posture = "fail_open"   // the request passes, and takes nothing
	FailClosed Posture = "fail_closed" // the request is refused with a [*ClosedError]
	Local      Posture = "local"       // this process decides alone, by the policy's Local numbers
)

// Stage says whose refusals count.
type Stage string

// The stages, in the order of a rollout. Where a refusal does not count, the
// request passes and takes nothing, and the answer names the limit that refused.
const (
	Shadow  Stage = "shadow"  // nobody's
	Warn    Stage = "warn"    // nobody's, and the answer says how far over the limit it was
	Canary  Stage = "canary"  // those of some percent of the identities, always the same ones
	Enforce Stage = "enforce" // everybody's
)

// Algorithm names how a limit counts.
type Algorithm string

// The algorithms. docs/algorithms.md compares them.
const (
	// TokenBucket refills at a constant rate up to a burst. Whatever the callers do,
	// at most burst + rate·t units pass within any time t: with 17 per 30 s and a
	// burst of 17 that is up to 34 within 30 s, 17 at once and 17 as they come back.
	TokenBucket Algorithm = "token_bucket"
	// GCRA is the generic cell rate algorithm (ITU-T I.371). Counted exactly it admits
	// what a token bucket admits, and so both are one and share their state.
	GCRA Algorithm = "gcra"
	// FixedWindow counts in windows that follow each other from 1970 on. Up to twice
	// the rate passes around a boundary.
	FixedWindow Algorithm = "fixed_window"
	// SlidingWindowCounter counts in the same windows, and the last one in proportion
	// to how much of it the sliding window still covers, rounded up.
	SlidingWindowCounter Algorithm = "sliding_window_counter"
	// SlidingWindowLog keeps every charge: within no window, wherever it begins, passes
	// more than the rate.
	SlidingWindowLog Algorithm = "sliding_window_log"
	// LeakyBucket shapes: what passes is told how long to wait so that all of it
	// together flows at the rate, and what would overflow the queue is refused.
	LeakyBucket Algorithm = "leaky_bucket"
	// Concurrency hands out slots, which come back by a release or when they expire.
	Concurrency Algorithm = "concurrency"
)

// A Rate is Count units per Per.
type Rate struct {
	Count int64         // 1 to 10^9
	Per   time.Duration // 1 ms to 366 days, in whole microseconds
}

// Numbers are what a limit allows. Which of them a limit has depends on its algorithm; the others are zero.
type Numbers struct {
	Rate    Rate          // all algorithms but Concurrency; with SlidingWindowLog a Count of at most MaxEntries
	Burst   int64         // TokenBucket and GCRA: units that pass at once from full, 1 to 10^9
	Queue   int64         // LeakyBucket: units in the bucket at once, 1 to 10^9, among them those that pass without waiting
	Slots   int64         // Concurrency: units held at once, 1 to MaxEntries
	SlotTTL time.Duration // Concurrency: until a slot comes back by itself, 1 ms to 366 days, in whole microseconds
}

// MaxEntries is how many charges or slots one bucket keeps apart, so that none
// grows beyond some tens of kilobytes.
const MaxEntries = 1000

// A Limit is one rule of a policy.
//
// Every rate in its range is counted exactly, without floating point and
// without rounding from one request to the next. One bound ties Burst and Queue to
// Rate: an empty bucket must be full again within 36,600 days, so that its state
// fits integers of 53 bits, which is all that a script inside a store may have. A
// rate of 1 per 365 days allows a burst of 100.
type Limit struct {
	Name      string   // a-z, 0-9 and -, unique within the policy
	Key       []string // the descriptors that tell buckets apart, 1 to 16; a request must have them all
	Algorithm Algorithm
	Numbers
	Overrides []Override
	// Shards, where not 0, splits each bucket of the limit into so many, 2 to MaxShards,
	// with a share each of the rate and of the capacity: for a key that one part of a
	// partitioned store cannot carry. Together they let no more pass than the limit says. A
	// request meets one of them, by those of its descriptors that Key does not name, and is
	// refused where that has nothing left although others may have; no cost above a share passes.
	// Not for LeakyBucket and Concurrency. With another number of shards a limit begins anew in part.
	Shards int
}

// An Override replaces the numbers of a limit for the requests that it matches.
// Of several that match the one with the most exact matches counts, then the one
// with the longest prefixes, then the first.
type Override struct {
	// Match holds for every descriptor named, of the limit's key, its whole value,
	// or the beginning of it and a *.
	Match   map[string]string
	Numbers // zero fields are the limit's own
}

// A LocalRate is what a node allows by itself while the store is unreachable, to
// each identity of the policy's first limit.
type LocalRate struct {
	Rate  Rate
	Burst int64
}

// A Policy is a named set of limits that must all allow.
type Policy struct {
	Name        string // a-z, 0-9 and -, unique
	Owner       string // for people, "" or up to 256 bytes
	Posture     Posture
	Local       LocalRate // with posture Local; zero means the first limit's own numbers
	Stage       Stage
	Percent     int64     // with stage Canary: 1 to 99
	EnforceFrom time.Time // with stage Warn: the date that is announced, if not zero
	// Slot names the descriptors whose values decide on which part of a partitioned
	// store the policy's limits lie; none means all of the first limit's key. The
	// limits whose keys have them all are decided in one step.
	Slot []string
	Mode Mode // zero is Exact
	// MaxOvershoot is with mode Leased how many units all nodes may hold together of each
	// bucket, 5 to 10,000: so many more than a limit says may pass at most.
	MaxOvershoot int64
	Limits       []Limit
}

// algorithms are all, in the order in which they are shown.
var algorithms = [...]Algorithm{TokenBucket, GCRA, FixedWindow, SlidingWindowCounter, SlidingWindowLog, LeakyBucket, Concurrency}

func (a Algorithm) known() bool { return slices.Contains(algorithms[:], a) }

func algorithmNames() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = string(a)
	}
	return names
}

// refills reports whether the state is a debt that time pays off.
func (a Algorithm) refills() bool { return a == TokenBucket || a == GCRA || a == LeakyBucket }

// capacity is the largest cost that could ever pass.
func (l Limit) capacity() int64 {
	switch l.Algorithm {
	case LeakyBucket:
		return l.Queue
	case Concurrency:
		return l.Slots
	case FixedWindow, SlidingWindowCounter, SlidingWindowLog:
		return l.Rate.Count
	case TokenBucket, GCRA:
	}
	return l.Burst
}

func (l Limit) rule() Rule {
	if l.Algorithm == Concurrency {
		return Rule{Algorithm: l.Algorithm, Count: l.Slots, Per: l.SlotTTL.Microseconds(), Burst: l.Slots}
	}
	return Rule{Algorithm: l.Algorithm, Count: l.Rate.Count, Per: l.Rate.Per.Microseconds(), Burst: l.capacity()}
}

// with replaces those of the limit's numbers that are not zero in n.
func (l Limit) with(n Numbers) Numbers {
	return Numbers{
		Rate:    cmp.Or(n.Rate, l.Rate),
		Burst:   cmp.Or(n.Burst, l.Burst),
		Queue:   cmp.Or(n.Queue, l.Queue),
		Slots:   cmp.Or(n.Slots, l.Slots),
		SlotTTL: cmp.Or(n.SlotTTL, l.SlotTTL),
	}
}

func (r LocalRate) numbers() Numbers { return Numbers{Rate: r.Rate, Burst: r.Burst} }

// A fit says how well an override matches: 0, 0 is a match by "*" alone.
type fit struct{ exact, prefix int }

// matches reports whether the override holds for the descriptors, and how well it fits.
func (o Override) matches(descriptors map[string]string) (f fit, ok bool) {
	for name, want := range o.Match {
		value := descriptors[name]
		prefix, open := strings.CutSuffix(want, "*")
		switch {
		case !open && value == want:
			f.exact++
		case open && strings.HasPrefix(value, prefix):
			f.prefix += len(prefix)
		default:
			return fit{}, false
		}
	}
	return f, true
}

// override finds the override that counts for the descriptors, -1 for none.
func (l Limit) override(descriptors map[string]string) int {
	best, found := fit{}, -1
	for i, o := range l.Overrides {
		f, ok := o.matches(descriptors)
		if ok && (found < 0 || f.exact > best.exact || (f.exact == best.exact && f.prefix > best.prefix)) {
			best, found = f, i
		}
	}
	return found
}
