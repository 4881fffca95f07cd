// Package redissession decides what of the users' and sessions' records may be
// answered from Redis: a [session.Cache] on a single server, Sentinel or Cluster.
//
// Each operation is one script over keys in one slot, so no other client sees half
// of it, and every key it writes has a TTL. How old a copy
// is, is told by the clock of the Redis server alone, and whether a session has ended by
// the caller's. A value begins with the number of its format; one of another is as one
// that is not there.
package redissession

import (
	"context"
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/redisonce"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

var (
	//go:embed verify.lua
	verifyText string
	//go:embed fill.lua
	fillText string
	//go:embed bump.lua
	bumpText string

	ours = scripts{verify: redis.NewScript(verifyText), fill: redis.NewScript(fillText), bump: redis.NewScript(bumpText)}
)

type scripts struct{ verify, fill, bump *redis.Script }

// defaultBudget is how long a verify waits for Redis before it asks the durable store.
const defaultBudget = 5 * time.Millisecond

// bumpPatience is how many budgets a change waits: it is rare, and its answer says
// something better when the cache took it.
const bumpPatience = 10

// Options of a cache.
type Options struct {
	Prefix string        // before every key; without braces, which choose a slot
	Budget time.Duration // how long a call waits for Redis; 0 = 5 ms
	// Now replaces the server's own clock, for tests; nil in production.
	Now func() time.Time
}

// A Cache keeps records in Redis. Its errors wrap [keytype.ErrUnavailable]; a fill
// or bump that failed may still happen, which does no harm at any time.
type Cache struct {
	client  redisonce.Scripter
	scripts scripts
	opts    Options
}

// New makes a cache on a client. The client's own timeouts should be short: a call
// that outlives its budget goes on without its caller until they end it.
func New(client redisonce.Client, opts Options) *Cache {
	if opts.Budget == 0 {
		opts.Budget = defaultBudget
	}
	return &Cache{redisonce.Scripter{Client: client}, ours, opts}
}

// Verify implements [session.Cache].
func (c *Cache) Verify(ctx context.Context, op session.VerifyOp, terms session.Terms) (session.Cached, error) {
	reply, err := c.run(ctx, c.opts.Budget, c.scripts.verify, c.keys(op.Tag, op.ID),
		c.now(), terms.Fresh.Milliseconds(), terms.Stale.Milliseconds(),
		hex.EncodeToString(op.TokenHash), op.Tenant, op.UserID, op.MinAAL, op.MaxAuthAge.Milliseconds(), flag(!op.NoTouch),
		op.Now.UnixMilli(), op.TenantEpoch)
	if err != nil {
		return session.Cached{}, fmt.Errorf("verify in redis: %w", err)
	}
	cached, err := decodeVerdict(reply)
	if err != nil {
		return session.Cached{}, fmt.Errorf("verify in redis: %w: %w", err, keytype.ErrUnavailable)
	}
	return cached, nil
}

// Fill implements [session.Cache].
func (c *Cache) Fill(ctx context.Context, f session.Fill, terms session.Terms) (kept bool, at int64, err error) {
	rest, err := encodeRecord(f.Record)
	if err != nil {
		return false, 0, fmt.Errorf("fill redis: %w", err)
	}
	reply, err := c.run(ctx, c.opts.Budget, c.scripts.fill, c.keys(f.Tag, f.ID),
		c.now(), terms.Fresh.Milliseconds(), terms.Stale.Milliseconds(), f.At, f.User.Version, encodeUser(f.User),
		rest, f.Record.Seen, f.Record.Absolute, f.Record.Idle, session.DurableTracking(f.Record.Idle).Every, f.Now)
	if err != nil {
		return false, 0, fmt.Errorf("fill redis: %w", err)
	}
	answer, ok := reply.([]any)
	if !ok || len(answer) != 2 {
		return false, 0, fmt.Errorf("fill redis: answer %v: %w", reply, keytype.ErrUnavailable)
	}
	return answer[0] == int64(1), integer(answer[1]), nil
}

// Bump implements [session.Cache].
func (c *Cache) Bump(ctx context.Context, tag string, version int64, terms session.Terms) error {
	_, err := c.run(ctx, bumpPatience*c.opts.Budget, c.scripts.bump, []string{keytype.UserEpoch.CacheKey(c.opts.Prefix, tag)},
		c.now(), terms.Fresh.Milliseconds(), terms.Stale.Milliseconds(), version)
	if err != nil {
		return fmt.Errorf("bump redis: %w", err)
	}
	return nil
}

// run waits for the script no longer than the budget. The caller itself stops
// waiting: a client waits for its connection, whatever a context says.
func (c *Cache) run(ctx context.Context, budget time.Duration, script *redis.Script, keys []string, args ...any) (any, error) {
	type answer struct {
		reply any
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		reply, err := script.Run(context.WithoutCancel(ctx), c.client, keys, args...).Result()
		done <- answer{reply, err}
	}()
	patience := time.NewTimer(budget)
	defer patience.Stop()
	select {
	case a := <-done:
		if a.err != nil {
			return nil, fmt.Errorf("%w: %w", a.err, keytype.ErrUnavailable)
		}
		return a.reply, nil
	case <-patience.C:
		return nil, fmt.Errorf("no answer within %s: %w", budget, keytype.ErrUnavailable)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Cache) keys(tag, id string) []string {
	return []string{keytype.UserEpoch.CacheKey(c.opts.Prefix, tag), keytype.Session.CacheKey(c.opts.Prefix, tag, id)}
}

// now is the instant that a test passes, 0 for the server's own.
func (c *Cache) now() int64 {
	if c.opts.Now == nil {
		return 0
	}
	return c.opts.Now().UnixMilli()
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
