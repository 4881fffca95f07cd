package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/redisonce"
)

func TestMarkerNamesItsStore(t *testing.T) {
	server := engine.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	route, otherRoute := []byte(strings.Repeat("k", 32)), []byte(strings.Repeat("l", 32))
	prod := config{dynamoDB: "aws", tablePrefix: "coord_", redisPrefix: engine.FreshPrefix()}
	other, otherPlace := prod, prod
	other.tablePrefix = "copy_"
	otherPlace.redisPrefix = engine.FreshPrefix()
	data := newDeployment(route)
	mine := newMarker(client, prod, route, data)
	for _, step := range []struct {
		why  string
		mark *marker
		want error
	}{
		{"the first", mine, nil},
		{"another node of the same tables", newMarker(client, prod, route, data), nil},
		{"a copy of the tables under another name", newMarker(client, other, route, data), errForeignRedis},
		{"other tables of the same name, elsewhere", newMarker(client, prod, route, newDeployment(route)), errForeignRedis},
		{"other keys", newMarker(client, prod, otherRoute, data), errForeignRedis},
		{"a prefix of its own", newMarker(client, otherPlace, otherRoute, data), nil},
		{"without Redis", newMarker(nil, prod, route, data), nil},
		{"a Redis that does not answer", newMarker(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), prod, route, data), nil},
	} {
		name, err := step.mark.check(t.Context())
		if !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.why, err, step.want)
		}
		if same := step.why == "the first" || step.why == "another node of the same tables"; (name == mine.name) != same {
			t.Errorf("%s: the Redis is named %q, not %q: %v", step.why, name, mine.name, same)
		}
	}
	client.Expire(t.Context(), mine.key, time.Minute)
	if _, err := mine.check(t.Context()); err != nil || client.TTL(t.Context(), mine.key).Val() < 23*time.Hour {
		t.Errorf("not renewed: %v, %s", err, client.TTL(t.Context(), mine.key).Val())
	}
	name := mine.name
	client.Del(t.Context(), mine.key)
	if got, err := mine.check(t.Context()); err != nil || got != name {
		t.Errorf("after a loss the Redis is named %q, %v", got, err)
	}
	client.Set(t.Context(), mine.key, "1 another", time.Minute)
	s := stores{redisBar: &bar{store: "redis"}}
	client.AddHook(s.redisBar)
	log := slog.New(slog.DiscardHandler)
	if sure, err := s.pair(t.Context(), mine, prod, log); sure || !errors.Is(err, errForeignRedis) {
		t.Errorf("found later: %v, %v", sure, err)
	}
	if err := client.Get(t.Context(), "k").Err(); !errors.Is(err, errForeignRedis) || !redisonce.NotSent(err) {
		t.Errorf("it is not used then: %v", err)
	}
	if _, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Get(t.Context(), "k").Err() }); !errors.Is(err, errForeignRedis) {
		t.Errorf("nor by a pipeline: %v", err)
	}
	if ttl := client.TTL(passing(t.Context()), mine.key).Val(); ttl > time.Minute || ttl <= 0 {
		t.Errorf("another's marker was renewed: %s", ttl)
	}
	client.Del(passing(t.Context()), mine.key)
	if sure, err := s.pair(t.Context(), mine, prod, log); !sure || err != nil {
		t.Errorf("what left the marker is gone: %v, %v", sure, err)
	}
	if err := client.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("it is used again: %v", err)
	}
}
