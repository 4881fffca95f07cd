package integration

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// everyKindOfLimit counts both ways that limits count.
const everyKindOfLimit = `version: 1
policies:
  - name: all
    on_store_failure: fail_open
    limits:
      - {name: rate, key: [app], algorithm: token_bucket, rate: 1/h, burst: 100}
      - {name: slots, key: [app], algorithm: concurrency, slots: 3, slot_ttl: 1h}
  - name: leased
    on_store_failure: fail_open
    mode: leased
    max_overshoot: 50
    limits:
      - {name: rate, key: [app], algorithm: token_bucket, rate: 1/h, burst: 100}
`

const (
	canaryUser  = "canary-user-of-sessions"
	redisPrefix = "it:"
)

// An everything is a service of which every route that stores something is used,
// and what must then be nowhere but with the callers.
type everything struct {
	*service
	mode    keytype.Mode
	prefix  string // of the tables
	redis   *engine.RedisServer
	db      *engine.DynamoServer // nil where the store is embedded
	client  *redis.Client
	route   []byte
	secrets map[string]string // what they are, by their text
}

// useEverything starts a service over stores of its own and uses all of it.
func useEverything(t *testing.T, mode keytype.Mode) *everything {
	t.Helper()
	e := &everything{mode: mode, secrets: map[string]string{}}
	e.redis = engine.StartRedis(t, "--rdbcompression", "no") // so that what a file holds can be read
	e.client = redis.NewClient(&redis.Options{Addr: e.redis.Addr})
	t.Cleanup(func() { _ = e.client.Close() })
	env := []string{"COORD_REDIS_URL=" + e.redis.URL(), "COORD_REDIS_PREFIX=" + redisPrefix, "COORD_REDIS_BUDGET_MS=100", "COORD_POLICY_PATH=" + writeFile(t, everyKindOfLimit)}
	if mode.DynamoDB {
		e.db, e.prefix = engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db")), engine.FreshPrefix()
		env, _ = production(t, append(env, e.db.Env()...), e.prefix)
	}
	key := e.secret("the bootstrap key", "csk_"+rand.Text()+rand.Text())
	env = append(env, "COORD_KEYS_FILE="+e.keysFile(t), "COORD_BOOTSTRAP_KEY_FILE="+writeFile(t, key+"\n"))
	if mode.DynamoDB {
		createTables(t, env)
	}
	e.service = start(t, env...)
	if e.key != "" {
		e.secret("the first key", e.key)
	}
	e.key = key
	e.useSessions()
	e.useAPIKeys()
	e.useTheRest()
	e.misuse()
	e.outage()
	return e
}

func (e *everything) secret(what, text string) string {
	e.secrets[text] = what
	return text
}

func (e *everything) keysFile(t *testing.T) string {
	var lines strings.Builder
	for _, name := range []string{"route", "seal"} {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw)
		if name == "route" {
			e.route = raw
		}
		e.secret("the "+name+" key", string(raw))
		fmt.Fprintf(&lines, "%s %s\n", name, e.secret("the "+name+" key's line", base64.StdEncoding.EncodeToString(raw)))
	}
	return writeFile(t, lines.String())
}

// writeFile writes a file of its own, and returns its path.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// token notes a session's token, and the part of it that is random.
func (e *everything) token(what string, a answer) string {
	token := e.secret(what, a.text("token"))
	e.secret(what+"'s secret part", token[len("cst_")+44:len("cst_")+44+43])
	return token
}

func (e *everything) login(user string) string {
	e.t.Helper()
	return e.token("the token of "+user, e.call(201, "POST", "/v1/sessions", `{"user_id":"`+user+`","device_id":"d","data":{"a":1}}`))
}

func (e *everything) verify(active bool, token string) {
	e.t.Helper()
	if got := e.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != active {
		e.t.Errorf("verify: %s, want active %v", got.raw, active)
	}
}

