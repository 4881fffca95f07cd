package redislimit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/redisonce"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// decideHash is what the script is sent by.
var decideHash any = decideScript.Hash()

// Ask implements ratelimit.Asker for a Take that is one call of the script, as most are.
func (s *Store) Ask(ctx context.Context, t ratelimit.Take) ratelimit.Asked {
	if s.convoy == nil || t.Peek || t.Repeat || t.Bind.Key != "" || len(t.Buckets) == 0 {
		return nil
	}
	for _, b := range t.Buckets[1:] {
		if b.Tag != t.Buckets[0].Tag {
			return nil
		}
	}
	a := &asked{take: t, store: s, nth: 1, count: 1}
	a.leader = a
	combines := s.combines(&t)
	if combines && s.convoy.join(a) {
		return a
	}
	c := taking(&a.take)
	words := append(make([]any, 0, 4+headArgs+(1+bucketArgs)*len(t.Buckets)), "evalsha", decideHash, 0)
	for key := range s.keys(c) {
		words = append(words, key)
	}
	words[2] = len(words) - 3
	a.cmd = redis.NewCmd(ctx, s.appendArgs(words, c)...)
	a.passenger = passenger{Cmder: redisonce.Command{Cmd: a.cmd}, ctx: ctx, landed: make(chan struct{})}
	if combines {
		a.leads = a
	}
	s.convoy.board(&a.passenger) //nolint:contextcheck // what is sent is that of many callers
	return a
}

// An asked is a Take whose script is on its way.
type asked struct {
	passenger
	take   ratelimit.Take
	cmd    *redis.Cmd // of a leader
	store  *Store
	leader *asked // whose command decides on it, often its own
	nth    int64  // of those that the leader decides on
	count  int64  // of a leader: how many these are; guarded by the convoy's mu until it is sent
}

// Done implements ratelimit.Asked.
func (a *asked) Done() <-chan struct{} { return a.landed }

// Result implements ratelimit.Asked. Where the server did not know the script, or it saw
// something unusual, nothing was done.
func (a *asked) Result() (ratelimit.Outcome, error) {
	cmd := a.leader.cmd
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return ratelimit.Outcome{}, ratelimit.ErrUndecided
	}
	seen, err := sighted(cmd, len(a.take.Buckets))
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
	done, _, err := taking(&take).settle(seen)
	done.Source = Redis
	return done.Outcome, err
}
