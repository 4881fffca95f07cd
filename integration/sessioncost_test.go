package integration

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// commands notes what a client of Redis sends.
type commands struct {
	mu   sync.Mutex
	sent []string // guarded by mu
}

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		c.sent = append(c.sent, cmd.Name())
		c.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// take returns what was sent since it was last called.
func (c *commands) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = nil
	return sent
}

// What a verify costs, counted at the clients of the real stores.
func TestVerifyCosts(t *testing.T) {
	db, node := engine.DynamoDB(t), engine.Redis(t)
	prefix, wire := db.Prefix(t), &dynamotest.Wire{}
	if err := dynamo.Create(t.Context(), db.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	client, sent := redis.NewClient(&redis.Options{Addr: node.Addr, MaxRetries: -1}), &commands{}
	client.AddHook(sent)
	t.Cleanup(func() { _ = client.Close() })
	cache := redissession.New(client, redissession.Options{Prefix: engine.FreshPrefix(), Budget: 5 * time.Second})
	through := session.NewReadThrough(dynamosession.New(db.Client(wire.Option), prefix), cache, session.ReadThroughOptions{})
	t.Cleanup(through.Flush)
	m := session.New(through, session.Options{RouteKey: make([]byte, 32)})
	login := func() string {
		token, _, err := m.Create(t.Context(), "acme", session.CreateRequest{UserID: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		return token.Reveal()
	}
	verify := func(token string) {
		t.Helper()
		if v, err := m.Verify(t.Context(), "acme", token, session.VerifyRequest{}); err != nil || !v.Active {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	verify(login()) // loads the scripts, and learns the tenant's epoch
	token := login()
	cost := func(why string, redisCommands, dynamoRequests []string) {
		t.Helper()
		var requests []string
		for _, r := range wire.Take() {
			requests = append(requests, r.Operation)
			if r.Operation == "GetItem" && r.Body["ConsistentRead"] != true {
				t.Errorf("%s: reads what may be old", why)
			}
		}
		if got := sent.take(); !slices.Equal(got, redisCommands) || !slices.Equal(requests, dynamoRequests) {
			t.Errorf("%s: %v and %v, want %v and %v", why, got, requests, redisCommands, dynamoRequests)
		}
	}
	wire.Take()
	sent.take()
	verify(token)
	cost("cold: a look, two reads, a fill", []string{"evalsha", "evalsha"}, []string{"GetItem", "GetItem"})
	for range 10 {
		verify(token)
	}
	cost("warm", slices.Repeat([]string{"evalsha"}, 10), nil)
}
