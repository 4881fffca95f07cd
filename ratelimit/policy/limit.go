package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A placed limit knows where it stands.
type placed struct {
	ratelimit.Limit
	at object
}

func (r *reader) limits(of object) []placed {
	if !r.require(of, "limits") {
		return nil
	}
	var all []placed
	for _, v := range r.list(of.at("limits")) {
		l := r.limit(v)
		same := slices.IndexFunc(all, func(other placed) bool { return other.Name == l.Name && other.at.has("name") })
		if same >= 0 && l.at.has("name") {
			r.wrongAt(l.at.at("name"), "%q is the name of the limit in line %d, too", l.Name, all[same].at.at("name").line)
		}
		all = append(all, l)
	}
	return all
}

// numberFields are the fields of each algorithm. All are required but the burst.
var numberFields = map[ratelimit.Algorithm][]string{
	ratelimit.TokenBucket:          {"rate", "burst"},
	ratelimit.GCRA:                 {"rate", "burst"},
	ratelimit.FixedWindow:          {"rate"},
	ratelimit.SlidingWindowCounter: {"rate"},
	ratelimit.SlidingWindowLog:     {"rate"},
	ratelimit.LeakyBucket:          {"rate", "queue"},
	ratelimit.Concurrency:          {"slots", "slot_ttl"},
}

func has(a ratelimit.Algorithm, field string) bool { return slices.Contains(numberFields[a], field) }

func (r *reader) limit(v value) placed {
	o := r.object(v, "name", "key", "algorithm", "rate", "burst", "queue", "slots", "slot_ttl", "shards", "overrides")
	l := ratelimit.Limit{Name: r.requiredText(o, "name", "x"), Key: []string{"x"}}
	if r.require(o, "key") {
		if key := r.texts(o.at("key"), "x"); key != nil {
			l.Key = key
		}
	}
	known := r.algorithm(o, &l)
	if known {
		for _, field := range numberFields[l.Algorithm] {
			if field != "burst" {
				r.require(o, field)
			}
		}
		l.Numbers = whole(l.Algorithm, r.numbers(o, l.Algorithm))
	}
	if known && o.has("shards") {
		before := len(r.wrong)
		if n := r.integer(o.at("shards")); len(r.wrong) == before {
			l.Shards = int(cmp.Or(n, 1)) // to the limiter 0 is none
		}
	}
	right := r.judge(withLimit(l), o)
	if known && o.has("overrides") {
		l.Overrides = r.overrides(o, l, right)
	}
	return placed{l, o}
}

// algorithm reads the limit's, and reports whether it is one. Where it is not, the
// limit goes on with another, and its numbers are left unread.
func (r *reader) algorithm(o object, l *ratelimit.Limit) bool {
	l.Algorithm = ratelimit.Algorithm(r.requiredText(o, "algorithm", ""))
	if _, known := numberFields[l.Algorithm]; known {
		return true
	}
	if l.Algorithm != "" {
		r.wrongAt(o.at("algorithm"), "must be token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log, leaky_bucket or concurrency")
	}
	l.Algorithm, l.Numbers = ratelimit.TokenBucket, whole(ratelimit.TokenBucket, ratelimit.Numbers{})
	return false
}

// numbers reads those of the algorithm's fields that are there.
func (r *reader) numbers(o object, a ratelimit.Algorithm) (n ratelimit.Numbers) {
	for field, read := range map[string]func(v value){
		"rate":     func(v value) { n.Rate = r.rate(v) },
		"burst":    func(v value) { n.Burst = r.count(v) },
		"queue":    func(v value) { n.Queue = r.count(v) },
		"slots":    func(v value) { n.Slots = r.count(v) },
		"slot_ttl": func(v value) { n.SlotTTL = r.duration(v) },
	} {
		switch {
		case !o.has(field):
		case has(a, field):
			read(o.at(field))
		default:
			r.wrongAt(o.at(field), "is no field of %s, which has %s", a, strings.Join(numberFields[a], " and "))
		}
	}
	return n
}

// count reads an integer from 1: to the limiter 0 means that there is none.
func (r *reader) count(v value) int64 {
	n := r.integer(v)
	if n < 1 {
		r.wrongAt(v, "must be at least 1")
		return 1
	}
	return n
}

// mostUnits is the largest burst. A larger count is said of the rate, once.
const mostUnits = 1_000_000_000

// whole puts in what is missing: the burst, which is the rate's count, and in place
// of numbers that are required some that are right.
func whole(a ratelimit.Algorithm, n ratelimit.Numbers) ratelimit.Numbers {
	if has(a, "rate") {
		n.Rate = cmp.Or(n.Rate, ratelimit.Rate{Count: 1, Per: time.Second})
	}
	if has(a, "burst") {
		n.Burst = cmp.Or(n.Burst, min(n.Rate.Count, mostUnits))
	}
	if has(a, "queue") {
		n.Queue = cmp.Or(n.Queue, 1)
	}
	if has(a, "slots") {
		n.Slots, n.SlotTTL = cmp.Or(n.Slots, 1), cmp.Or(n.SlotTTL, time.Second)
	}
	return n
}

// overrides reads those of a limit. They are judged with the limit's own numbers,
// and so only where those are right.
func (r *reader) overrides(of object, l ratelimit.Limit, right bool) []ratelimit.Override {
	var all []ratelimit.Override
	for _, v := range r.list(of.at("overrides")) {
		o := r.object(v, "match", "rate", "burst", "queue", "slots", "slot_ttl")
		override := ratelimit.Override{Match: r.match(o, l.Key[0]), Numbers: r.numbers(o, l.Algorithm)}
		if has(l.Algorithm, "burst") && !of.has("burst") && override.Burst == 0 {
			override.Burst = override.Rate.Count // no burst is written, so it follows the rate here as there
		}
		if right {
			l.Overrides = []ratelimit.Override{override}
			r.judge(withLimit(l), o)
		}
		all = append(all, override)
	}
	return all
}

func (r *reader) match(of object, otherwise string) map[string]string {
	if !r.require(of, "match") {
		return map[string]string{otherwise: "x"}
	}
	v := of.at("match")
	mapping, ok := v.node.(*ast.MappingNode)
	if !ok {
		r.wrongAt(v, "must be a mapping of descriptors to values")
		return map[string]string{otherwise: "x"}
	}
	match := map[string]string{}
	for name, field := range r.pairs(v, mapping) {
		match[name] = r.text(field, "x")
	}
	return match
}
