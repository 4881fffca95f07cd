package redissession_test

import (
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// A manager whose verifies are answered from Redis where that is possible.
func Example() {
	durable := session.NewLocal(embedded.Memory()) // in production: dynamosession
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", MaxRetries: -1})
	cache := redissession.New(client, redissession.Options{Prefix: "shop:"})
	through := session.NewReadThrough(durable, cache, session.ReadThroughOptions{})
	defer through.Flush()
	_ = session.New(through, session.Options{RouteKey: make([]byte, 32)})
}
