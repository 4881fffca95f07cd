// Package redislimit decides rate limits on Redis: one script call for all limits
// that share a slot, by the server's own clock.
//
// The script decides and stores; the words of the answer come from package
// ratelimit's transition, run on the states that the script saw. Where a bucket was
// counted under another rule, or the server's clock was set, the script changes
// nothing and the transition decides; what it hands out replaces the states if they
// are still those.
package redislimit

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/redisonce"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

var (
	//go:embed decide.lua
	decideSource string
	//go:embed swap.lua
	swapSource string

	// Both are sent by hash, and whole where the server does not know the hash.
	decideScript = redis.NewScript(decideSource)
	swapScript   = redis.NewScript(swapSource)
)

// Redis is the source of what this store decides.
const Redis ratelimit.Source = "redis"

// client is a client of a single node, Sentinel or Cluster.
type client interface {
	redisonce.Client
	Del(ctx context.Context, keys ...string) *redis.IntCmd
	Ping(ctx context.Context) *redis.StatusCmd
}

// Options of a store; the zero value works.
type Options struct {
	Prefix string // before every key
	// Secret hides tenants, descriptors and request ids: with one of 16 bytes or more, the
	// same on all nodes, a key is a hash of them, else they stand in it as they are.
	Secret []byte
	// TakesNow makes the store decide by the instant of a call and not by the server's
	// clock, and keep every key an hour longer: for tests.
	TakesNow bool
	// Leftover is called for each charge over several slots that may stay although the
	// request did not pass, or that nobody could settle: it lapses with its window.
	Leftover func()
}

// A Store is a ratelimit.Store on Redis.
type Store struct {
	client  client
	scripts redisonce.Scripter // over client
	opts    Options
	veil    *keytype.Veil // nil without a secret
	ruled   *ruled
	convoy  *convoy  // which the scripts go by, where the client is one of one node
	convoys *convoys // which Asks go by, where it is a Cluster's

	settling chan struct{} // has room for the requests whose charges are just being settled
}

// New makes a store. The client must have retries off and short timeouts, and a Cluster's no
// backoff, or what has moved keeps all who ask its master waiting. It panics where
// the secret is shorter than 16 bytes, which can be guessed, and not empty.
func New(c client, opts Options) *Store {
	if opts.Leftover == nil {
		opts.Leftover = func() {}
	}
	s := &Store{client: c, scripts: redisonce.Scripter{Client: c}, opts: opts, ruled: &ruled{seed: maphash.MakeSeed()}, settling: make(chan struct{}, maxSettling)}
	switch c := c.(type) {
	case *redis.Client:
		s.convoy = &convoy{pipelined: c}
		s.scripts.Client = s.convoy
	case *redis.ClusterClient:
		s.convoys = &convoys{ClusterClient: c}
	}
	switch n := len(opts.Secret); {
	case n >= 16:
		s.veil = keytype.NewVeil(opts.Secret)
	case n > 0:
		panic("redislimit: a secret of less than 16 bytes")
	}
	return s
}

// Take implements ratelimit.Store. Buckets of one tag are decided in one step. Where
// there are several tags all are looked at first, at once, and where one refuses
// nothing is taken anywhere. Else one after the other is charged, see takeAll.
func (s *Store) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	if !t.Peek {
		if out, err := s.bind(ctx, t.Bind, t.Now, len(t.Buckets)); err != nil || out.Mismatch {
			return out, err
		}
	}
	t.Bind = ratelimit.Bind{}
	groups := groupsOf(t.Buckets)
	if only := t.Peek || t.Repeat; only || len(groups) > 1 {
		if out, err := s.lookAll(ctx, t, groups); err != nil || only || !out.Allowed {
			return out, err
		}
	}
	return s.takeAll(ctx, t, groups)
}

// lookAll decides without taking anything, at all groups at once.
func (s *Store) lookAll(ctx context.Context, t ratelimit.Take, groups []group) (ratelimit.Outcome, error) {
	answers, faults := make([]answer, len(groups)), make([]error, len(groups))
	var others sync.WaitGroup
	for i := 1; i < len(groups); i++ {
		others.Go(func() { answers[i], faults[i] = s.look(ctx, t, groups[i]) })
	}
	answers[0], faults[0] = s.look(ctx, t, groups[0])
	others.Wait()
	out := ratelimit.Outcome{Allowed: true, Verdicts: make([]ratelimit.Verdict, len(t.Buckets)), Source: Redis}
	for i, g := range groups {
		if faults[i] != nil {
			return ratelimit.Outcome{}, faults[i]
		}
		g.spread(answers[i].Verdicts, out.Verdicts)
		out.Allowed = out.Allowed && answers[i].Allowed
	}
	if out.Allowed {
		out.SlotID = answers[0].SlotID // of a repetition
	}
	return out, nil
}

