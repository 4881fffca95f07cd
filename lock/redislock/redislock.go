// Package redislock decides on Redis who holds an advisory lock: one script call for
// each step, by the server's own clock.
//
// What is stored is the format number, the lock's id, the lifetime that it was taken
// with and its owner. The id, which only the holder knows, is compared before anything changes.
package redislock

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/redisonce"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lock"
)

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed renew.lua
	renewSource string
	//go:embed release.lua
	releaseSource string

	// All are sent by hash, and whole where the server does not know the hash.
	acquireScript = redis.NewScript(acquireSource)
	renewScript   = redis.NewScript(renewSource)
	releaseScript = redis.NewScript(releaseSource)
)

// format begins every value; it changes with what follows.
const format = "1"

// A Store is a lock.Store on Redis: a single node, Sentinel or Cluster.
type Store struct {
	client redis.Scripter
	prefix string
}

// New makes a store whose keys begin with the prefix. The client must not repeat a
// command by itself: what it repeats may have been done.
func New(c redisonce.Client, prefix string) *Store {
	return &Store{redisonce.Scripter{Client: c}, prefix}
}

// Acquire implements lock.Store.
func (s *Store) Acquire(ctx context.Context, tenant, name string, req lock.Acquire) (lock.Outcome, error) {
	value := fmt.Sprintf("%s%d %s", held(req.ID), req.TTL.Milliseconds(), req.Owner)
	left, err := s.run(ctx, acquireScript, tenant, name, value, req.TTL.Milliseconds())
	switch {
	case err != nil:
		return lock.Outcome{}, fmt.Errorf("acquire lock %q: %w", name, err)
	case left > 0:
		return lock.Outcome{Verdict: lock.Held, Left: left}, nil
	}
	return lock.Outcome{Verdict: lock.Done, Left: req.TTL}, nil
}

// Renew implements lock.Store.
func (s *Store) Renew(ctx context.Context, tenant, name string, req lock.Renew) (lock.Outcome, error) {
	left, err := s.run(ctx, renewScript, tenant, name, held(req.ID), req.TTL.Milliseconds())
	switch {
	case err != nil:
		return lock.Outcome{}, fmt.Errorf("renew lock %q: %w", name, err)
	case left == 0:
		return lock.Outcome{Verdict: lock.Lost}, nil
	}
	return lock.Outcome{Verdict: lock.Done, Left: left}, nil
}

// Release implements lock.Store.
func (s *Store) Release(ctx context.Context, tenant, name string, req lock.Release) (lock.Outcome, error) {
	left, err := s.run(ctx, releaseScript, tenant, name, held(req.ID))
	switch {
	case err != nil:
		return lock.Outcome{}, fmt.Errorf("release lock %q: %w", name, err)
	case left > 0:
		return lock.Outcome{Verdict: lock.Lost, Left: left}, nil
	}
	return lock.Outcome{Verdict: lock.Done}, nil
}

// held is how the value of the id's lock begins. An id of this service's own making has no space.
func held(id string) string { return format + id + " " }

// run returns the script's milliseconds.
func (s *Store) run(ctx context.Context, script *redis.Script, tenant, name string, args ...any) (time.Duration, error) {
	key := keytype.AdvisoryLock.Key(tenant, name)
	ms, err := script.Run(ctx, s.client, []string{keytype.AdvisoryLock.Tagged(s.prefix, key, key)}, args...).Int64()
	if err != nil {
		return 0, fault(err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// fault says what a failure of Redis means. Whatever the server answers, it has
// changed nothing: each script writes once, and a server that may not write runs none.
func fault(err error) error {
	if redisonce.NotDone(err) {
		return fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, err)
}
