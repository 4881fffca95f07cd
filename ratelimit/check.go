package ratelimit

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// Bounds of a policy. They keep every number of the arithmetic within 53 bits.
const (
	maxCount  = 1_000_000_000
	minPer    = time.Millisecond
	maxPer    = 366 * 24 * time.Hour
	maxBurst  = 1_000_000_000
	maxKeyed  = 16 // descriptors in a limit's key, so that the longest bucket key has 9 KB
	maxRefill = 36_600 * 24 * time.Hour
)

// mistakes collects what is wrong.
type mistakes []error

func (m *mistakes) add(err error) {
	if err != nil {
		*m = append(*m, err)
	}
}

// addAll adds what is wrong with a part.
func (m *mistakes) addAll(what, name string, part mistakes) {
	for _, err := range part {
		m.add(fmt.Errorf("%s %q: %w", what, name, err))
	}
}

func (p Policy) mistakes() (wrong mistakes) {
	wrong.add(checkName(p.Name))
	if p.Owner != "" {
		wrong.add(keytype.CheckID("owner", p.Owner))
	}
	switch p.Posture {
	case FailOpen, FailClosed, Local:
	default:
		wrong.add(fmt.Errorf("posture %q must be %s, %s or %s", p.Posture, FailOpen, FailClosed, Local))
	}
	p.checkStage(&wrong)
	p.checkLocal(&wrong)
	p.checkSlot(&wrong)
	p.checkMode(&wrong)
	p.checkShards(&wrong)
	if len(p.Limits) == 0 {
		wrong.add(errors.New("has no limit"))
	}
	for i, limit := range p.Limits {
		bad := limit.mistakes()
		if slices.ContainsFunc(p.Limits[:i], func(other Limit) bool { return other.Name == limit.Name }) {
			bad.add(errors.New("another limit has this name"))
		}
		wrong.addAll("limit", limit.Name, bad)
	}
	return wrong
}

func (p Policy) checkStage(wrong *mistakes) {
	switch p.Stage {
	case Shadow, Warn, Canary, Enforce:
	default:
		wrong.add(fmt.Errorf("stage %q must be %s, %s, %s or %s", p.Stage, Shadow, Warn, Canary, Enforce))
	}
	if p.Stage == Canary {
		wrong.add(keytype.CheckRange("canary percent", p.Percent, 1, 99))
	} else if p.Percent != 0 {
		wrong.add(fmt.Errorf("a percentage belongs to stage %s", Canary))
	}
	if p.Stage != Warn && !p.EnforceFrom.IsZero() {
		wrong.add(fmt.Errorf("a date of enforcement belongs to stage %s", Warn))
	}
}

func (p Policy) checkLocal(wrong *mistakes) {
	switch {
	case p.Local == LocalRate{}:
		if p.Posture == Local && len(p.Limits) > 0 && p.Limits[0].Algorithm == Concurrency {
			wrong.add(fmt.Errorf("posture %s needs a local rate: the first limit has none", Local))
		}
	case p.Posture != Local:
		wrong.add(fmt.Errorf("a local rate belongs to posture %s", Local))
	default:
		wrong.addAll("local rate", "", Limit{Algorithm: TokenBucket, Numbers: p.Local.numbers()}.checkNumbers())
	}
}

func (p Policy) checkSlot(wrong *mistakes) {
	for i, name := range p.Slot {
		if slices.Contains(p.Slot[:i], name) {
			wrong.add(fmt.Errorf("slot names %q twice", name))
		}
		if len(p.Limits) > 0 && !slices.Contains(p.Limits[0].Key, name) {
			wrong.add(fmt.Errorf("slot names %q, which the first limit's key lacks", name))
		}
	}
}

// checkMode refuses what cannot be leased. What shapes says to each request when its turn
// is, and a slot is one request's own. A batch is taken in one step, so all limits lie in one slot.
func (p Policy) checkMode(wrong *mistakes) {
	switch p.Mode {
	case "", Exact:
		if p.MaxOvershoot != 0 {
			wrong.add(fmt.Errorf("max_overshoot belongs to mode %s", Leased))
		}
		return
	case Leased:
	default:
		wrong.add(fmt.Errorf("mode %q must be %s or %s", p.Mode, Exact, Leased))
		return
	}
	wrong.add(keytype.CheckRange("max_overshoot", p.MaxOvershoot, tokenlease.MinBatch, maxOvershoot))
	for _, l := range p.Limits {
		if l.Algorithm == LeakyBucket || l.Algorithm == Concurrency {
			wrong.add(fmt.Errorf("mode %s is not for limit %s: its algorithm is %s", Leased, l.Name, l.Algorithm))
		}
		if !p.inSlot(l) {
			wrong.add(fmt.Errorf("mode %s needs all limits in one slot: slot must name descriptors that limit %s has, too", Leased, l.Name))
		}
	}
}

