package redislock_test

import (
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/redislock"
)

// Locks that processes share. Redis may lose one in a failover: then two have it.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", MaxRetries: -1})
	_ = lock.New(redislock.New(client, "shop:"), lock.Options{})
}
