package redissession_test

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
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
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

// A Cluster's client repeats a command whose answer is lost, whatever its retries. The
// caller of a verify waits no longer than its budget, so the second try would only
// be work for a server that is slow already.
func TestR45AClusterIsAskedOnce(t *testing.T) {
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
	cache := redissession.New(client, redissession.Options{Budget: 10 * time.Second})
	for what, ask := range map[string]func() error{
		"verify": func() error {
			_, err := cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms)
			return err
		},
		"fill": func() error {
			_, _, err := cache.Fill(t.Context(), session.Fill{Key: key, User: user(7), Record: record(time.Now()), At: time.Now().UnixMilli()}, terms)
			return err
		},
		"bump": func() error { return cache.Bump(t.Context(), tag, 8, terms) },
	} {
		w.sent, w.lose = nil, false
		must(t, ask())
		w.lose = true
		if err := ask(); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s: the answer is lost: %v", what, err)
		}
		if want := "[evalsha true eval true evalsha true]"; fmt.Sprint(w.sent) != want {
			t.Errorf("%s: sent %v, want %s: the server does not know the script at first", what, w.sent, want)
		}
	}
}
