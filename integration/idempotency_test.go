package integration

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// under sends a POST with an Idempotency-Key and returns the status and the body.
func (s *service) under(name, path, body string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Idempotency-Key", name)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// Of the same request at two nodes one is carried out, and its answer is that of both.
func TestTwoNodesAnswerARequestOnce(t *testing.T) {
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	nodes := []*service{start(t, env...), start(t, env...)}
	for _, n := range nodes {
		n.key = key
	}
	var mu sync.Mutex
	answers := map[string]bool{}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			status, body := nodes[i%2].under("login-1", "/v1/sessions", `{"user_id":"ada"}`)
			mu.Lock()
			defer mu.Unlock()
			if status == 201 {
				answers[body] = true
			} else if status != 409 {
				t.Errorf("answered %d %s", status, body)
			}
		})
	}
	group.Wait()
	for _, n := range nodes {
		status, body := n.under("login-1", "/v1/sessions", `{"user_id":"ada"}`)
		if status != 201 {
			t.Fatalf("answered %d %s", status, body)
		}
		answers[body] = true
	}
	list := nodes[0].call(200, "GET", "/v1/users/ada/sessions", "")
	if all, _ := list.body["sessions"].([]any); len(answers) != 1 || len(all) != 1 {
		t.Errorf("%d answers, %d sessions", len(answers), len(all))
	}

	const ask = `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`
	first := nodes[0].call(200, "POST", "/v1/idempotency/order/claim", ask)
	nodes[1].call(409, "POST", "/v1/idempotency/order/claim", ask)
	nodes[1].call(204, "POST", "/v1/idempotency/order/complete", `{"claim_id":"`+first.text("claim_id")+`","response":{"ok":true}}`)
	if done := nodes[0].call(200, "POST", "/v1/idempotency/order/claim", ask); done.text("state") != "completed" {
		t.Errorf("claimed again: %s", done.raw)
	}
	if a := nodes[0].call(503, "POST", "/v1/locks/n/acquire", `{"owner":"w","ttl_ms":60000}`); a.text("code") != "feature_unavailable" {
		t.Errorf("a lock without a Redis: %s", a.raw)
	}
}

// Nodes that share a Redis share its locks, which end with it and not with a node.
func TestTwoNodesShareLocks(t *testing.T) {
	db, redis := engine.DynamoDB(t), engine.Redis(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	env = append(env, "COORD_REDIS_URL="+redis.URL(), "COORD_REDIS_PREFIX="+engine.FreshPrefix())
	createTables(t, env)
	nodes := []*service{start(t, env...), start(t, env...)}
	for _, n := range nodes {
		n.key = key
	}
	const ask = `{"owner":"w","ttl_ms":60000}`
	held := nodes[0].call(200, "POST", "/v1/locks/n/acquire", ask)
	nodes[0].kill()
	nodes[1].call(409, "POST", "/v1/locks/n/acquire", ask)
	nodes[1].call(200, "POST", "/v1/locks/n/renew", `{"lock_id":"`+held.text("lock_id")+`"}`)
	nodes[1].call(204, "POST", "/v1/locks/n/release", `{"lock_id":"`+held.text("lock_id")+`"}`)
	nodes[1].call(200, "POST", "/v1/locks/n/acquire", ask)
}

// A claim and a stored answer outlive the embedded node; an advisory lock does not.
func TestEmbeddedIdempotencyAcrossKill(t *testing.T) {
	s := start(t)
	_, first := s.under("k", "/v1/sessions", `{"user_id":"ada"}`)
	s.call(200, "POST", "/v1/idempotency/order/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`)
	s.call(200, "POST", "/v1/locks/n/acquire", `{"owner":"w","ttl_ms":60000}`)
	s.kill()
	s.restart()
	if _, again := s.under("k", "/v1/sessions", `{"user_id":"ada"}`); again != first {
		t.Errorf("answered %s, then %s", first, again)
	}
	s.call(409, "POST", "/v1/idempotency/order/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`)
	s.call(200, "POST", "/v1/locks/n/acquire", `{"owner":"w","ttl_ms":60000}`)
}