// look decides on one group as the Take would, and tells what is left without it.
func (s *Store) look(ctx context.Context, t ratelimit.Take, g group) (answer, error) {
	t.Buckets = g.buckets
	return s.run(ctx, call{
		op: "peek", buckets: t.Buckets, cost: t.Cost, slot: t.SlotID, now: t.Now, record: t.Record,
		decide: func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error) {
			asked := t
			asked.Now = now
			_, out, err := asked.Decide(stored)
			if err == nil && !t.Repeat { // a repetition passes also where there is nothing left
				asked.Peek = true
				if _, peeked, err := asked.Decide(stored); err != nil || peeked.Allowed {
					return ratelimit.Next{}, peeked, err
				}
			}
			return ratelimit.Next{}, out, err
		},
	})
}

func (s *Store) take(ctx context.Context, t ratelimit.Take) (answer, error) {
	return s.run(ctx, taking(&t))
}

// taking is the call that decides on a Take, by the instant that the server says.
func taking(t *ratelimit.Take) call {
	c := asking(t)
	c.decide = func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error) {
		t.Now = now
		return t.Decide(stored)
	}
	return c
}

// asking is the call without what decides.
func asking(t *ratelimit.Take) call {
	op := "take"
	if t.Pending {
		op = "hold"
	}
	return call{op: op, buckets: t.Buckets, cost: t.Cost, slot: t.SlotID, now: t.Now, record: t.Record}
}

// Give implements ratelimit.Store.
func (s *Store) Give(ctx context.Context, g ratelimit.Give) (ratelimit.Outcome, error) {
	if out, err := s.bind(ctx, g.Bind, g.Now, len(g.Buckets)); err != nil || out.Mismatch {
		return out, err
	}
	g.Bind = ratelimit.Bind{}
	out := ratelimit.Outcome{Allowed: true, Verdicts: make([]ratelimit.Verdict, len(g.Buckets)), Source: Redis, Repeated: true}
	for _, group := range groupsOf(g.Buckets) {
		part := g
		part.Buckets = group.buckets
		op := "give"
		if g.Ends != "" {
			op = string(g.Ends)
		}
		answer, err := s.run(ctx, call{
			op: op, buckets: part.Buckets, cost: g.Cost, charged: g.Charged, slot: g.SlotID, now: g.Now, record: g.Record,
			decide: func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error) {
				part.Now = now
				return part.Decide(stored)
			},
		})
		if err != nil {
			return ratelimit.Outcome{}, err
		}
		group.spread(answer.Verdicts, out.Verdicts)
		out.Repeated = out.Repeated && answer.Repeated
	}
	return out, nil
}

// Forget implements ratelimit.Store.
func (s *Store) Forget(ctx context.Context, buckets []ratelimit.Bucket) error {
	faults := make([]error, len(buckets))
	var all sync.WaitGroup
	for i, b := range buckets { // at once: the shards of a limit are many
		all.Go(func() { faults[i] = s.client.Del(ctx, s.key(b)).Err() })
	}
	all.Wait()
	for i, err := range faults {
		if err != nil {
			return s.faultAt(ctx, s.key(buckets[i]), "forget", err)
		}
	}
	return nil
}

// Probe takes from a bucket of its own, and so finds out whether the server can
// write, and with it the scripts.
func (s *Store) Probe(ctx context.Context) error {
	rule := ratelimit.Rule{Algorithm: ratelimit.TokenBucket, Count: 1000, Per: 1_000_000, Burst: 1000}
	key := keytype.RateBucket.Key("", "", "probe", "debt", "")
	_, err := s.Take(ctx, ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: key, Rule: rule}}, Cost: 1})
	return err
}

// convoyOf is the convoy by which the bucket is asked for, nil where there is none.
func (s *Store) convoyOf(ctx context.Context, b ratelimit.Bucket) *convoy {
	if s.convoys != nil {
		return s.convoys.of(ctx, s.key(b))
	}
	return s.convoy
}