func (e *everything) useSessions() {
	e.t.Helper()
	logoutAll := "/v1/users/" + canaryUser + "/logout-all"
	forTenant := e.login(canaryUser)
	e.call(200, "POST", "/v1/tenant/logout-all", `{"reason":"r","confirm":"default"}`)
	e.verify(false, forTenant)

	token, other, revoked := e.login(canaryUser), e.login(canaryUser), e.login(canaryUser)
	e.verify(true, token) // cold
	warm := "store"
	if e.mode.DynamoDB {
		warm = "cache"
	}
	e.verified("warm", token, warm, false)
	e.verify(false, e.forged())
	e.verify(false, token[:len(token)-1])
	next := e.token("the rotated token", e.call(200, "POST", "/v1/sessions/rotate", `{"token":"`+token+`","aal":2}`))
	e.verify(true, token) // in its grace
	e.call(409, "POST", "/v1/sessions/rotate", `{"token":"`+token+`"}`)
	e.call(409, "POST", logoutAll, `{"except_token":"`+token+`"}`)
	e.call(204, "POST", "/v1/sessions/revoke", `{"token":"`+revoked+`"}`)
	e.verify(false, revoked)
	e.call(409, "POST", logoutAll, `{"except_token":"`+revoked+`"}`)
	e.call(200, "POST", logoutAll, `{"except_token":"`+next+`","reason":"r"}`)
	e.verify(false, other)
	e.verify(true, next)
	e.call(200, "POST", "/v1/users/"+canaryUser+"/permission-epoch", `{"reason":"r"}`)
	e.call(200, "GET", "/v1/sessions/"+session.HandleOf(next), "")
	e.call(200, "GET", "/v1/sessions/"+session.HandleOf(next)+"/data", "")
	e.call(200, "GET", "/v1/users/"+canaryUser+"/sessions", "")

	ended := e.login("bob")
	e.call(200, "POST", "/v1/users/bob/disable", `{"reason":"r"}`)
	e.verify(false, ended)
	e.call(200, "POST", "/v1/users/bob/enable", `{"reason":"r"}`)
	e.verified("again", e.login("bob"), warm, false)
	e.call(204, "DELETE", "/v1/sessions/"+session.HandleOf(ended), "")

	status, once := e.under("login-1", "/v1/sessions", `{"user_id":"carl"}`)
	again, twice := e.under("login-1", "/v1/sessions", `{"user_id":"carl"}`)
	if status != 201 || again != 201 || once != twice {
		e.t.Fatalf("%d %s, then %d %s", status, once, again, twice)
	}
	_, kept, _ := strings.Cut(once, `"token":"`)
	kept, _, _ = strings.Cut(kept, `"`)
	e.verify(true, e.token("the token of an answer that is kept", answer{body: map[string]any{"token": kept}}))
}

// forged is a token of the right form, for the user, that nobody was given.
func (e *everything) forged() string {
	nowhere := session.New(session.NewLocal(kv.NewMemory(kv.MemoryOptions{})), session.Options{RouteKey: e.route})
	token, _, err := nowhere.Create(e.t.Context(), "default", session.CreateRequest{UserID: canaryUser})
	if err != nil {
		e.t.Fatal(err)
	}
	return e.secret("a forged token", token.Reveal())
}

func (e *everything) useAPIKeys() {
	e.t.Helper()
	made := e.call(201, "POST", "/v1/api-keys", `{"name":"k","scopes":["leases:read"]}`)
	key := e.secret("a made key", made.text("key"))
	use := func(want int) {
		if a, err := e.try("GET", "/v1/leases?owner=w", key, ""); err != nil || a.status != want {
			e.t.Errorf("a made key: %v %d %s", err, a.status, a.raw)
		}
	}
	use(200)
	if a, err := e.try("POST", "/v1/sessions", key, `{"user_id":"u"}`); err != nil || a.status != 403 {
		e.t.Errorf("outside its scopes: %v %d", err, a.status)
	}
	e.call(204, "DELETE", "/v1/api-keys/"+made.text("id"), "")
	use(401)
}

// useTheRest leaves something of every other kind behind.
func (e *everything) useTheRest() {
	e.t.Helper()
	lease := e.call(200, "POST", "/v1/leases/r/acquire", `{"owner":"w","ttl_ms":600000}`)
	token := fmt.Sprintf(`{"fencing_token":%d`, lease.number("fencing_token"))
	e.call(200, "POST", "/v1/fences/r/admit", token+`}`)
	e.call(200, "PUT", "/v1/protected/r/k", token+`,"lease_id":"`+lease.text("lease_id")+`","value":1}`)
	e.call(200, "PUT", mails, `{"limit":10,"window":"month"}`)
	e.call(200, "POST", mails+"/consume", `{"amount":1,"request_id":"q1"}`)
	e.call(200, "POST", mails+"/reserve", `{"amount":1,"request_id":"q2","ttl_ms":600000}`)
	e.call(200, "POST", "/v1/ratelimit/check", `{"policy":"all","descriptors":{"app":"`+canaryUser+`"},"request_id":"`+canaryUser+`"}`)
	e.call(200, "POST", "/v1/idempotency/order/claim", `{"fingerprint":"f","lock_ttl_ms":600000,"ttl_ms":600000}`)
	e.call(200, "POST", "/v1/locks/n/acquire", `{"owner":"w","ttl_ms":600000}`)
}

