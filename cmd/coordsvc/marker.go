package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
)

// errForeignRedis is met where keys in Redis would mix with those of other tables. A
// process does not start then; one that runs goes on without Redis.
var errForeignRedis = errors.New("COORD_REDIS_PREFIX (--redis-prefix): another set of tables, or another data folder, uses this Redis under this prefix; give each a prefix of its own")

// The marker outlives a night without nodes, and shows a wrong pairing soon after an outage.
const (
	markerTTL  = 24 * time.Hour
	markerWait = time.Second
	pairEvery  = 10 * time.Second
	pairSoon   = time.Second // after a store did not answer
)

// A marker says in Redis whose keys lie there: those of one set of tables, or of one
// data folder. A copy of the tables has another name, and must not answer for them. It
// also gives this Redis a name, by which nodes notice that they have the same.
type marker struct {
	client redis.UniversalClient // nil: nothing is marked
	key    string
	owner  string
	name   string // of this Redis: what is found there, else what this node puts there
}

func newMarker(client redis.UniversalClient, c config, route []byte, d deployment) *marker {
	owner := keyed(route, fmt.Sprintf("store marker %t %s %s", c.embedded(), c.tablePrefix, d.ID))
	return &marker{client, keytype.StoreMarker.CacheKey(c.redisPrefix), "1 " + owner + " ", rand.Text()}
}

// check puts the marker where there is none, or renews it, and returns the name of the
// Redis. It returns errForeignRedis where the marker is another's. Redis that does not
// answer is no error and has no name; it may turn out to be wrong later.
func (m *marker) check(ctx context.Context) (name string, err error) {
	if m.client == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(passing(ctx), markerWait)
	defer cancel()
	put, err := m.client.SetNX(ctx, m.key, m.owner+m.name, markerTTL).Result()
	if err != nil {
		return "", nil // it is asked again
	}
	if put {
		return m.name, nil
	}
	found, err := m.client.Get(ctx, m.key).Result()
	if err != nil {
		return "", nil // it is asked again
	}
	name, ours := strings.CutPrefix(found, m.owner)
	if !ours {
		return "", fmt.Errorf("%w; or remove the key %s, if what left it is gone", errForeignRedis, m.key)
	}
	m.name = name
	m.client.Expire(ctx, m.key, markerTTL)
	return name, nil
}

// pair looks whether the tables and the Redis are this deployment's, bars them where
// they are not, and says in the tables which cache its nodes share. It is sure where both answered.
func (s stores) pair(ctx context.Context, m *marker, c config, log *slog.Logger) (sure bool, err error) {
	found := s.sharing.holds(ctx)
	if found == nil || errors.Is(found, errNoDeployment) {
		s.tablesBar.set(ctx, found, log)
	}
	name, err := m.check(ctx)
	if err != nil || name != "" {
		s.redisBar.set(ctx, err, log)
	}
	switch {
	case err != nil:
		return false, err
	case errors.Is(found, errNoDeployment):
		return false, found
	case found != nil:
		return false, nil //nolint:nilerr // the tables did not answer: they are asked again
	case s.sharing == nil:
		return true, nil
	case !s.clock.Within(sharingClock):
		return false, nil // what it wrote of times would mislead the others
	case s.redis == nil:
		name = noCache
	case name == "":
		return false, nil
	default:
		name = fmt.Sprintf("redis %s grace %d", name, c.staleGrace.Milliseconds())
	}
	if err := s.sharing.renew(ctx, name, log); err != nil {
		log.DebugContext(ctx, "cannot say which cache is in force", "error", err)
		return false, nil
	}
	return true, nil
}

// keepPaired pairs again and again until ctx ends.
func (s stores) keepPaired(ctx context.Context, m *marker, c config, log *slog.Logger) {
	for wait := pairEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		sure, _ := s.pair(ctx, m, c, log) // what is wrong is barred, and logged
		if wait = pairEvery; !sure {
			wait = pairSoon
		}
	}
}
