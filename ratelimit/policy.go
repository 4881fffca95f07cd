package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
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

// A policy is a Policy that was found correct, made ready for deciding.
type policy struct {
	Policy
	rules    []Rule // of the limits, in their order
	tightest int    // the limit with the smallest burst: a cost that it can admit, all can
}

// compile checks the policies and makes them ready, by name. Its error names every mistake.
func compile(policies []Policy) (map[string]*policy, error) {
	compiled := make(map[string]*policy, len(policies))
	var wrong mistakes
	for _, p := range policies {
		bad := p.mistakes()
		if _, taken := compiled[p.Name]; taken {
			bad.add(errors.New("another policy has this name"))
		}
		wrong.addAll("ratelimit: policy", p.Name, bad)
		compiled[p.Name] = p.ready()
	}
	return compiled, errors.Join(wrong...)
}

func (p Policy) ready() *policy {
	c := &policy{Policy: p.clone()}
	for i, limit := range c.Limits {
		c.rules = append(c.rules, limit.rule())
		if limit.Burst < c.Limits[c.tightest].Burst {
			c.tightest = i
		}
	}
	return c
}

func (l Limit) rule() Rule {
	return Rule{Algorithm: l.Algorithm, Count: l.Rate.Count, Per: l.Rate.Per.Microseconds(), Burst: l.Burst}
}

func (p Policy) clone() Policy {
	p.Limits = slices.Clone(p.Limits)
	for i := range p.Limits {
		p.Limits[i].Key = slices.Clone(p.Limits[i].Key)
	}
	return p
}

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
	switch p.Posture {
	case FailOpen, FailClosed, Local:
	default:
		wrong.add(fmt.Errorf("posture %q must be %s, %s or %s", p.Posture, FailOpen, FailClosed, Local))
	}
	if p.Stage != Enforce {
		wrong.add(fmt.Errorf("stage %q must be %s", p.Stage, Enforce))
	}
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

func (l Limit) mistakes() (wrong mistakes) {
	wrong.add(checkName(l.Name))
	l.checkKey(&wrong)
	if l.Algorithm != TokenBucket {
		wrong.add(fmt.Errorf("algorithm %q must be %s", l.Algorithm, TokenBucket))
	}
	l.checkNumbers(&wrong)
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

func (l Limit) checkNumbers(wrong *mistakes) {
	before := len(*wrong)
	wrong.add(keytype.CheckRange("rate count", l.Rate.Count, 1, maxCount))
	if l.Rate.Per < minPer || l.Rate.Per > maxPer || l.Rate.Per%time.Microsecond != 0 {
		wrong.add(fmt.Errorf("rate per %v must be from 1 ms to 366 days, in whole microseconds", l.Rate.Per))
	}
	wrong.add(keytype.CheckRange("burst", l.Burst, 1, maxBurst))
	if len(*wrong) == before && l.rule().slowerThan(maxRefill) {
		wrong.add(fmt.Errorf("a burst of %d at %d per %v takes more than 36,600 days to come back", l.Burst, l.Rate.Count, l.Rate.Per))
	}
}

// slowerThan reports whether an empty bucket needs longer than d until it is full.
func (r Rule) slowerThan(d time.Duration) bool {
	needed := new(big.Int).Mul(big.NewInt(r.Burst), big.NewInt(r.Per))
	return needed.Cmp(new(big.Int).Mul(big.NewInt(d.Microseconds()), big.NewInt(r.Count))) > 0
}

func checkName(name string) error {
	if name == "" || len(name) > keytype.MaxID || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("name must be 1 to %d of a-z, 0-9 and -", keytype.MaxID)
	}
	return nil
}

// version is a short hash of the policies in their given order.
func version(policies []Policy) (string, error) {
	canonical, err := json.Marshal(policies)
	if err != nil {
		return "", fmt.Errorf("hash the policies: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:8]), nil
}

// buckets says which buckets the request draws from.
func (p *policy) buckets(tenant string, req Request) ([]Bucket, error) {
	buckets := make([]Bucket, len(p.Limits))
	for i, limit := range p.Limits {
		key, err := limit.bucketKey(req.Descriptors)
		if err != nil {
			return nil, err
		}
		buckets[i] = Bucket{Key: keytype.RateBucket.Key(tenant, p.Name, limit.Name, key), Rule: p.rules[i]}
	}
	if tightest := p.Limits[p.tightest]; req.Cost > tightest.Burst {
		return nil, &CostError{LimitName: tightest.Name, Capacity: tightest.Burst}
	}
	return buckets, nil
}

// bucketKey joins the limit's descriptors, each name and value behind its length,
// so that no two sets of descriptors share a bucket.
func (l Limit) bucketKey(descriptors map[string]string) (string, error) {
	key := make([]byte, 0, 128)
	for _, name := range l.Key {
		value, ok := descriptors[name]
		if !ok {
			return "", descriptorError("lack %q, which limit %s needs", name, l.Name)
		}
		key = appendPart(appendPart(key, name), value)
	}
	return string(key), nil
}

func appendPart(key []byte, part string) []byte {
	key = strconv.AppendInt(key, int64(len(part)), 10)
	key = append(key, ':')
	return append(key, part...)
}

// decision puts the store's answer into the words of the policy.
func (p *policy) decision(out Outcome) Decision {
	d := Decision{
		Allowed: out.Allowed, Policy: p.Name, Stage: p.Stage, Source: out.Source,
		Limits: make([]LimitState, len(p.Limits)),
	}
	for i, v := range out.Verdicts {
		limit := &p.Limits[i]
		d.Limits[i] = LimitState{
			Name: limit.Name, Algorithm: limit.Algorithm, Limit: limit.Burst,
			Remaining: v.Remaining, Reset: ceilMS(v.Reset), Window: ceilMS(p.rules[i].Window()),
		}
		if v.Wait > d.RetryAfter {
			d.Limiting, d.RetryAfter = limit.Name, v.Wait
		}
	}
	d.RetryAfter = ceilMS(d.RetryAfter)
	return d
}

// ceilMS rounds up to whole milliseconds, so that what is promised for an instant holds at it.
func ceilMS(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