// misuse sends secrets where none belong; each is refused.
func (e *everything) misuse() {
	e.t.Helper()
	token := e.login(canaryUser)
	for _, secret := range []string{token, e.key} {
		for _, r := range [][3]string{
			{"POST", "/v1/sessions", `{"user_id":"u","aal":"%s"}`},
			{"POST", "/v1/sessions", `{"user_id":"u","%s":1}`},
			{"POST", "/v1/sessions", `{"user_id":"u","token":"%s"}`},
			{"POST", "/v1/sessions", `{"user_id":{"%s":1}}`},
			{"POST", "/v1/sessions", `%s`},
			{"POST", "/v1/sessions/verify", `{"token":["%s"]}`},
			{"POST", "/v1/sessions/verify", `{"token":"%s"} %[1]s`},
			{"POST", "/v1/sessions/verify", `{"token":"%s","token":"%[1]s"}`},
			{"POST", "/v1/sessions/revoke", `{"tokens":"%s"}`},
			{"GET", "/v1/sessions/%s", ""},
			{"GET", "/v1/sessions/%s/data", ""},
			{"GET", "/v1/users/u/sessions?cursor=%s", ""},
			{"GET", "/v1/users/u/sessions?%s=1", ""},
			{"GET", "/v1/events?cursor=%s", ""},
			{"GET", "/v1/%s", ""},
			{"PATCH", "/v1/sessions/%s", ""},
			{"GET", "/v1/leases/%s", ""},
			{"POST", "/v1/leases/r/acquire", `{"owner":"w","ttl_ms":"%s"}`},
			{"POST", "/v1/leases/r/release", `{"lease_id":"%s","fencing_token":1}`},
			{"POST", "/v1/locks/n/release", `{"lock_id":"%s"}`},
			{"POST", "/v1/idempotency/order/complete", `{"claim_id":"%s","response":1}`},
			{"POST", "/v1/ratelimit/check", `{"policy":"%s","descriptors":{"app":"x"}}`},
			{"POST", "/v1/api-keys", `{"name":"n","scopes":["%s"]}`},
			{"DELETE", "/v1/api-keys/%s", ""},
		} {
			path, body := r[1], r[2]
			for _, text := range []*string{&path, &body} {
				if strings.Contains(*text, "%") {
					*text = fmt.Sprintf(*text, secret)
				}
			}
			e.refused(r[0], path, e.key, body)
		}
	}
	e.refused("GET", "/v1/key-types", token, "")
	e.refused("GET", "/v1/key-types", e.key+"x", "")
	e.call(204, "POST", "/v1/sessions/revoke", `{"token":"`+e.key+`"}`)
	e.call(200, "POST", "/v1/users/"+canaryUser+"/permission-epoch", `{"reason":"`+token+` leaked"}`)
}

func (e *everything) refused(method, path, key, body string) {
	e.t.Helper()
	a, err := e.try(method, path, key, body)
	if err != nil || a.status < 400 || a.status >= 500 {
		e.t.Errorf("%s %s %s: %v %d %s", method, path, body, err, a.status, a.raw)
	}
}

// outage asks while no store answers.
func (e *everything) outage() {
	e.t.Helper()
	token := e.login(canaryUser)
	e.redis.Pause(e.t)
	if e.db != nil {
		e.db.Kill()
	}
	for _, r := range [][2]string{
		{"/v1/sessions/verify", `{"token":"` + token + `"}`},
		{"/v1/sessions/rotate", `{"token":"` + e.forged() + `"}`},
		{"/v1/users/" + canaryUser + "/logout-all", `{"except_token":"` + token + `"}`},
		{"/v1/sessions", `{"user_id":"` + canaryUser + `"}`},
		{"/v1/sessions/revoke", `{"token":"` + token + `"}`},
	} {
		a, err := e.try("POST", r[0], e.key, r[1])
		if err != nil || e.db != nil && a.status != 503 {
			e.t.Errorf("%s without stores: %v %d %s", r[0], err, a.status, a.raw)
		}
		if a.text("token") != "" {
			e.token("the token of the outage", a)
		}
	}
	if a, err := e.try("GET", "/v1/key-types", e.secret("an unknown key", "csk_"+rand.Text()+rand.Text()), ""); err != nil || a.status < 400 {
		e.t.Errorf("an unknown key: %v %d", err, a.status)
	}
	if e.db != nil {
		e.db.Restart(e.t)
	}
	e.redis.Resume(e.t)
	e.verify(true, e.login(canaryUser))
}

// page reads a page of the ops listener.
func (e *everything) page(path string) string {
	e.t.Helper()
	resp, err := http.Get(e.ops + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(raw)
}
