package redislock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/locktest"
	"github.com/coordsvc/coordsvc/lock/redislock"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// dial returns a client that repeats nothing.
func dial(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRedis(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	locktest.Run(t, func(t *testing.T) locktest.Bench {
		prefix := engine.FreshPrefix()
		return locktest.Bench{
			Store: redislock.New(client, prefix),
			Pass:  func(d time.Duration) { pass(t, client, prefix, d) },
			Now:   func() time.Time { return time.Time{} }, // the server's own clock decides
		}
	})
}

// pass moves the end of every key as if so much time had passed.
func pass(t *testing.T, client *redis.Client, prefix string, d time.Duration) {
	t.Helper()
	for _, key := range keysOf(t, client, prefix) {
		left, err := client.PTTL(t.Context(), key).Result()
		if err != nil || left <= 0 {
			t.Fatalf("%s has no end: %v, %v", key, left, err)
		}
		if left <= d {
			err = client.Del(t.Context(), key).Err()
		} else {
			err = client.PExpire(t.Context(), key, left-d).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func keysOf(t *testing.T, client *redis.Client, prefix string) []string {
	t.Helper()
	keys, err := client.Keys(t.Context(), prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// What is stored is claimed by its type, says its format, ends by itself, and tells who has it.
func TestStoredLock(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	s := redislock.New(client, prefix)
	if _, err := s.Acquire(t.Context(), "t", "{n}", lock.Acquire{ID: "lck_a", Owner: "w 1", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	keys := keysOf(t, client, prefix)
	if len(keys) != 1 {
		t.Fatalf("keys %q", keys)
	}
	kind, parts, ok := keytype.SplitTagged(prefix, keys[0])
	if !ok || kind != keytype.AdvisoryLock || strings.Join(parts, ",") != "t,{n}" {
		t.Errorf("key %q is %v %q", keys[0], kind, parts)
	}
	if value := client.Get(t.Context(), keys[0]).Val(); value != "1lck_a 3600000 w 1" {
		t.Errorf("value %q", value)
	}
	if left := client.PTTL(t.Context(), keys[0]).Val(); left <= 0 || left > time.Hour {
		t.Errorf("ends in %v", left)
	}
}

func TestFaults(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := l.Addr().String()
	defer l.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	_ = free.Close()
	refusing := dial(t, engine.StartRedis(t).Addr)
	if err := refusing.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		why    string
		client *redis.Client
		want   error
	}{
		{"nobody listens", dial(t, nobody), keytype.ErrUnavailable},
		{"nobody listens, and the dialer is the limits'", redis.NewClient(&redis.Options{MaxRetries: -1, Addr: nobody, Dialer: redislimit.Dialer(&redis.Options{DialTimeout: time.Second})}), keytype.ErrUnavailable},
		{"the server may not write", refusing, keytype.ErrUnavailable},
		{"no answer came", redis.NewClient(&redis.Options{Addr: silent, MaxRetries: -1, ReadTimeout: 50 * time.Millisecond}), keytype.ErrOutcomeUnknown},
	} {
		_, err := redislock.New(c.client, "p").Acquire(t.Context(), "t", "n", lock.Acquire{ID: "lck_a", Owner: "w", TTL: time.Hour})
		other := map[error]error{keytype.ErrUnavailable: keytype.ErrOutcomeUnknown, keytype.ErrOutcomeUnknown: keytype.ErrUnavailable}[c.want]
		if !errors.Is(err, c.want) || errors.Is(err, other) {
			t.Errorf("%s: %v, want %v", c.why, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := redislock.New(refusing, "p").Acquire(ctx, "t", "n", lock.Acquire{ID: "lck_a", Owner: "w", TTL: time.Hour}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
