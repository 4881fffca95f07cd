package redislimit

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A call is one decision over buckets of one tag.
type call struct {
	op            string // as in decide.lua
	buckets       []ratelimit.Bucket
	cost, charged int64
	slot          string
	now           int64
	record        string // key, "" = none
	void          bool   // forget the record
	decide        func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error)
}

// An answer is an outcome, when it was, and whether a Take charged anything.
type answer struct {
	ratelimit.Outcome
	now   int64
	taken bool
}

// What decide.lua answers as its status where it has not decided alone.
const (
	unusual  = -1
	refused  = 0 // or only looked at
	repeated = 2
)

// attempts is how often an unusual decision is made anew because a state changed meanwhile.
const attempts = 20

var errContended = &ratelimit.FaultError{
	Reason: "contended", OfKey: true, Err: fmt.Errorf("redis decide: the states keep changing: %w", keytype.ErrUnavailable),
}

func (s *Store) run(ctx context.Context, c call) (answer, error) {
	keys, args := s.keys(c), s.args(c)
	for range attempts {
		seen, err := s.ask(ctx, keys, args, len(c.buckets))
		if err != nil {
			return answer{}, err
		}
		next, out, err := c.decide(seen.stored, seen.now)
		if err != nil {
			return answer{}, &ratelimit.FaultError{Reason: "corrupt", OfKey: true, Err: fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)}
		}
		done := answer{Outcome: out, now: seen.now, taken: c.op == "take" && out.Allowed && seen.status != repeated}
		if seen.status == unusual {
			done.taken = c.op == "take" && next.Record.Packed != nil || c.op == "take" && c.record == "" && out.Allowed
			swapped, err := s.swap(ctx, c, keys, seen, next)
			if err != nil {
				return answer{}, err
			}
			if !swapped {
				continue
			}
		} else if c.op == "take" && out.Allowed == (seen.status == refused) {
			// The charge stands as the script decided. This is a defect, and no test finds one.
			return answer{}, fmt.Errorf("redis decide: the script says %d, the transition %t: %w", seen.status, out.Allowed, keytype.ErrOutcomeUnknown)
		}
		return done, nil
	}
	return answer{}, errContended
}

// A sight is what decide.lua saw.
type sight struct {
	status, now int64
	stored      ratelimit.Stored
}

func (s *Store) ask(ctx context.Context, keys []string, args []any, buckets int) (sight, error) {
	reply, err := decideScript.Run(ctx, s.scripts, keys, args...).Slice()
	if err != nil {
		return sight{}, fault("decide", err)
	}
	if len(reply) != 3+buckets {
		return sight{}, fmt.Errorf("redis decide: %d values for %d buckets: %w", len(reply), buckets, keytype.ErrOutcomeUnknown)
	}
	seen := sight{stored: ratelimit.Stored{Record: packed(reply[2]), Packed: make([][]byte, buckets)}}
	seen.status, _ = reply[0].(int64)
	now, _ := reply[1].(string)
	if seen.now, err = strconv.ParseInt(now, 10, 64); err != nil {
		return sight{}, fmt.Errorf("redis decide: instant %q: %w", now, keytype.ErrOutcomeUnknown)
	}
	for i := range buckets {
		seen.stored.Packed[i] = packed(reply[3+i])
	}
	return seen, nil
}

// packed is nil for what is not there.
func packed(value any) []byte {
	text, _ := value.(string)
	if text == "" {
		return nil
	}
	return []byte(text)
}

// swap keeps what the transition decided, if nothing has changed since it was seen.
func (s *Store) swap(ctx context.Context, c call, keys []string, seen sight, next ratelimit.Next) (bool, error) {
	var args []any
	state := func(was []byte, next ratelimit.State) {
		args = append(args, was, next.Packed, s.ttl(next.Full, seen.now))
	}
	for i := range c.buckets {
		to := ratelimit.State{}
		if next.States != nil {
			to = next.States[i]
		}
		state(seen.stored.Packed[i], to)
	}
	if c.record != "" {
		state(seen.stored.Record, next.Record)
	}
	swapped, err := swapScript.Run(ctx, s.scripts, keys, args...).Int()
	if err != nil {
		return false, fault("swap", err)
	}
	if swapped == 1 && c.void && c.record != "" {
		if err := s.client.Del(ctx, keys[len(keys)-1]).Err(); err != nil {
			return true, fault("void", err)
		}
	}
	return swapped == 1, nil
}

func (s *Store) keys(c call) []string {
	keys := make([]string, 0, len(c.buckets)+1)
	for _, b := range c.buckets {
		keys = append(keys, s.key(b))
	}
	if c.record != "" {
		keys = append(keys, s.named(keytype.ChargeRequest, c.buckets[0].Tag, c.record))
	}
	return keys
}

// kinds are the algorithms' names in decide.lua.
var kinds = map[ratelimit.Algorithm]string{
	ratelimit.TokenBucket: "debt", ratelimit.GCRA: "debt", ratelimit.LeakyBucket: "leaky",
	ratelimit.FixedWindow: "fixed", ratelimit.SlidingWindowCounter: "counter",
	ratelimit.SlidingWindowLog: "log", ratelimit.Concurrency: "slots",
}

// args writes every number as decimal digits.
func (s *Store) args(c call) []any {
	now := int64(0)
	if s.opts.TakesNow {
		now = c.now
	}
	args := make([]any, 0, 5+8*len(c.buckets))
	args = append(args, c.op, number(now), number(c.charged), c.slot, memory)
	for _, b := range c.buckets {
		cost := b.CostOf(c.cost)
		capacity, price := b.Rule.Price(b.Rule.Burst), b.Rule.Price(min(cost, b.Rule.Burst))
		args = append(args, kinds[b.Rule.Algorithm], number(b.Rule.Count), number(b.Rule.Per),
			number(capacity.MicroSeconds), number(capacity.Rest), number(price.MicroSeconds), number(price.Rest), number(cost))
	}
	return args
}

var _ client = redis.UniversalClient(nil)
