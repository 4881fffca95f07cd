package redislimit_test

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
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
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
			w.sent = append(w.sent, fmt.Sprint("again ", !cmd.NoRetry()))
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
// charge must not be sent again.
func TestR45AClusterChargesOnce(t *testing.T) {
	addr, w := engine.Redis(t).Addr, &witness{}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, MaxRetries: -1, DialerRetries: 1, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { // as if the one server were a Cluster
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	client.OnNewNode(func(node *redis.Client) { node.AddHook(w) })
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, 24*time.Hour, 10)}, Cost: 1}
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Fatalf("got %+v", out)
	}
	w.sent, w.lose = nil, true
	if _, err := store.Take(t.Context(), charge); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("the answer is lost: got %v", err)
	}
	if fmt.Sprint(w.sent) != "[again false]" {
		t.Errorf("sent %v", w.sent)
	}
	w.lose = false
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 7 {
		t.Errorf("two charges and one whose answer was lost leave %d of 10", out.Verdicts[0].Remaining)
	}
}
