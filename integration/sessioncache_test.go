package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// cachedNodes starts two nodes on fresh tables and the Redis at the URL.
func cachedNodes(t *testing.T, url string) (a, b *service) {
	t.Helper()
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	env = append(env, "COORD_REDIS_URL="+url, "COORD_REDIS_PREFIX=it:", "COORD_REDIS_BUDGET_MS=100")
	a, b = start(t, env...), start(t, env...)
	a.key, b.key = key, key
	return a, b
}

// verified asks until the verdict comes from the source: a first connection may
// take longer than the budget.
func (s *service) verified(why, token, source string, degraded bool) {
	s.t.Helper()
	var got answer
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got = s.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`)
		if got.body["active"] == true && got.text("source") == source && got.body["degraded"] == degraded {
			return
		}
	}
	s.t.Errorf("%s: %s", why, got.raw)
}

// Two nodes share a cache: what one of them reads the other answers, and the end of
// a session is at once on both. Without Redis the tables answer.
func TestSessionsThroughRedis(t *testing.T) {
	server := engine.StartRedis(t)
	a, b := cachedNodes(t, server.URL())
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	login := func() string {
		return a.call(201, "POST", "/v1/sessions", `{"user_id":"canary-user","device_id":"canary-device"}`).text("token")
	}
	token := login()
	a.verified("cached", token, "cache", false)
	b.verified("cached by the other node", token, "cache", false)
	cacheHoldsNoSecret(t, client, token)

	done := b.call(200, "POST", "/v1/users/canary-user/logout-all", "")
	for end := time.Now().Add(10 * time.Second); done.body["cache_propagated"] != true; { // the budget may have been too small
		if time.Now().After(end) {
			t.Fatalf("logout-all: %s", done.raw)
		}
		token = login()
		a.verified("cached again", token, "cache", false)
		done = b.call(200, "POST", "/v1/users/canary-user/logout-all", "")
	}
	if got := a.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != false {
		t.Errorf("logged out on the other node: %s", got.raw)
	}

	token = login()
	a.verified("cached", token, "cache", false)
	server.Kill()
	a.verified("without Redis", token, "store", true)
	before := time.Now()
	late := a.call(204, "POST", "/v1/sessions/revoke", `{"token":"`+token+`"}`)
	by, err := time.Parse(time.RFC3339, late.header.Get("Coord-Effective-By"))
	if late.header.Get("Coord-Cache-Propagated") != "false" || err != nil || by.Before(before.Add(11*time.Second)) {
		t.Errorf("revoked without Redis: %v, %v", late.header, err)
	}
	if got := b.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != false {
		t.Errorf("revoked: %s", got.raw)
	}
	server.Restart(t)
	token = login()
	a.verified("Redis is back", token, "cache", false)
}

// cacheHoldsNoSecret looks at everything in the cache.
func cacheHoldsNoSecret(t *testing.T, client *redis.Client, token string) {
	t.Helper()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) < 2 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	secret := token[len("cst_")+44:]
	for _, k := range keys {
		if strings.HasSuffix(k, "_selfcheck") { // the harness's own
			continue
		}
		value := client.Get(t.Context(), k).Val()
		switch {
		case !strings.HasPrefix(k, "it:"):
			t.Errorf("%s is without the prefix", k)
		case client.PTTL(t.Context(), k).Val() <= 0:
			t.Errorf("%s has no TTL", k)
		case strings.Contains(k, "canary") || strings.Contains(k+value, secret):
			t.Errorf("%s: %s", k, value)
		}
	}
}

func TestSessionsThroughSentinelAndCluster(t *testing.T) {
	for name, url := range map[string]func(t *testing.T) string{
		"sentinel": func(t *testing.T) string {
			return engine.StartSentinel(t).URL()
		},
		"cluster": func(t *testing.T) string {
			c := engine.StartCluster(t)
			return "redis://" + c.Addrs[0] + "?addr=" + strings.Join(c.Addrs[1:], "&addr=")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := cachedNodes(t, url(t))
			for _, user := range []string{"ann", "bob", "carl"} { // in other slots
				token := a.call(201, "POST", "/v1/sessions", `{"user_id":"`+user+`"}`).text("token")
				b.verified("cached", token, "cache", false)
			}
		})
	}
}

// Two sets of tables under one prefix would answer for each other.
func TestRedisBelongsToOneSetOfTables(t *testing.T) {
	url := engine.StartRedis(t).URL()
	cachedNodes(t, url)
	db := engine.DynamoDB(t)
	env, _ := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	other := spawn(t, append(env, "COORD_REDIS_URL="+url, "COORD_REDIS_PREFIX=it:")...)
	<-other.ended
	if !strings.Contains(other.stderr.String(), "COORD_REDIS_PREFIX") || other.exit == nil {
		t.Errorf("another set of tables under the prefix: %v\n%s", other.exit, other.stderr)
	}
	start(t, append(env, "COORD_REDIS_URL="+url, "COORD_REDIS_PREFIX=other:")...)
}

// Redis that cannot be reached is no reason not to start.
func TestStartsWithoutItsRedis(t *testing.T) {
	a, _ := cachedNodes(t, "redis://"+freeAddr(t))
	token := a.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`).text("token")
	a.verified("without Redis", token, "store", true)
}
