// Package redisoncetest decides how often a script was sent, where a client would
// repeat it: a Cluster's repeats a command whose answer is lost, whatever its retries.
package redisoncetest

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Witness sees every script that a client runs, and may lose the answer.
type Witness struct {
	// Sent has the command of each, and whether it is one that is not repeated.
	Sent []string
	// Lose makes the client see no answer to a script that was run.
	Lose bool
}

// Cluster returns a client of the one server as if that were a Cluster, and its witness.
// The client ends with the test.
func Cluster(t testing.TB, addr string) (*redis.ClusterClient, *Witness) {
	t.Helper()
	w := &Witness{}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, MaxRetries: -1, DialerRetries: 1, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	client.OnNewNode(func(node *redis.Client) { node.AddHook(w) })
	return client, w
}

// ProcessHook implements redis.Hook.
func (w *Witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if name := cmd.Name(); name == "evalsha" || name == "eval" {
			w.Sent = append(w.Sent, fmt.Sprint(name, " ", cmd.NoRetry()))
			if w.Lose && err == nil {
				return io.EOF
			}
		}
		return err
	}
}

// DialHook implements redis.Hook.
func (w *Witness) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (w *Witness) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
