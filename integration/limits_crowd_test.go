package integration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// fullDepth reports whether tests run at full counts.
func fullDepth() bool {
	depth, _ := os.LookupEnv("COORD_TEST_DEPTH")
	return depth == "proof"
}

// atDepth is the first value in a quick run and the second at full depth.
func atDepth[T any](quick, full T) T {
	if fullDepth() {
		return full
	}
	return quick
}

// loadClient keeps a connection for each of many callers.
var loadClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}

// limitNodes starts nodes that count by the policies on one Redis. With the service's
// own budget a slow machine takes a healthy Redis for a slow one, so that a quick run
// has a longer one.
func limitNodes(t *testing.T, n int, redisURL, policies string, more ...string) []*service {
	t.Helper()
	db := engine.DynamoDB(t)
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	env = append(env, "COORD_REDIS_URL="+redisURL, "COORD_REDIS_PREFIX="+engine.FreshPrefix(), "COORD_POLICY_PATH="+path,
		"COORD_REDIS_BUDGET_MS="+atDepth("100", "5"))
	env = append(env, more...)
	var nodes []*service
	for range n {
		s := start(t, env...)
		s.key = key
		nodes = append(nodes, s)
	}
	return nodes
}

// A limitAnswer is what a caller saw of one check or peek.
type limitAnswer struct {
	Allowed        bool
	Source         string
	Degraded       bool
	DegradedReason string `json:"degraded_reason"`
	Code           string
	Limits         []struct {
		Name             string
		Limit, Remaining int64
	}

	status int
	flag   string // the header that says degraded
	raw    string

	node         int
	policy       string
	begun, ended time.Time
}

// limitCall asks a node for a decision. It returns an error where no answer came.
func limitCall(s *service, path, body string) (limitAnswer, error) {
	a := limitAnswer{begun: time.Now()}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/ratelimit/"+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := loadClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	a.ended = time.Now()
	a.status, a.flag, a.raw = resp.StatusCode, resp.Header.Get("X-RateLimit-Degraded"), string(raw)
	return a, errors.Join(err, json.Unmarshal(raw, &a))
}

// byStore reports whether Redis decided, or had refused the same just before.
func (a limitAnswer) byStore() bool {
	return a.Source == "redis" || a.Source == "deny_cache" && a.status == 429
}

// byRedis peeks until Redis has decided, and so tells what is left there.
func byRedis(s *service, body string) limitAnswer {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		a, err := limitCall(s, "peek", body)
		if err == nil && a.Source == "redis" {
			return a
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("Redis does not decide: %v %s", err, a.raw)
		}
	}
}

// postures are policies that differ in their postures only. Nothing comes back
// within a test, so that what is left tells exactly what was charged.
const postures = `version: 1
policies:
  - name: open
    on_store_failure: fail_open
    limits: [{name: all, key: [app], algorithm: token_bucket, rate: 1/h, burst: 30000}]
  - name: closed
    on_store_failure: fail_closed
    limits: [{name: all, key: [app], algorithm: token_bucket, rate: 1/h, burst: 30000}]
  - name: node
    on_store_failure: local
    local: {rate: 1/h, burst: 20}
    limits: [{name: all, key: [app], algorithm: token_bucket, rate: 1/h, burst: 30000}]
`

const (
	burstOfPostures = 30_000
	burstOfNode     = 20
	crowdPace       = 10 * time.Millisecond // between two checks of one caller
)

// A crowd checks by every posture on every node until it is stopped. Who is closed
// repeats the same request until Redis has decided it.
type crowd struct {
	t       *testing.T
	nodes   []*service
	app     string // the descriptor: the crowd's own buckets
	stop    chan struct{}
	callers sync.WaitGroup

	mu   sync.Mutex
	seen []limitAnswer // guarded by mu
}

func gather(t *testing.T, nodes []*service, app string) *crowd {
	c := &crowd{t: t, nodes: nodes, app: app, stop: make(chan struct{})}
	for node := range nodes {
		for _, policy := range []string{"open", "closed", "node"} {
			for caller := range 4 {
				c.callers.Go(func() { c.call(node, policy, caller) })
			}
		}
	}
	return c
}

