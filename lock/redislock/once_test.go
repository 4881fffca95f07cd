package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/redislock"
)

// A witness sees every script that a node runs, and may lose the answer.
type witness struct {
	sent []string
	lose bool
}

func (w *witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if name := cmd.Name(); name == "evalsha" || name == "eval" {
			w.sent = append(w.sent, fmt.Sprint(name, " ", cmd.NoRetry()))
			if w.lose && err == nil {
				return io.EOF
			}
		}
		return err
	}
}

func (w *witness) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *witness) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A Cluster's client repeats a command whose answer is lost, whatever its retries: a
// lock that was taken would then meet itself, and seem to be held by somebody else.
func TestR45AClusterAcquiresOnce(t *testing.T) {
	addr := engine.StartRedis(t).Addr
	w := &witness{}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, MaxRetries: -1, DialerRetries: 1, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { // as if the one server were a Cluster
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	client.OnNewNode(func(node *redis.Client) { node.AddHook(w) })
	s := redislock.New(client, "p")
	acquire := func(name string) (lock.Outcome, error) {
		return s.Acquire(t.Context(), "t", name, lock.Acquire{ID: "lck_a", Owner: "w", TTL: time.Hour})
	}
	if out, err := acquire("first"); err != nil || out.Verdict != lock.Done {
		t.Fatalf("got %+v, %v", out, err)
	}
	w.lose = true
	if out, err := acquire("second"); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("the answer is lost: got %+v, %v", out, err)
	}
	if want := "[evalsha true eval true evalsha true]"; fmt.Sprint(w.sent) != want {
		t.Errorf("sent %v, want %s: the server does not know the script at first", w.sent, want)
	}
	w.lose = false
	if out, err := acquire("second"); err != nil || out.Verdict != lock.Held {
		t.Errorf("it was taken: got %+v, %v", out, err)
	}
}
