package policy

import (
	"context"
	"errors"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// An Explanation says what a request meets.
type Explanation struct {
	Policy  ratelimit.Policy
	Refuses bool // whether a refusal counts: the stage, and in a canary the identity, decide that
	Limits  []ExplainedLimit
}

// An ExplainedLimit is a limit as it holds for one request.
type ExplainedLimit struct {
	ratelimit.Limit                   // with the numbers that hold
	Override        int               // which of its overrides holds, from 1; 0 = none
	Match           map[string]string // of that override
	Bucket          string            // the key under which the limit counts the request
	Tag             string            // buckets of one tag lie in one slot
	Shard, Of       int               // with shards: which of how many buckets this is, from 0; else 0 of 1
	Turns           bool              // with shards: requests like this one take turns at the buckets, but those with an id
	Apart           bool              // it lies in another slot than the first limit, and is taken in a second step
}

// Explain says which limits a request of the tenant meets, under which keys and by
// which overrides, without asking any store. It has the limiter itself prepare
// the request, and so cannot differ from it. Errors: those of [ratelimit.New] and
// [ratelimit.Limiter.Peek].
func (s Set) Explain(ctx context.Context, tenant, policy string, descriptors map[string]string) (Explanation, error) {
	req := ratelimit.Request{Policy: policy, Descriptors: descriptors, Cost: 1}
	take, decision, err := prepare(ctx, s.Policies, tenant, req)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Refuses: !decision.Allowed}
	for _, p := range s.Policies {
		if p.Name == policy {
			e.Policy = p
		}
	}
	numbered, _, err := prepare(ctx, []ratelimit.Policy{number(e.Policy)}, tenant, req)
	if err != nil {
		return Explanation{}, err
	}
	for i, limit := range e.Policy.Limits {
		l := ExplainedLimit{
			Limit: limit, Bucket: take.Buckets[i].Key, Tag: take.Buckets[i].Tag, Apart: take.Buckets[i].Tag != take.Buckets[0].Tag,
			Override: int(numbered.Buckets[i].Rule.Burst - 1),
		}
		_, l.Shard, l.Of = ratelimit.ShardOf(l.Tag)
		l.Turns = l.Of > 1 && len(descriptors) == len(limit.Key)
		if l.Override > 0 {
			o := limit.Overrides[l.Override-1]
			l.Match, l.Numbers = o.Match, over(limit.Numbers, o.Numbers)
		}
		e.Limits = append(e.Limits, l)
	}
	return e, nil
}

// number replaces what the limits allow by numbers that tell the overrides apart:
// the burst of a limit is 1, that of its first override 2, and so on.
func number(p ratelimit.Policy) ratelimit.Policy {
	limits := make([]ratelimit.Limit, len(p.Limits))
	for i, l := range p.Limits {
		limits[i] = ratelimit.Limit{Name: l.Name, Key: l.Key, Algorithm: ratelimit.TokenBucket, Numbers: whole(ratelimit.TokenBucket, ratelimit.Numbers{})}
		for j, o := range l.Overrides {
			limits[i].Overrides = append(limits[i].Overrides, ratelimit.Override{Match: o.Match, Numbers: ratelimit.Numbers{Burst: int64(j) + 2}})
		}
	}
	p.Limits = limits
	return p
}

// over replaces the numbers of a limit by those that its override has.
func over(n, o ratelimit.Numbers) ratelimit.Numbers {
	if o.Rate != (ratelimit.Rate{}) {
		n.Rate = o.Rate
	}
	for _, pair := range [][2]*int64{{&n.Burst, &o.Burst}, {&n.Queue, &o.Queue}, {&n.Slots, &o.Slots}} {
		if *pair[1] != 0 {
			*pair[0] = *pair[1]
		}
	}
	if o.SlotTTL != 0 {
		n.SlotTTL = o.SlotTTL
	}
	return n
}

// prepare has a limiter ask a store that keeps the question and refuses.
func prepare(ctx context.Context, policies []ratelimit.Policy, tenant string, req ratelimit.Request) (ratelimit.Take, ratelimit.Decision, error) {
	store := &listener{}
	limiter, err := ratelimit.New(store, policies, ratelimit.Options{})
	if err != nil {
		return ratelimit.Take{}, ratelimit.Decision{}, err
	}
	decision, err := limiter.Peek(ctx, tenant, req)
	return store.asked, decision, err
}

// A listener is a store that is asked once.
type listener struct{ asked ratelimit.Take }

func (l *listener) Take(_ context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	l.asked = t
	return ratelimit.Outcome{Verdicts: make([]ratelimit.Verdict, len(t.Buckets))}, nil
}

func (l *listener) Give(context.Context, ratelimit.Give) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, errAskedOnly
}

func (l *listener) Forget(context.Context, []ratelimit.Bucket) error { return errAskedOnly }

var errAskedOnly = errors.New("policy: a request is explained, not carried out")
