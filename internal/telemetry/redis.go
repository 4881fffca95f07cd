package telemetry

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
)

// RedisHook is for a client whose keys begin with the prefix: it counts each command.
func (m *Metrics) RedisHook(prefix string) redis.Hook { return redisHook{m, prefix} }

type redisHook struct {
	metrics *Metrics
	prefix  string
}

// DialHook implements redis.Hook.
func (h redisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		begun := time.Now()
		err := next(ctx, cmd)
		h.count(cmd, err, time.Since(begun))
		return err
	}
}

// ProcessPipelineHook implements redis.Hook. The commands of a pipeline share its time.
func (h redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		begun := time.Now()
		err := next(ctx, cmds)
		took := time.Since(begun)
		for _, cmd := range cmds {
			h.count(cmd, cmd.Err(), took)
		}
		return err
	}
}

func (h redisHook) count(cmd redis.Cmder, err error, took time.Duration) {
	h.metrics.StoreTried("redis", redisKind(h.prefix, cmd), cmd.Name(), redisOutcome(err), took)
}

// redisKind is the key type that the command is about.
func redisKind(prefix string, cmd redis.Cmder) string {
	if t, known := keytype.OfRedisKey(prefix, firstKey(cmd)); known {
		return t.Name
	}
	return "none"
}

// firstKey is the first key of a script, or the first argument of another command.
func firstKey(cmd redis.Cmder) string {
	at := 1
	switch cmd.Name() {
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		at = 3
	}
	if args := cmd.Args(); at < len(args) {
		switch key := args[at].(type) {
		case string:
			return key
		case *string:
			return *key
		}
	}
	return ""
}

// redisOutcome: an absent key is an answer, and so is a script that is not loaded yet.
func redisOutcome(err error) string {
	if err == nil || errors.Is(err, redis.Nil) || strings.HasPrefix(err.Error(), "NOSCRIPT") {
		return "ok"
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return "failed"
}
