package redislimit

import (
	"context"
	"fmt"
	"iter"
	"slices"

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
	unusual = -1
	refused = 0 // or only looked at
)

// attempts is how often an unusual decision is made anew because a state changed meanwhile.
const attempts = 20

var errContended = &ratelimit.FaultError{
	Reason: "contended", OfKey: true, Err: fmt.Errorf("redis decide: the states keep changing: %w", keytype.ErrUnavailable),
}

func (s *Store) run(ctx context.Context, c call) (answer, error) {
	keys, args := slices.Collect(s.keys(c)), s.appendArgs(nil, c)
	for range attempts {
		seen, err := sighted(decideScript.Run(ctx, s.scripts, keys, args...), len(c.buckets))
		if err != nil {
			return answer{}, err
		}
		done, next, err := c.settle(seen)
		if err != nil || seen.status != unusual {
			return done, err
		}
		swapped, err := s.swap(ctx, c, keys, seen, next)
		if err != nil {
			return answer{}, err
		}
		if swapped {
			return done, nil
		}
	}
	return answer{}, errContended
}

// settle has the transition decide on what the script saw. Where that was unusual, next is
// yet to be kept.
func (c call) settle(seen sight) (done answer, next ratelimit.Next, err error) {
	next, out, err := c.decide(seen.stored, seen.now)
	if err != nil {
		return answer{}, next, &ratelimit.FaultError{Reason: "corrupt", OfKey: true, Err: fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)}
	}
	takes := c.op == "take" || c.op == "hold"
	done = answer{Outcome: out, now: seen.now, taken: takes && out.Allowed && !out.Repeated}
	if takes && seen.status != unusual && out.Allowed == (seen.status == refused) {
		// The charge stands as the script decided. This is a defect, and no test finds one.
		return answer{}, next, fmt.Errorf("redis decide: the script says %d, the transition %t: %w", seen.status, out.Allowed, keytype.ErrOutcomeUnknown)
	}
	return done, next, nil
}

// A sight is what decide.lua saw.
type sight struct {
	status, now int64
	stored      ratelimit.Stored
}

// sighted reads the answer of decide.lua.
func sighted(cmd *redis.Cmd, buckets int) (sight, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return sight{}, fault("decide", err)
	}
	if len(reply) != 3+buckets {
		return sight{}, fmt.Errorf("redis decide: %d values for %d buckets: %w", len(reply), buckets, keytype.ErrOutcomeUnknown)
	}
	seen := sight{stored: ratelimit.Stored{Record: packed(reply[2]), Packed: make([][]byte, buckets)}}
	seen.status, _ = reply[0].(int64)
	if seen.now, _ = reply[1].(int64); seen.now == 0 {
		return sight{}, fmt.Errorf("redis decide: no instant: %w", keytype.ErrOutcomeUnknown)
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
		ms := s.ttl(next.Full, seen.now)
		if next.Gone {
			ms = "0"
		}
		args = append(args, was, next.Packed, ms)
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
	return swapped == 1, nil
}

// keys are those of the script, in its order.
func (s *Store) keys(c call) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, b := range c.buckets {
			if !yield(s.key(b)) {
				return
			}
		}
		if c.record != "" {
			yield(s.named(keytype.ChargeRequest, c.buckets[0].Tag, c.record))
		}
	}
}

var _ client = redis.UniversalClient(nil)
