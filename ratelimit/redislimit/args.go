package redislimit

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// How many arguments of decide.lua are the call's, and how many each bucket's.
const (
	headArgs   = 5 // with those that most calls leave out
	bucketArgs = 5
)

// kinds are the algorithms' names in decide.lua.
var kinds = map[ratelimit.Algorithm]string{
	ratelimit.TokenBucket: "debt", ratelimit.GCRA: "debt", ratelimit.LeakyBucket: "leaky",
	ratelimit.FixedWindow: "fixed", ratelimit.SlidingWindowCounter: "counter",
	ratelimit.SlidingWindowLog: "log", ratelimit.Concurrency: "slots",
}

// isDebt reports whether the kind's buckets are paid off by time.
func isDebt(kind string) bool { return kind == "debt" || kind == "leaky" }

// appendArgs writes every number as decimal digits.
func (s *Store) appendArgs(args []any, c call) []any {
	now := none
	if s.opts.TakesNow {
		now = number(c.now)
	}
	args = append(args, c.op, now)
	for i := range c.buckets {
		b := &c.buckets[i]
		args = append(args, s.ruled.of(b.Rule, b.CostOf(c.cost))...)
	}
	if c.charged == 0 && c.slot == "" && c.record == "" {
		return args
	}
	charged := none
	if c.charged != 0 {
		charged = number(c.charged)
	}
	return append(args, charged, c.slot, memory)
}

// none is what an argument is in most calls, in the form that needs no room of its own.
var none any = "0"

// A ruled remembers the arguments of rules with costs, each in a place of its own or with
// others that push it out: a request may come with a rate of its own, so that there is no
// end of them. The zero one does not work.
type ruled struct {
	seed   maphash.Seed
	places [1024]atomic.Pointer[ruledArgs]
}

type ruledArgs struct {
	by   ruledBy
	args [bucketArgs]any
}

type ruledBy struct {
	rule ratelimit.Rule
	cost int64
}

func (r *ruled) of(rule ratelimit.Rule, cost int64) []any {
	by := ruledBy{rule, cost}
	place := &r.places[maphash.Comparable(r.seed, by)%uint64(len(r.places))]
	known := place.Load()
	if known == nil || known.by != by {
		known = &ruledArgs{by, argsOf(rule, cost)}
		place.Store(known)
	}
	return known.args[:]
}

func argsOf(r ratelimit.Rule, cost int64) [bucketArgs]any {
	kind, text := kinds[r.Algorithm], number(r.Count)+":"+number(r.Per)
	if !isDebt(kind) {
		return [bucketArgs]any{kind, text, number(r.Burst), number(cost), ""}
	}
	capacity, price, rests := r.Price(r.Burst), r.Price(min(cost, r.Burst)), ""
	if capacity.Rest != 0 || price.Rest != 0 {
		rests = number(capacity.Rest) + ":" + number(price.Rest)
	}
	return [bucketArgs]any{kind, text, number(capacity.MicroSeconds), number(price.MicroSeconds), rests}
}
