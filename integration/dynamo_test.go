package integration

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/schema"
)

// production returns the settings of a node on fresh tables, and a key.
func production(t *testing.T, env []string, prefix string) ([]string, string) {
	t.Helper()
	key := "csk_" + strings.Repeat("Zz9", 12)
	bootstrap, keys := filepath.Join(t.TempDir(), "bootstrap"), filepath.Join(t.TempDir(), "keys")
	secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	for path, text := range map[string]string{bootstrap: key + "\n", keys: "route " + secret + "\nseal " + secret + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return append(env, "COORD_TABLE_PREFIX="+prefix, "COORD_KEYS_FILE="+keys, "COORD_BOOTSTRAP_KEY_FILE="+bootstrap), key
}

func createTables(t *testing.T, env []string) string {
	t.Helper()
	out, stderr, err := output(t, env, "tables", "create")
	if err != nil {
		t.Fatalf("tables create: %v\n%s", err, stderr)
	}
	return out
}

func TestTwoNodesGrantALeaseOnce(t *testing.T) {
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	for range 2 { // again is harmless
		if out := createTables(t, env); strings.Count(out, "stands") != len(schema.Tables("")) {
			t.Errorf("tables create: %s", out)
		}
	}
	nodes := []*service{start(t, env...), start(t, env...)}
	for _, n := range nodes {
		n.key = key
	}
	last := int64(0)
	for round := range 10 {
		var mu sync.Mutex
		var winners []answer
		var wg sync.WaitGroup
		for c := range 32 {
			wg.Go(func() {
				a, err := nodes[c%2].try("POST", "/v1/leases/r/acquire", key, fmt.Sprintf(`{"owner":"c%d","ttl_ms":60000}`, c))
				if err != nil || (a.status != 200 && a.status != 409) {
					t.Errorf("round %d: %v %d %s", round, err, a.status, a.raw)
				}
				if a.status == 200 {
					mu.Lock()
					defer mu.Unlock()
					winners = append(winners, a)
				}
			})
		}
		wg.Wait()
		if len(winners) != 1 || winners[0].number("fencing_token") <= last {
			t.Fatalf("round %d: %d grants, token %v after %d", round, len(winners), winners, last)
		}
		last = winners[0].number("fencing_token")
		nodes[round%2].call(204, "POST", "/v1/leases/r/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, winners[0].text("lease_id"), last))
	}
	nodes[0].call(200, "PUT", "/v1/protected/r/k", fmt.Sprintf(`{"fencing_token":%d,"mode":"high_water","value":1}`, last))
	if a := nodes[1].call(409, "PUT", "/v1/protected/r/k", fmt.Sprintf(`{"fencing_token":%d,"mode":"high_water","value":0}`, last-1)); a.text("code") != "stale_fencing_token" {
		t.Errorf("a stale write: %s", a.raw)
	}
	created := nodes[0].call(201, "POST", "/v1/api-keys", `{"name":"k","scopes":["leases:read"]}`)
	if a, err := nodes[1].try("GET", "/v1/leases/r", created.text("key"), ""); err != nil || a.status != 200 {
		t.Errorf("a key made on the other node: %v %d", err, a.status)
	}
	nodes[0].call(204, "DELETE", "/v1/api-keys/"+created.text("id"), "")
	if a, err := nodes[0].try("GET", "/v1/leases/r", created.text("key"), ""); err != nil || a.status != 401 {
		t.Errorf("a key revoked on this node: %v %d", err, a.status)
	}
}

// A session of one node is one of the other, and its end is at once.
func TestTwoNodesShareSessions(t *testing.T) {
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	a, b := start(t, env...), start(t, env...)
	a.key, b.key = key, key
	login := func(n *service) string {
		return n.call(201, "POST", "/v1/sessions", `{"user_id":"ada","data":{"a":1}}`).text("token")
	}
	verify := func(why string, n *service, token, reason string) {
		t.Helper()
		got := n.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`)
		if got.body["active"] != (reason == "") || reason != "" && got.text("reason") != reason {
			t.Errorf("%s: %s", why, got.raw)
		}
	}
	token, other := login(a), login(b)
	verify("made on the other node", b, token, "")
	verify("made on the other node", a, other, "")
	next := b.call(200, "POST", "/v1/sessions/rotate", `{"token":"`+token+`","aal":2}`).text("token")
	verify("rotated on the other node", a, next, "")
	if done := a.call(200, "POST", "/v1/users/ada/logout-all", `{"except_token":"`+next+`"}`); done.number("session_version") != 2 {
		t.Errorf("logout-all: %s", done.raw)
	}
	verify("logged out on the other node", b, other, "epoch")
	verify("kept on the other node", b, next, "")
	b.call(200, "POST", "/v1/users/ada/logout-all", "")
	verify("logged out on the other node", a, next, "epoch")
	if list := a.call(200, "GET", "/v1/users/ada/sessions", ""); strings.Contains(list.raw, "ses_") {
		t.Errorf("sessions after logout-all: %s", list.raw)
	}
}

func TestTokensGrowAcrossKill9OfNodeAndEngine(t *testing.T) {
	db := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	env, key := production(t, db.Env(), engine.FreshPrefix())
	createTables(t, env)
	s := start(t, env...)
	s.key = key
	acquire := func() answer { return s.call(200, "POST", "/v1/leases/r/acquire", `{"owner":"w","ttl_ms":60000}`) }
	release := func(a answer) {
		s.call(204, "POST", "/v1/leases/r/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, a.text("lease_id"), a.number("fencing_token")))
	}
	first := acquire()
	release(first)
	s.kill()
	db.Kill()
	db.Restart(t)
	s.restart()
	second := acquire()
	if second.number("fencing_token") <= first.number("fencing_token") {
		t.Errorf("token %d after %d", second.number("fencing_token"), first.number("fencing_token"))
	}

	db.Kill()
	a := s.call(503, "POST", "/v1/leases/r/acquire", `{"owner":"w","ttl_ms":60000}`)
	for range 100 { // on connections that the engine had accepted
		if a.text("code") != "outcome_unknown" {
			break
		}
		a = s.call(503, "POST", "/v1/leases/r/acquire", `{"owner":"w","ttl_ms":60000}`)
	}
	if a.text("code") != "store_unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("an acquire without a store: %s", a.raw)
	}
	db.Restart(t)
	release(second)
}

func TestMissingTablesRefuseToStartAndAnUnreachableStoreDoesNot(t *testing.T) {
	db := engine.DynamoDB(t)
	env, _ := production(t, db.Env(), db.Prefix(t))
	missing := spawn(t, env...)
	<-missing.ended
	if _, failed := errors.AsType[*exec.ExitError](missing.exit); !failed || !strings.Contains(missing.stderr.String(), "tables create") {
		t.Errorf("without tables: %v\n%s", missing.exit, missing.stderr)
	}

	for _, command := range [][]string{{"keys", "create", "--tenant", "t"}, {"tables", "raise-floor"}} {
		if out, stderr, err := output(t, env, command...); err == nil || out != "" || !strings.Contains(stderr, "run coordsvc tables create") || strings.Contains(stderr, "ResourceNotFound") {
			t.Errorf("%v without tables: %v %s\n%s", command, err, out, stderr)
		}
	}

	later := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	env, _ = production(t, later.Env(), engine.FreshPrefix())
	createTables(t, env)
	later.Kill()
	ops := freeAddr(t)
	cmd := command(t, append(env, "COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR="+ops), "serve")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	awaitStatus(t, "http://"+ops+"/healthz", 200)
	awaitStatus(t, "http://"+ops+"/readyz", 503)
	later.Restart(t)
	awaitStatus(t, "http://"+ops+"/readyz", 200)
}

// A store that hangs is told of within some seconds, and tables are made once it goes on.
func TestTablesOfAStoreThatHangs(t *testing.T) {
	t.Parallel()
	db := engine.StartDynamo(t, "")
	env, _ := production(t, db.Env(), engine.FreshPrefix())
	if _, err := binary(); err != nil { // its building is not measured
		t.Fatal(err)
	}
	db.Pause(t)
	began := time.Now()
	out, stderr, err := output(t, env, "tables", "create")
	if took := time.Since(began); err == nil || out != "" || !strings.Contains(stderr, "DynamoDB does not answer, nothing was made") || took > 8*time.Second {
		t.Errorf("after %v: %v\n%s%s", took, err, out, stderr)
	}
	db.Resume(t)
	createTables(t, env)
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// awaitStatus asks until the answer has the status.
func awaitStatus(t *testing.T, url string, want int) {
	t.Helper()
	got := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url)
		if err != nil {
			continue
		}
		got = resp.StatusCode
		_ = resp.Body.Close()
		if got == want {
			return
		}
	}
	t.Fatalf("%s: status %d, want %d", url, got, want)
}
