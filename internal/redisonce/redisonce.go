// Package redisonce decides that a script is sent to Redis at most once, and whether
// one that failed may have been run.
package redisonce

import (
	"context"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// A Client is one of a single node, Sentinel or Cluster.
type Client interface {
	redis.Scripter
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A Scripter sends a script at most once. A Cluster's client repeats what it got no answer
// to even with its retries off, and a script whose answer is lost may have been run.
// Where the server answers that the key has moved, the client still follows.
type Scripter struct{ Client }

// EvalSha implements redis.Scripter.
func (s Scripter) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	return s.send(ctx, "evalsha", hash, keys, args)
}

// Eval implements redis.Scripter.
func (s Scripter) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return s.send(ctx, "eval", script, keys, args)
}

func (s Scripter) send(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	cmd := NewCommand(ctx, name, script, keys, args)
	_ = s.Process(ctx, cmd) // the command has the error
	return cmd.Cmd
}

// NewCommand makes the command that runs a script: evalsha and its hash, or eval and its text.
func NewCommand(ctx context.Context, name, script string, keys []string, args []any) Command {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, name, script, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	return Command{redis.NewCmd(ctx, append(words, args...)...)}
}

// A Command is one that the client does not send again.
type Command struct{ *redis.Cmd }

// NoRetry is part of redis.Cmder.
func (Command) NoRetry() bool { return true }

// Clone is part of redis.Cmder.
func (c Command) Clone() redis.Cmder {
	if cmd, ok := c.Cmd.Clone().(*redis.Cmd); ok {
		return Command{cmd}
	}
	return c
}

// NotDone reports whether a command that failed has changed nothing: the server has
// answered with an error, which no script of ours does once it has written, or the
// command was never sent.
func NotDone(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return answered || NotSent(err)
}

// NotSent reports whether a command that failed had no connection to be sent on.
func NotSent(err error) bool {
	_, dead := errors.AsType[interface {
		error
		NotSent() // of a dialer that hands out a failure as a connection
	}](err)
	dial, _ := errors.AsType[*net.OpError](err)
	return dead || dial != nil && dial.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
