package ratelimit

import (
	"fmt"
	"time"
)

// A Rule is a limit reduced to its numbers.
type Rule struct {
	Algorithm  Algorithm
	Count, Per int64 // Count units in every Per microseconds
	Burst      int64
}

// A Bucket is what one limit of a policy counts for one request.
type Bucket struct {
	Key  string // of type keytype.RateBucket
	Rule Rule
}

// A Take asks for Cost units from every bucket, or from none.
type Take struct {
	Buckets []Bucket // with distinct keys
	Cost    int64    // 1 to the smallest Burst of the rules
	Now     int64    // microseconds since 1970, up to 2^53
	Peek    bool     // decide, and take nothing
}

// A State is what a store keeps of one bucket from now on. The zero State means
// that what it has may stay.
type State struct {
	Packed []byte
	Full   int64 // microseconds since 1970: from then on this state and no state say the same
}

// A Verdict is what one rule says of its bucket.
type Verdict struct {
	Remaining int64         // whole units left
	Wait      time.Duration // until the rule lets the same cost pass, in microseconds rounded up; 0 where it does now
	Reset     time.Duration // until the bucket is full, in microseconds rounded up
}

// An Outcome is a store's answer to a Take.
type Outcome struct {
	Allowed  bool
	Verdicts []Verdict // by bucket, of what is left after the Take
	Source   Source
}

// Decide is the whole decision, given the packed state of every bucket, nil where
// there is none: it returns the states to store, none for a Peek, and the outcome
// without its Source. Every store does as this function does.
func (t Take) Decide(packed [][]byte) ([]State, Outcome, error) {
	next := make([]State, len(t.Buckets))
	out := Outcome{Allowed: true, Verdicts: make([]Verdict, len(t.Buckets))}
	if err := t.apply(t.Cost, packed, next, out.Verdicts); err != nil {
		return nil, Outcome{}, err
	}
	for _, v := range out.Verdicts {
		out.Allowed = out.Allowed && v.Wait == 0
	}
	if !out.Allowed || t.Peek {
		if err := t.apply(0, packed, next, out.Verdicts); err != nil {
			return nil, Outcome{}, err
		}
	}
	if t.Peek {
		next = nil
	}
	return next, out, nil
}

// apply charges every bucket with cost. A cost of 0 leaves the waits as they are:
// they are those of the cost that was refused.
func (t Take) apply(cost int64, packed [][]byte, next []State, verdicts []Verdict) error {
	for i, b := range t.Buckets {
		state, v, err := b.Rule.Next(packed[i], t.Now, cost)
		if err != nil {
			return fmt.Errorf("bucket %d: %w", i, err) // a key holds ids, which belong in no log
		}
		if cost == 0 {
			v.Wait = verdicts[i].Wait
		}
		next[i], verdicts[i] = state, v
	}
	return nil
}

// Next charges one bucket with cost, 0 to Burst, unless it must wait for that, and
// leaves what is stored alone where nothing changes. It fails on a packed state
// that no Next has written.
func (r Rule) Next(packed []byte, now, cost int64) (State, Verdict, error) {
	switch r.Algorithm {
	case TokenBucket:
		return r.nextTokenBucket(packed, now, cost)
	default:
		return State{}, Verdict{}, fmt.Errorf("no algorithm %q", r.Algorithm)
	}
}

// Window is the time in which the burst comes back, in microseconds rounded up.
func (r Rule) Window() time.Duration { return micros(r.price(r.Burst).ceil()) }

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
