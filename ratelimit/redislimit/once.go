package redislimit

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// once sends a script at most once. A Cluster's client repeats what it got no answer
// to even with its retries off, and a script whose answer is lost may have been run.
// Where the server answers that the key has moved, the client still follows.
type once struct{ client }

// EvalSha implements redis.Scripter.
func (o once) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	return o.send(ctx, "evalsha", hash, keys, args)
}

// Eval implements redis.Scripter.
func (o once) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return o.send(ctx, "eval", script, keys, args)
}

func (o once) send(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, name, script, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	cmd := notRepeated{redis.NewCmd(ctx, append(words, args...)...)}
	_ = o.Process(ctx, cmd) // the command has the error
	return cmd.Cmd
}

// A notRepeated is a command that the client does not send again.
type notRepeated struct{ *redis.Cmd }

// NoRetry is part of redis.Cmder.
func (notRepeated) NoRetry() bool { return true }

// Clone is part of redis.Cmder.
func (c notRepeated) Clone() redis.Cmder {
	if cmd, ok := c.Cmd.Clone().(*redis.Cmd); ok {
		return notRepeated{cmd}
	}
	return c
}
