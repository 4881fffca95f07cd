package redislimit

import (
	"context"
	"fmt"
	"slices"
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
	keys, args := s.keys(c), s.appendArgs(nil, c)
	for range attempts {
		reply, err := texts(decideScript.Run(ctx, s.scripts, keys, args...).Slice())
		if err != nil {
			return answer{}, s.faultAt(ctx, keys[0], "decide", err)
		}
		seen, err := sighted(reply, len(c.buckets))
		if err != nil {
			return answer{}, err
		}
		s.convoys.answered()
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

// texts are the values of an answer as a command has it that reads nothing but texts.
func texts(reply []any, err error) ([]string, error) {
	all := make([]string, len(reply))
	for i, v := range reply {
		switch v := v.(type) {
		case string:
			all[i] = v
		case int64:
			all[i] = number(v)
		}
	}
	return all, err
}

// sighted reads the answer of decide.lua.
func sighted(reply []string, buckets int) (sight, error) {
	if len(reply) != 3+buckets {
		return sight{}, fmt.Errorf("redis decide: %d values for %d buckets: %w", len(reply), buckets, keytype.ErrOutcomeUnknown)
	}
	seen := sight{stored: ratelimit.Stored{Packed: make([][]byte, buckets)}}
	seen.status, _ = strconv.ParseInt(reply[0], 10, 64)
	if seen.now, _ = strconv.ParseInt(reply[1], 10, 64); seen.now == 0 {
		return sight{}, fmt.Errorf("redis decide: no instant: %w", keytype.ErrOutcomeUnknown)
	}
	size := 0
	for _, state := range reply[2:] {
		size += len(state)
	}
	room := make([]byte, 0, size) // in one piece
	packed := func(state string) []byte {
		if state == "" { // it is not there
			return nil
		}
		room = append(room, state...)
		return slices.Clip(room[len(room)-len(state):])
	}
	seen.stored.Record = packed(reply[2])
	for i := range buckets {
		seen.stored.Packed[i] = packed(reply[3+i])
	}
	return seen, nil
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
		return false, s.faultAt(ctx, keys[0], "swap", err)
	}
	return swapped == 1, nil
}

var _ client = redis.UniversalClient(nil)
