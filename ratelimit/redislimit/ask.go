package redislimit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// decideHash is what the script is sent by.
var decideHash any = decideScript.Hash()

// Ask implements ratelimit.Asker for a Take that is one call of the script, as most are.
func (s *Store) Ask(ctx context.Context, t ratelimit.Take) ratelimit.Asked {
	if t.Peek || t.Repeat || t.Bind.Key != "" || len(t.Buckets) == 0 {
		return nil
	}
	for _, b := range t.Buckets[1:] {
		if b.Tag != t.Buckets[0].Tag {
			return nil
		}
	}
	convoy := s.convoyOf(ctx, t.Buckets[0])
	if convoy == nil {
		return nil
	}
	a := &asked{take: t, store: s, nth: 1, count: 1}
	a.leader = a
	combines := s.combines(&t)
	if combines && convoy.join(a) {
		return a
	}
	c := asking(&a.take)
	keys := s.keys(c)
	words := append(make([]any, 0, 3+headArgs+(1+bucketArgs)*len(keys)), "evalsha", decideHash, len(keys))
	for i := range keys {
		if s.convoys != nil { // whose client looks for the slot in it
			words = append(words, keys[i])
		} else {
			words = append(words, &keys[i]) // which needs no room of its own
		}
	}
	a.send(ctx, s.appendArgs(words, c))
	a.ctx, a.landed = ctx, make(chan struct{})
	if combines {
		a.leads = a
	}
	convoy.board(&a.passenger) //nolint:contextcheck // what is sent is that of many callers
	return a
}

// An asked is a Take whose script is on its way.
type asked struct {
	passenger
	take   ratelimit.Take
	cmd    *redis.StringSliceCmd // of a leader
	store  *Store
	leader *asked // whose command decides on it, often its own
	nth    int64  // of those that the leader decides on
	count  int64  // of a leader: how many these are; guarded by the convoy's mu until it is sent
}

// send makes the command of a leader. It reads every value as a text, and makes fewer objects
// for that than one that reads anything.
func (a *asked) send(ctx context.Context, words []any) {
	a.cmd = redis.NewStringSliceCmd(ctx, words...)
	a.Cmder = once{a.cmd}
}

// once is not sent again by the client, as a redisonce.Command.
type once struct{ *redis.StringSliceCmd }

// NoRetry is part of redis.Cmder.
func (once) NoRetry() bool { return true }

// Clone is part of redis.Cmder.
func (c once) Clone() redis.Cmder {
	if cmd, ok := c.StringSliceCmd.Clone().(*redis.StringSliceCmd); ok {
		return once{cmd}
	}
	return c
}

// Done implements ratelimit.Asked.
func (a *asked) Done() <-chan struct{} { return a.landed }

// Result implements ratelimit.Asked. Where the server did not know the script, or it saw
// something unusual, nothing was done.
func (a *asked) Result() (ratelimit.Outcome, error) {
	reply, err := a.leader.cmd.Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			return ratelimit.Outcome{}, ratelimit.ErrUndecided
		}
		return ratelimit.Outcome{}, a.store.faultAt(a.leader.ctx, a.store.key(a.take.Buckets[0]), "decide", err)
	}
	seen, err := sighted(reply, len(a.take.Buckets))
	if err != nil {
		return ratelimit.Outcome{}, err
	}
	if seen.status == unusual {
		return ratelimit.Outcome{}, ratelimit.ErrUndecided
	}
	take, ok := a.share(seen)
	if !ok {
		return ratelimit.Outcome{}, ratelimit.ErrUndecided
	}
	c := asking(&take)
	c.decide = func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error) {
		take.Now = now
		out, err := take.Outcome(stored) // what to store, the script has stored
		return ratelimit.Next{}, out, err
	}
	done, _, err := c.settle(seen)
	done.Source = Redis
	return done.Outcome, err
}
