package policy

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// withLimit is a policy with nothing else that could be wrong.
func withLimit(l ratelimit.Limit) ratelimit.Policy {
	return ratelimit.Policy{Name: "x", Posture: ratelimit.FailOpen, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{l}}
}

// judgePolicy judges what concerns the policy itself. Its limits were judged before.
func (r *reader) judgePolicy(o object, p ratelimit.Policy, limitsRight bool) {
	if len(p.Limits) == 0 || !limitsRight {
		p.Slot, p.Local = nil, ratelimit.LocalRate{}
		if p.Posture == ratelimit.Local {
			p.Posture = ratelimit.FailOpen
		}
		p.Limits = withLimit(ratelimit.Limit{
			Name: "x", Key: []string{"x"}, Algorithm: ratelimit.TokenBucket, Numbers: whole(ratelimit.TokenBucket, ratelimit.Numbers{}),
		}).Limits
	}
	r.judge(p, o)
}

// judge has the limiter judge a policy, and puts each mistake to the field that its
// text begins with, else to the whole part.
func (r *reader) judge(p ratelimit.Policy, o object) (right bool) {
	wrong := leaves(ratelimit.CheckPolicies([]ratelimit.Policy{p}))
	for _, mistake := range wrong {
		word, _, _ := strings.Cut(mistake.Error(), " ")
		r.wrongAt(o.named(word), "%v", mistake)
	}
	return len(wrong) == 0
}

// fieldOf says which field a mistake is about where that is not its first word.
var fieldOf = map[string]string{"canary": "stage", "posture": "on_store_failure", "matches": "match", "a": "rate"}

// named is the field that the first word of a mistake means.
func (o object) named(word string) value {
	field := cmp.Or(fieldOf[word], word)
	switch {
	case o.has(field):
		return o.at(field)
	case o.has("local") && (field == "rate" || field == "burst"): // a policy has them only there
		v := o.at("local")
		v.path = join(v.path, field)
		return v
	default:
		return o.value
	}
}

// leaves takes joined errors apart, and each out of what it is wrapped in.
func leaves(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, leaves(one)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		return leaves(inner)
	}
	return []error{err}
}

// unleasable notes the limits that are too small for a batch.
func (r *reader) unleasable(p ratelimit.Policy, limits []placed) []Finding {
	if p.Mode != ratelimit.Leased {
		return nil
	}
	var notes []Finding
	for _, l := range limits {
		if l.Algorithm != ratelimit.LeakyBucket && l.Algorithm != ratelimit.Concurrency && l.TooSmallToLease() {
			notes = append(notes, r.finding(l.at.at("name"), "limit %q or an override of it has too few units for batches, or is full again within 100 ms: the policy is decided as with mode: %s", l.Name, ratelimit.Exact))
		}
	}
	return notes
}

// apart notes the limits that lack the slot's descriptors, or lie in many slots.
func (r *reader) apart(p ratelimit.Policy, limits []placed) []Finding {
	slot := p.Slot
	if len(slot) == 0 && len(limits) > 0 {
		slot = limits[0].Key
	}
	var notes []Finding
	for _, l := range limits {
		lacking := slices.DeleteFunc(slices.Clone(slot), func(name string) bool { return slices.Contains(l.Key, name) })
		if len(lacking) > 0 {
			notes = append(notes, r.finding(l.at.at("key"), "limit %q lacks %s of the policy's slot: a check takes from it in a second step, and gives back what it took where that refuses",
				l.Name, strings.Join(lacking, ", ")))
		} else if l.Shards > 1 && len(limits) > 1 {
			notes = append(notes, r.finding(l.at.at("shards"), "limit %q has shards, which lie in slots of their own: a check takes from it in a second step, and gives back what it took where that refuses", l.Name))
		}
	}
	return notes
}
