package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
)

// errForeignRedis ends a process whose keys in Redis would mix with those of other tables.
var errForeignRedis = errors.New("COORD_REDIS_PREFIX (--redis-prefix): another set of tables, or another data folder, uses this Redis under this prefix; give each a prefix of its own")

// The marker outlives a night without nodes, and shows a wrong pairing soon after an outage.
const (
	markerTTL   = 24 * time.Hour
	markerEvery = 10 * time.Second
	markerWait  = time.Second
)

// A marker says in Redis whose keys lie there: those of one set of tables, or of one
// data folder. A copy of the tables under the same keys file has another name, and
// must not answer for them.
type marker struct {
	client redis.UniversalClient // nil: nothing is marked
	key    string
	value  string
}

func newMarker(client redis.UniversalClient, c config, route []byte) marker {
	mac := hmac.New(sha256.New, route)
	_, _ = fmt.Fprintf(mac, "store marker %t %s", c.embedded(), c.tablePrefix)
	return marker{client, keytype.StoreMarker.CacheKey(c.redisPrefix), "1 " + hex.EncodeToString(mac.Sum(nil)[:16])}
}

// look returns errForeignRedis where the marker is another's, and leaves no trace: a
// node that turns out to be set up wrong must not shut the right ones out. Redis that
// does not answer is no error, and may be wrong later.
func (m marker) look(ctx context.Context) error {
	if m.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, markerWait)
	defer cancel()
	found, err := m.client.Get(ctx, m.key).Result()
	if err == nil && found != m.value {
		return fmt.Errorf("%w; or remove the key %s, if what left it is gone", errForeignRedis, m.key)
	}
	return nil
}

// check puts the marker where there is none, or renews it, else it is look.
func (m marker) check(ctx context.Context) error {
	if m.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, markerWait)
	defer cancel()
	put, err := m.client.SetNX(ctx, m.key, m.value, markerTTL).Result()
	if err != nil || put {
		return nil // it is asked again
	}
	if err := m.look(ctx); err != nil {
		return err
	}
	m.client.Expire(ctx, m.key, markerTTL)
	return nil
}

// watch renews the marker until ctx ends or another's is found.
func (m marker) watch(ctx context.Context, every time.Duration, log *slog.Logger) error {
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			if err := m.check(ctx); err != nil {
				log.ErrorContext(ctx, "redis holds the keys of another store", "error", err)
				return err
			}
		}
	}
}
