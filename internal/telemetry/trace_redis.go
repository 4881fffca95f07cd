package telemetry

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
)

// RedisHook is for a client whose keys begin with the prefix: it makes a span of each
// command of a request that is sampled. A command's arguments are not looked at but for
// the first key, which tells the key type.
func (t *Tracer) RedisHook(prefix string) redis.Hook { return redisTracing{t, prefix} }

type redisTracing struct {
	tracer *Tracer
	prefix string
}

// DialHook implements redis.Hook.
func (h redisTracing) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h redisTracing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !trace.SpanContextFromContext(ctx).IsSampled() {
			return next(ctx, cmd)
		}
		begun := time.Now()
		err := next(ctx, cmd)
		h.tried(ctx, cmd, err, begun)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook. The commands of a pipeline share its time.
func (h redisTracing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		begun := time.Now()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if of := whose(ctx, cmd); trace.SpanContextFromContext(of).IsSampled() {
				h.tried(of, cmd, cmd.Err(), begun)
			}
		}
		return err
	}
}

// whose is the context of the caller who sent the command, where a pipeline has commands
// of several.
func whose(ctx context.Context, cmd redis.Cmder) context.Context {
	if own, ok := cmd.(interface{ Context() context.Context }); ok {
		return own.Context()
	}
	return ctx
}

func (h redisTracing) tried(ctx context.Context, cmd redis.Cmder, err error, begun time.Time) {
	h.tracer.StoreTried(ctx, "redis", redisKind(h.prefix, cmd), cmd.Name(), redisOutcome(err), begun)
}