func (l Limit) mistakes() (wrong mistakes) {
	wrong.add(checkName(l.Name))
	l.checkKey(&wrong)
	if !l.Algorithm.known() {
		wrong.add(fmt.Errorf("algorithm %q must be one of %s", l.Algorithm, strings.Join(algorithmNames(), ", ")))
		return wrong
	}
	wrong = append(wrong, l.checkNumbers()...)
	wrong = append(wrong, l.checkShards()...)
	for i, o := range l.Overrides {
		wrong.addAll("override", fmt.Sprint(i+1), l.overrideMistakes(o))
	}
	return wrong
}

func (l Limit) checkKey(wrong *mistakes) {
	if len(l.Key) == 0 || len(l.Key) > maxKeyed {
		wrong.add(fmt.Errorf("key must name 1 to %d descriptors", maxKeyed))
	}
	for i, name := range l.Key {
		wrong.add(keytype.CheckID("key descriptor", name))
		if slices.Contains(l.Key[:i], name) {
			wrong.add(fmt.Errorf("key names %q twice", name))
		}
	}
}

func (l Limit) overrideMistakes(o Override) (wrong mistakes) {
	if len(o.Match) == 0 {
		wrong.add(errors.New("matches no descriptor"))
	}
	for name, value := range o.Match {
		if !slices.Contains(l.Key, name) {
			wrong.add(fmt.Errorf("matches %q, which the key lacks", name))
		}
		wrong.add(keytype.CheckID("match", value))
		if strings.Contains(strings.TrimSuffix(value, "*"), "*") {
			wrong.add(fmt.Errorf("match %q: a * may only stand at the end", value))
		}
	}
	if o.Numbers == (Numbers{}) {
		wrong.add(errors.New("changes nothing"))
	}
	l.Numbers = l.with(o.Numbers)
	return append(append(wrong, l.checkNumbers()...), l.checkShards()...)
}

// checkNumbers checks that the limit has the numbers of its algorithm, in range, and no others.
func (l Limit) checkNumbers() (wrong mistakes) {
	n := l.Numbers
	if l.Algorithm == Concurrency {
		wrong.add(keytype.CheckRange("slots", n.Slots, 1, MaxEntries))
		wrong.add(checkPeriod("slot_ttl", n.SlotTTL))
	} else {
		wrong.add(keytype.CheckRange("rate count", n.Rate.Count, 1, l.largestCount()))
		wrong.add(checkPeriod("rate per", n.Rate.Per))
	}
	switch l.Algorithm {
	case TokenBucket, GCRA:
		wrong.add(keytype.CheckRange("burst", n.Burst, 1, maxBurst))
	case LeakyBucket:
		wrong.add(keytype.CheckRange("queue", n.Queue, 1, maxBurst))
	case FixedWindow, SlidingWindowCounter, SlidingWindowLog, Concurrency:
	}
	if len(wrong) == 0 && l.Algorithm.refills() && l.rule().tooSlow() {
		wrong.add(fmt.Errorf("a burst of %d at %d per %v takes more than 36,600 days to come back", l.capacity(), n.Rate.Count, n.Rate.Per))
	}
	wrong.add(l.foreignNumber())
	return wrong
}

// foreignNumber refuses a number that the algorithm does not have.
func (l Limit) foreignNumber() error {
	n, a := l.Numbers, l.Algorithm
	for _, f := range []struct {
		name  string
		alien bool
	}{
		{"rate", n.Rate != Rate{} && a == Concurrency},
		{"burst", n.Burst != 0 && a != TokenBucket && a != GCRA},
		{"queue", n.Queue != 0 && a != LeakyBucket},
		{"slots", n.Slots != 0 && a != Concurrency},
		{"slot_ttl", n.SlotTTL != 0 && a != Concurrency},
	} {
		if f.alien {
			return fmt.Errorf("%s has no %s", a, f.name)
		}
	}
	return nil
}

func (l Limit) largestCount() int64 {
	if l.Algorithm == SlidingWindowLog {
		return MaxEntries
	}
	return maxCount
}

func checkPeriod(what string, d time.Duration) error {
	if d < minPer || d > maxPer || d%time.Microsecond != 0 {
		return fmt.Errorf("%s %v must be from 1 ms to 366 days, in whole microseconds", what, d)
	}
	return nil
}

// tooSlow reports whether an empty bucket needs longer than maxRefill until it is full.
func (r Rule) tooSlow() bool {
	needed := new(big.Int).Mul(big.NewInt(r.Burst), big.NewInt(r.Per))
	return needed.Cmp(new(big.Int).Mul(big.NewInt(maxRefill.Microseconds()), big.NewInt(r.Count))) > 0
}

func checkName(name string) error {
	if name == "" || len(name) > keytype.MaxID || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("name must be 1 to %d of a-z, 0-9 and -", keytype.MaxID)
	}
	return nil
}
