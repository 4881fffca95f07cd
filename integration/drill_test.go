package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/drill"
	"github.com/coordsvc/coordsvc/integration/engine"
)

// What one key may do per second over all nodes, and on each while Redis is not asked.
const (
	drillLimit  = 50
	drillPolicy = `version: 1
policies:
  - name: drill
    on_store_failure: local
    local: {rate: 5/s, burst: 5}
    limits: [{name: app, key: [app], algorithm: token_bucket, rate: 50/s, burst: 50}]
`
)

// A rehearsal is three nodes over the stores that a drill breaks.
type rehearsal struct {
	t     *testing.T
	out   io.Writer
	nodes []*service
	redis *engine.RedisSentinel
	db    *dynamoFaults
	begun time.Time
	had   drill.Faults
}

func rehearse(t *testing.T, program string) *rehearsal {
	t.Helper()
	db := engine.StartDynamo(t, "")
	r := &rehearsal{t: t, redis: engine.StartSentinelOf(t, 2), db: newDynamoFaults(t, db.Watched())}
	r.db.prefix = engine.FreshPrefix()
	env, key := production(t, db.Env(), r.db.prefix)
	createTables(t, env)
	env = append(env, "COORD_DYNAMODB="+r.db.url, "COORD_REDIS_URL="+r.redis.URL(), "COORD_REDIS_BUDGET_MS=50",
		"COORD_POLICY_PATH="+writeFile(t, drillPolicy), "COORD_OPS_ADDR=127.0.0.1:0")
	for range 3 {
		s := &service{t: t, env: slices.Concat(env, []string{fmt.Sprint("COORD_HTTP_ADDR=127.0.0.1:", engine.FreePort(t)), "COORD_DATA_DIR=" + t.TempDir()}), program: program, key: key}
		s.run()
		t.Cleanup(s.kill)
		s.awaitReady()
		awaitStatus(t, s.ops+"/readyz", 200)
		r.nodes = append(r.nodes, s)
	}
	r.had = drill.Faults{Nodes: len(r.nodes), Lives: len(r.nodes)}
	return r
}

// does does something to the stores and nodes, and says so.
func (r *rehearsal) does(what string, do func()) {
	fmt.Fprintf(r.out, "%6.1f s  %s\n", time.Since(r.begun).Seconds(), what)
	do()
}

// faults goes through all faults once, in the given time.
func (r *rehearsal) faults(within time.Duration) {
	wait := func(share int) { time.Sleep(within * time.Duration(share) / 100) }
	wait(8)
	r.does("node 1 is killed", r.nodes[0].kill)
	wait(4)
	r.does("node 1 is started anew", r.nodes[0].restart)
	r.had.Lives++
	wait(10)
	const throttled = "ProvisionedThroughputExceededException"
	r.does("DynamoDB throttles every second request", func() { r.db.set(throttled, "", "") })
	wait(6)
	r.does("DynamoDB throttles every request", func() { r.db.refuseAll(throttled) })
	wait(8)
	r.does("DynamoDB throttles nothing", func() { r.db.set("", "", ""); r.db.refuseAll("") })
	wait(8)
	var restart, resume func()
	r.does("the Redis primary is killed", func() { restart = r.redis.KillCurrent(r.t) })
	wait(12)
	r.does("the killed Redis is started anew", restart)
	wait(12)
	r.does("the Redis primary hangs", func() { resume = r.redis.PauseCurrent(r.t) })
	time.Sleep(max(10*time.Second, within*5/100))
	r.does("it goes on", resume)
	// Who takes a primary's place may lack its last moments, twice. The killed one comes back
	// empty, the hung one with what it knew, and each may for a moment count beside the other.
	r.had.Losses += 5
	wait(20)
	r.does("the load ends, and what was acknowledged is asked for", func() {})
}

// drilled runs a drill and returns what did not hold.
func drilled(t *testing.T, out io.Writer, program string, lasts time.Duration) []string {
	t.Helper()
	r := rehearse(t, program)
	r.out = out
	cfg := drill.Config{Limit: drillLimit}
	for _, s := range r.nodes {
		cfg.URLs, cfg.Key = append(cfg.URLs, s.url), s.key
	}
	d, err := drill.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	settled, stop := context.WithTimeout(t.Context(), lasts+5*time.Minute)
	defer stop()
	load, end := context.WithCancel(settled)
	done := make(chan struct{})
	r.begun = time.Now()
	go func() { defer close(done); d.Run(load, settled) }()
	r.faults(lasts)
	end()
	<-done
	for _, s := range r.nodes {
		s.kill() // another drill may follow
	}
	return d.Report(out, r.had)
}

// Three nodes keep what they acknowledge while nodes and stores fail under a mixed load. At
// full depth the drill shows besides that it notices services that do not.
func TestDrill(t *testing.T) {
	t.Parallel()
	for _, what := range drilled(t, os.Stdout, "", atDepth(15*time.Second, 3*time.Minute)) {
		t.Error(what)
	}
	if !fullDepth() {
		return
	}
	for _, p := range drillDefects {
		broken := drilled(t, io.Discard, p.build(t), 15*time.Second)
		if len(broken) == 0 {
			t.Errorf("planted: %s: the drill did not notice", p.what)
			continue
		}
		fmt.Printf("planted: %s: noticed %d times, first: %s\n", p.what, len(broken), broken[0])
	}
}

// A planted defect is a service that promises what it does not keep.
type planted struct{ what, file, from, to string }

var drillDefects = []planted{
	{"a revocation is acknowledged and does not happen", "internal/httpapi/sessions.go", "s.Sessions.Revoke(c.Request().Context(), key.Tenant, body.Token)", `s.Sessions.Revoke(c.Request().Context(), key.Tenant, "none")`},
	{"a lease is granted while it is held", "lease/lease.go", "guard: opts.Guard.Truncate(time.Millisecond)", "guard: -time.Hour"},
	{"a limit is open while Redis fails", "ratelimit/posture.go", "case m.Posture == FailOpen, m.Posture == FailClosed && !m.counts:", "case true:"},
	{"a repeated request takes its units again", "internal/httpapi/quotas.go", "quotaID(c, key), body.Amount, body.RequestID)", "quotaID(c, key), body.Amount, requestID(c))"},
}

// build makes the service with the defect.
func (p planted) build(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("..", p.file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(file)
	if err != nil || strings.Count(string(source), p.from) != 1 {
		t.Fatalf("%s does not hold %q once: %v", p.file, p.from, err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: writeFile(t, strings.Replace(string(source), p.from, p.to, 1))}})
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "coordsvc")
	if out, err := exec.Command("go", "build", "-overlay", writeFile(t, string(overlay)), "-o", program, "github.com/coordsvc/coordsvc/cmd/coordsvc").CombinedOutput(); err != nil {
		t.Fatalf("go build with %s: %v\n%s", p.what, err, out)
	}
	return program
}
