package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// redisForms are the addresses that go-redis reads.
const redisForms = "redis://host:port, redis://host:port?addr=host2:port2 for a cluster, redis://host:port?master_name=m&addr=host2:port2 for sentinels"

func setRedisURL(c *config, v string) error {
	c.redisURL = v
	if v == "" {
		return nil
	}
	client, err := redisClient(*c)
	if err != nil {
		return errors.New("is no address of a Redis: write " + redisForms) // not the value, which may hold a password
	}
	return client.Close()
}

// redisPrefix leaves out braces, which would choose a key's slot.
var redisPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:-]{0,100}$`)

func setRedisPrefix(c *config, v string) error {
	c.redisPrefix = v
	if !redisPrefix.MatchString(v) {
		return fmt.Errorf("is %q: use at most 100 of the characters A-Z a-z 0-9 _ . : -", v)
	}
	return nil
}

func setRedisBudget(c *config, v string) error {
	ms, err := strconv.ParseInt(orDefault(v, "5"), 10, 64)
	if err != nil || ms < 1 || ms > 1_000 {
		return fmt.Errorf("is %q: write a number of milliseconds from 1 to 1000, or leave it unset for 5", v)
	}
	c.redisBudget = time.Duration(ms) * time.Millisecond
	return nil
}

// The client's own timeouts, or the budget where that is longer, end what callers
// no longer wait for. It repeats nothing, for a command whose answer is missing may
// have been done; that of a Cluster does all the same, so that the stores say of each
// command that must not be.
const (
	redisTimeout = 100 * time.Millisecond
	redisReload  = time.Second // of a cluster's layout: with the default, a minute, a dead master is dialled for as long
	// clusterPool is to how many connections a node of a Cluster may have. What goes by no
	// pipeline, as a check with a request id, has one to itself; with the default, 5 for
	// each CPU, a hot key's callers wait for one beyond their budget, and Redis is given up.
	clusterPool = 128
	// noBackoff sends what a Cluster has moved after it at once. The client's own, 10 to 30 ms
	// where anything in a pipeline has moved, keeps all who ask that master beyond their budget
	// as long as one slot is on its way.
	noBackoff = -1
)

// redisClient makes a client that dials at its first use.
func redisClient(c config) (redis.UniversalClient, error) {
	u, err := url.Parse(c.redisURL)
	if err != nil {
		return nil, err
	}
	timeout := max(redisTimeout, c.redisBudget)
	switch query := u.Query(); {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(c.redisURL)
		if err != nil {
			return nil, err
		}
		o.MaxRetries, o.DialerRetries = -1, 1
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
		o.Dialer = redislimit.Dialer(&redis.Options{DialTimeout: timeout, TLSConfig: o.TLSConfig})
		return redis.NewFailoverClient(o), nil
	case query.Has("addr"):
		o, err := redis.ParseClusterURL(c.redisURL)
		if err != nil {
			return nil, err
		}
		o.MaxRetries, o.DialerRetries, o.ClusterStateReloadInterval = -1, 1, redisReload
		o.PoolSize, o.MinRetryBackoff = cmp.Or(o.PoolSize, clusterPool), cmp.Or(o.MinRetryBackoff, noBackoff)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
		o.Dialer = redislimit.Dialer(&redis.Options{DialTimeout: timeout, TLSConfig: o.TLSConfig})
		return redis.NewClusterClient(o), nil
	default:
		o, err := redis.ParseURL(c.redisURL)
		if err != nil {
			return nil, err
		}
		o.MaxRetries, o.DialerRetries = -1, 1
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
		o.Dialer = redislimit.Dialer(&redis.Options{DialTimeout: timeout, TLSConfig: o.TLSConfig})
		return redis.NewClient(o), nil
	}
}

// redisLog takes what the client says of its connections, which is one line for each
// that it does not get.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}
