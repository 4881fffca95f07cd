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
	plainArgs  = 3 // of a bucket, where all are plain and nothing stands behind them
)

// plain is the kind that is not sent where no bucket is of another.
const plain = "debt"

// kinds are the algorithms' names in decide.lua.
var kinds = map[ratelimit.Algorithm]string{
	ratelimit.TokenBucket: plain, ratelimit.GCRA: plain, ratelimit.LeakyBucket: "leaky",
	ratelimit.FixedWindow: "fixed", ratelimit.SlidingWindowCounter: "counter",
	ratelimit.SlidingWindowLog: "log", ratelimit.Concurrency: "slots",
}

// isDebt reports whether the kind's buckets are paid off by time.
func isDebt(kind string) bool { return kind == plain || kind == "leaky" }

// appendArgs writes every number as decimal digits.
func (s *Store) appendArgs(args []any, c call) []any {
	now := none
	if s.opts.TakesNow {
		now = number(c.now)
	}
	op := takes
	if c.op != "take" {
		op = c.op
	}
	args = append(args, op, now)
	bare := c.charged == 0 && c.slot == "" && c.record == ""
	if bare {
		if all, plain := s.appendRules(args, c, plainArgs); plain {
			return all
		}
	}
	if args, _ = s.appendRules(args, c, bucketArgs); bare {
		return args
	}
	charged := none
	if c.charged != 0 {
		charged = number(c.charged)
	}
	return append(args, charged, c.slot, memory)
}

// appendRules writes so many arguments of each bucket, and reports whether that is all there is.
func (s *Store) appendRules(args []any, c call, width int) (all []any, ok bool) {
	for i := range c.buckets {
		b := &c.buckets[i]
		known := s.ruled.of(b.Rule, b.CostOf(c.cost))
		if width < bucketArgs && !known.plain {
			return nil, false
		}
		args = append(args, known.args[:width]...)
	}
	return args, true
}

// What arguments are in most calls, in the form that needs no room of its own.
var none, takes any = "0", "take"

// A ruled remembers the arguments of rules with costs, each in a place of its own or with
// others that push it out: a request may come with a rate of its own, so that there is no
// end of them. The zero one does not work.
type ruled struct {
	seed   maphash.Seed
	places [1024]atomic.Pointer[ruledArgs]
}

type ruledArgs struct {
	by    ruledBy
	args  [bucketArgs]any
	plain bool // the first plainArgs say all
}

type ruledBy struct {
	rule ratelimit.Rule
	cost int64
}

func (r *ruled) of(rule ratelimit.Rule, cost int64) *ruledArgs {
	by := ruledBy{rule, cost}
	place := &r.places[maphash.Comparable(r.seed, by)%uint64(len(r.places))]
	known := place.Load()
	if known == nil || known.by != by {
		args := argsOf(rule, cost)
		known = &ruledArgs{by, args, args[plainArgs] == plain && args[plainArgs+1] == ""}
		place.Store(known)
	}
	return known
}

func argsOf(r ratelimit.Rule, cost int64) [bucketArgs]any {
	kind, text := kinds[r.Algorithm], number(r.Count)+":"+number(r.Per)
	if !isDebt(kind) {
		return [bucketArgs]any{text, number(r.Burst), number(cost), kind, ""}
	}
	capacity, price, rests := r.Price(r.Burst), r.Price(min(cost, r.Burst)), ""
	if capacity.Rest != 0 || price.Rest != 0 {
		rests = number(capacity.Rest) + ":" + number(price.Rest)
	}
	return [bucketArgs]any{text, number(capacity.MicroSeconds), number(price.MicroSeconds), kind, rests}
}