// keys are those of the script, in its order. The tag of all is hashed once.
func (s *Store) keys(c call) []string {
	all := make([]string, 0, len(c.buckets)+1)
	place := ""
	for i := range c.buckets {
		b := &c.buckets[i]
		if i == 0 {
			all = append(all, s.key(*b))
			place = all[0][:len(s.opts.Prefix)+strings.IndexByte(all[0][len(s.opts.Prefix):], '}')+1]
			continue
		}
		all = append(all, s.beside(b.Type(), place, b.Key))
	}
	if c.record != "" {
		all = append(all, s.beside(keytype.ChargeRequest, place, c.record))
	}
	return all
}

func (s *Store) beside(t *keytype.Type, place, key string) string {
	if s.veil == nil {
		return t.Beside(place, key)
	}
	return s.veil.Beside(t, place, key)
}

func (s *Store) key(b ratelimit.Bucket) string {
	return s.named(b.Type(), b.Tag, b.Key)
}

// NameOf is what the bucket's key is called in Redis by a store of the options.
func NameOf(b ratelimit.Bucket, opts Options) string { return New(nil, opts).key(b) }

// named is what a key is called in Redis.
func (s *Store) named(t *keytype.Type, tag, key string) (name string) {
	tag, shard, of := ratelimit.ShardOf(tag)
	if s.veil == nil {
		name = t.Tagged(s.opts.Prefix, tag, key)
	} else {
		name = s.veil.Tagged(t, s.opts.Prefix, tag, key)
	}
	if of > 1 {
		return spread(s.opts.Prefix, name, shard, of)
	}
	return name
}

// A group is the buckets of one tag, and their places among all.
type group struct {
	buckets []ratelimit.Bucket
	places  []int
}

// groupsOf keeps the order in which the tags first appear.
func groupsOf(buckets []ratelimit.Bucket) []group {
	var groups []group
	for place, b := range buckets {
		i := slices.IndexFunc(groups, func(g group) bool { return g.buckets[0].Tag == b.Tag })
		if i < 0 {
			i, groups = len(groups), append(groups, group{})
		}
		groups[i].buckets, groups[i].places = append(groups[i].buckets, b), append(groups[i].places, place)
	}
	return groups
}

// spread puts the verdicts of the group in their places.
func (g group) spread(from, to []ratelimit.Verdict) {
	for i, place := range g.places {
		to[place] = from[i]
	}
}

// fault says what a failure of Redis means. Whatever the server answers, it has
// changed nothing: the scripts write last, and a server that may not write runs none.
func fault(op string, err error) error {
	reason, meaning := describe(err)
	if meaning == nil {
		return err
	}
	ofKey := redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "TRYAGAIN") // somebody else wrote there, or its slot is on its way
	f := &ratelimit.FaultError{Reason: reason, OfKey: ofKey, Err: fmt.Errorf("redis %s: %w: %w", op, meaning, err)}
	if together, ok := errors.AsType[*togetherError](err); ok {
		f.Together = together
	}
	return f
}

// faultAt is the fault of a call for the key. All of one master of a Cluster count as one:
// while it fails the others answer, and it is no reason to ask none of them any more.
func (s *Store) faultAt(ctx context.Context, key, op string, err error) error {
	err = fault(op, err)
	if f, ok := errors.AsType[*ratelimit.FaultError](err); ok && s.convoys != nil {
		if c := s.convoys.of(ctx, key); c != nil {
			f.Together = c.master
		}
	}
	return err
}

func describe(err error) (reason string, meaning error) {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "", nil
	case redisonce.NotSent(err):
		return "unreachable", keytype.ErrUnavailable
	}
	if redisonce.NotDone(err) { // it has answered
		for _, word := range []string{"READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY", "TRYAGAIN", "NOAUTH", "WRONGPASS", "NOPERM"} {
			if strings.HasPrefix(err.Error(), word) {
				return strings.ToLower(word), keytype.ErrUnavailable
			}
		}
		return ratelimit.ReasonStoreError, keytype.ErrUnavailable
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return ratelimit.ReasonTimeout, keytype.ErrOutcomeUnknown
	}
	return "connection_lost", keytype.ErrOutcomeUnknown
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

var memory any = number(ratelimit.RequestMemory.Microseconds())

// ttl is how many ms a state is kept, at least one.
func (s *Store) ttl(full, now int64) string {
	ms := max(1, (full-now+999)/1000)
	if s.opts.TakesNow {
		ms += time.Hour.Milliseconds()
	}
	return number(ms)
}
