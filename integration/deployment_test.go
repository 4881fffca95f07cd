package integration

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// anotherKeysFile is a keys file with keys of its own, as a setting.
func anotherKeysFile(t *testing.T) string {
	t.Helper()
	var lines strings.Builder
	for _, name := range []string{"route", "seal"} {
		key := make([]byte, 32)
		_, _ = rand.Read(key)
		fmt.Fprintf(&lines, "%s %s\n", name, base64.StdEncoding.EncodeToString(key))
	}
	return "COORD_KEYS_FILE=" + writeFile(t, lines.String())
}

// A node with another route key would look for every user elsewhere: its revocations
// would end nobody's session. It does not start, and leaves the others alone.
func TestAnotherRouteKeyRefusesToStart(t *testing.T) {
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	a := start(t, env...)
	a.key = key
	token := a.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`).text("token")
	refuses := func(why string, env ...string) {
		t.Helper()
		s := spawn(t, env...)
		<-s.ended
		if s.exit == nil || !strings.Contains(s.stderr.String(), "COORD_KEYS_FILE (--keys-file)") || s.stdout.Len() > 0 {
			t.Errorf("%s: %v\n%s%s", why, s.exit, s.stdout, s.stderr)
		}
	}
	refuses("another route key", append(env, anotherKeysFile(t))...)
	b := start(t, env...)
	b.key = key
	b.call(204, "POST", "/v1/sessions/revoke", `{"token":"`+token+`"}`)
	if got := a.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != false {
		t.Errorf("revoked on a node with the same key: %s", got.raw)
	}

	dir := filepath.Join(t.TempDir(), "data")
	embedded := start(t, "COORD_DATA_DIR="+dir)
	embedded.kill()
	refuses("another route key than the data folder's", "COORD_DATA_DIR="+dir, anotherKeysFile(t))
	start(t, "COORD_DATA_DIR="+dir)
}

// Nodes on the same tables whose sessions are not read through the same Redis do not
// say that a change was propagated, and read the tables.
func TestNodesWithoutTheSameRedis(t *testing.T) {
	url, elsewhere := engine.StartRedis(t).URL(), engine.StartRedis(t).URL()
	db := engine.DynamoDB(t)
	env, key := production(t, append(db.Env(), "COORD_REDIS_BUDGET_MS=100"), db.Prefix(t))
	createTables(t, env)
	node := func(more ...string) *service {
		s := start(t, append(env, more...)...)
		s.key = key
		return s
	}
	a := node("COORD_REDIS_URL=" + url)
	same := node("COORD_REDIS_URL=" + strings.Replace(url, "127.0.0.1", "localhost", 1))
	without, other := node(), node("COORD_REDIS_URL="+elsewhere)
	login := func() string {
		return a.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`).text("token")
	}
	token := login()
	a.verified("in force", token, "cache", false)
	same.verified("in force, by another name", token, "cache", false)
	without.verified("without Redis", token, "store", false)
	other.verified("with another Redis", token, "store", true)
	other.verified("with another Redis, again", token, "store", true)

	for why, n := range map[string]*service{"without Redis": without, "with another Redis": other} {
		before := time.Now()
		c := n.call(200, "POST", "/v1/users/ann/permission-epoch", "")
		by, err := time.Parse(time.RFC3339, c.text("effective_by"))
		if c.body["cache_propagated"] != false || err != nil || by.Before(before.Add(11*time.Second)) {
			t.Errorf("%s: %s", why, c.raw)
		}
	}
	var c answer
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && c.body["cache_propagated"] != true; { // the budget may have been too small
		c = same.call(200, "POST", "/v1/users/ann/permission-epoch", "")
	}
	if c.body["cache_propagated"] != true {
		t.Errorf("with the same Redis: %s", c.raw)
	}
	if got := a.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["permissions_stale"] != true {
		t.Errorf("at once after a propagated change: %s", got.raw)
	}
}

// While DynamoDB does not answer, sessions are verified from Redis for F, and, marked,
// for the grace; then they are not.
func TestStaleGrace(t *testing.T) {
	t.Parallel()
	db := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	env, key := production(t, db.Env(), engine.FreshPrefix())
	createTables(t, env)
	const fresh, grace = 10 * time.Second, 6 * time.Second
	s := start(t, append(env, "COORD_REDIS_URL="+engine.StartRedis(t).URL(), "COORD_REDIS_BUDGET_MS=200", fmt.Sprintf("COORD_SESSION_STALE_GRACE_MS=%d", grace.Milliseconds()))...)
	s.key = key
	if page := s.call(200, "GET", "/v1/key-types", "").raw; !strings.Contains(page, "verify goes on for 16 s, marked degraded after 10 s") {
		t.Errorf("the key types do not tell of it: %s", page)
	}
	token := s.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`).text("token")
	s.verified("cached", token, "cache", false)
	db.Kill()
	down := time.Now()
	marked, refused := 0, 0
	for time.Since(down) < fresh+grace+3*time.Second || refused == 0 {
		began := time.Since(down)
		a, err := s.try("POST", "/v1/sessions/verify", s.key, `{"token":"`+token+`"}`)
		switch {
		case err != nil || a.status != 200 && a.status != 503 || a.status == 200 && a.body["active"] != true:
			t.Fatalf("%s after the outage began: %v %d %s", began, err, a.status, a.raw)
		case a.status == 503:
			refused++
		case began > fresh+grace:
			t.Fatalf("active %s after the outage began: %s", began, a.raw)
		case a.body["degraded"] == true:
			marked++
		case began > fresh:
			t.Fatalf("not marked %s after the outage began: %s", began, a.raw)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if marked == 0 {
		t.Error("no verify was answered in the grace")
	}
	if a, err := s.try("POST", "/v1/sessions/revoke", s.key, `{"token":"`+token+`"}`); err != nil || a.status != 503 {
		t.Errorf("a revocation that is not durable: %v %d %s", err, a.status, a.raw)
	}
	db.Restart(t)
	s.verified("back", token, "cache", false)
}