func (c *crowd) call(node int, policy string, caller int) {
	for n := 0; ; n++ {
		select {
		case <-c.stop:
			return
		case <-time.After(crowdPace):
		}
		body := fmt.Sprintf(`{"policy":%q,"descriptors":{"app":%q}}`, policy, c.app)
		if policy == "closed" {
			body = fmt.Sprintf(`{"policy":%q,"descriptors":{"app":%q},"request_id":"%[2]s %d %d %d"}`, policy, c.app, node, caller, n)
		}
		for begun := time.Now(); c.check(node, policy, body) == "fail_closed"; time.Sleep(crowdPace) {
			if time.Since(begun) > time.Minute {
				c.t.Errorf("%s: closed for a minute", c.app)
				return
			}
		}
	}
}

// check demands what the policy's posture says, and returns the source.
func (c *crowd) check(node int, policy, body string) string {
	a, err := limitCall(c.nodes[node], "check", body)
	a.node, a.policy = node, policy
	if err != nil {
		c.t.Errorf("%s: no answer: %v %s", policy, err, a.raw)
		return ""
	}
	c.mu.Lock()
	c.seen = append(c.seen, a)
	c.mu.Unlock()
	right := a.Source == "redis" && a.status == 200 && a.Allowed && !a.Degraded && a.flag == ""
	degraded := a.Degraded && a.DegradedReason != "" && a.flag == "true"
	switch policy {
	case "open":
		right = right || degraded && a.Source == "fail_open" && a.status == 200 && a.Allowed
	case "closed":
		right = right || degraded && a.Source == "fail_closed" && a.status == 503 && a.Code == "store_unavailable"
	case "node":
		right = right || degraded && a.Source == "local" && (a.status == 200 && a.Allowed || a.status == 429 && !a.Allowed)
	}
	if !right {
		c.t.Errorf("%s: got %d %s", policy, a.status, a.raw)
	}
	return a.Source
}

// answers returns those that the crowd has seen so far.
func (c *crowd) answers(matching func(a limitAnswer) bool) []limitAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []limitAnswer
	for _, a := range c.seen {
		if matching(a) {
			found = append(found, a)
		}
	}
	return found
}

// awaitRedis waits until Redis has decided on every node by every policy again. It
// returns how long after an instant it first did so on the last of the nodes, and
// by the last of the policies.
func (c *crowd) awaitRedis(since time.Time) (nodes, policies time.Duration) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		byNode, byPolicy := map[int]time.Duration{}, map[[2]any]time.Duration{}
		for _, a := range c.answers(func(a limitAnswer) bool { return a.Source == "redis" && !a.begun.Before(since) }) {
			after := a.ended.Sub(since)
			byNode[a.node] = min(after, cmp.Or(byNode[a.node], after))
			key := [2]any{a.node, a.policy}
			byPolicy[key] = min(after, cmp.Or(byPolicy[key], after))
		}
		if len(byPolicy) == 3*len(c.nodes) {
			return slices.Max(slices.Collect(maps.Values(byNode))), slices.Max(slices.Collect(maps.Values(byPolicy)))
		}
	}
	c.t.Fatalf("%s: Redis does not decide again", c.app)
	return 0, 0
}

// disperse stops the crowd and returns once everybody who was closed has an answer.
func (c *crowd) disperse() {
	close(c.stop)
	c.callers.Wait()
}

// used is how much of a policy's bucket Redis has charged.
func (c *crowd) used(policy string) int64 {
	c.t.Helper()
	a := byRedis(c.nodes[0], fmt.Sprintf(`{"policy":%q,"descriptors":{"app":%q}}`, policy, c.app))
	return burstOfPostures - a.Limits[0].Remaining
}

// mayHaveCharged tells an answer that was given before Redis's own, from one that no
// charge can come of.
func mayHaveCharged(a limitAnswer) bool {
	return a.DegradedReason == "timeout" || a.DegradedReason == "connection_lost"
}

// describe tells how long the answers took and by what they were degraded, and
// returns the longest.
func describe(answers []limitAnswer) (text string, longest time.Duration) {
	if len(answers) == 0 {
		return "no answers", 0
	}
	var took []time.Duration
	slow, reasons := 0, map[string]int{}
	for _, a := range answers {
		took = append(took, a.ended.Sub(a.begun))
		if a.ended.Sub(a.begun) >= 100*time.Millisecond {
			slow++
		}
		if a.Degraded {
			reasons[a.DegradedReason]++
		} else {
			reasons["by redis"]++
		}
	}
	slices.Sort(took)
	at := func(share int) time.Duration { return took[(len(took)-1)*share/100].Round(10 * time.Microsecond) }
	return fmt.Sprintf("%d answers, p50 %v, p99 %v, longest %v, %d took 100 ms or more, %v", len(took), at(50), at(99), at(100), slow, reasons), took[len(took)-1]
}
