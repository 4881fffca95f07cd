package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
)

func TestMarkerNamesItsStore(t *testing.T) {
	server := engine.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	route := []byte(strings.Repeat("k", 32))
	prod := config{dynamoDB: "aws", tablePrefix: "coord_", redisPrefix: engine.FreshPrefix()}
	other, otherPlace := prod, prod
	other.tablePrefix = "copy_"
	otherPlace.redisPrefix = engine.FreshPrefix()
	mine := newMarker(client, prod, route)
	for _, step := range []struct {
		why  string
		mark marker
		want error
	}{
		{"the first", mine, nil},
		{"another node of the same tables", newMarker(client, prod, route), nil},
		{"a copy of the tables under the same keys", newMarker(client, other, route), errForeignRedis},
		{"other keys", newMarker(client, prod, []byte(strings.Repeat("l", 32))), errForeignRedis},
		{"a prefix of its own", newMarker(client, otherPlace, []byte(strings.Repeat("l", 32))), nil},
		{"without Redis", newMarker(nil, prod, route), nil},
		{"a Redis that does not answer", newMarker(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), prod, route), nil},
	} {
		if err := step.mark.look(t.Context()); step.why == "the first" && (err != nil || client.Exists(t.Context(), mine.key).Val() != 0) {
			t.Errorf("a look before there is a marker: %v, or it left one", err)
		}
		if err := step.mark.check(t.Context()); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.why, err, step.want)
		}
	}
	client.Expire(t.Context(), mine.key, time.Minute)
	if err := mine.check(t.Context()); err != nil || client.TTL(t.Context(), mine.key).Val() < 23*time.Hour {
		t.Errorf("not renewed: %v, %s", err, client.TTL(t.Context(), mine.key).Val())
	}
	client.Set(t.Context(), mine.key, "1 another", time.Minute)
	if err := mine.watch(t.Context(), time.Millisecond, slog.New(slog.DiscardHandler)); !errors.Is(err, errForeignRedis) {
		t.Errorf("found later: %v", err)
	}
}
