package httpapi

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

var secretish = regexp.MustCompile(`\b(ses|cst|lse|clm|lck|csk|key|req)_[0-9A-Za-z]+`)

// is fails the test unless the answer is exactly this, ids and tokens masked.
func (a answer) is(t *testing.T, status int, body string) answer {
	t.Helper()
	got := strings.TrimSuffix(secretish.ReplaceAllString(a.body, "${1}_…"), "\n")
	if a.status != status || got != body {
		t.Errorf("answered\n %d %s, want\n %d %s", a.status, got, status, body)
	}
	return a
}

func TestSessionRoutes(t *testing.T) {
	s := startService(t)
	const fields = `"aal":1,"amr":[],"auth_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-03T03:04:05.000Z","handle":"ses_…",` +
		`"idle_expires_at":"2026-01-02T15:39:05.000Z","issued_at":"2026-01-02T15:04:05.000Z","last_seen_at":"2026-01-02T15:04:05.000Z",` +
		`"permission_epoch":1,"session_version":1,"user_id":"ann"`
	made := s.post("/v1/sessions", `{"user_id":"ann"}`).is(t, 201, `{"session":{`+fields+`},"token":"cst_…"}`)
	token, handle := made.field("token"), made.sub("session").field("handle")

	s.post("/v1/sessions/verify", `{"token":"`+token+`"}`).is(t, 200, `{"active":true,"degraded":false,"permissions_stale":false,"session":{`+fields+`},"source":"store"}`)
	s.get("/v1/sessions/"+handle).is(t, 200, `{`+fields+`}`)
	s.get("/v1/users/ann/sessions").is(t, 200, `{"sessions":[{`+fields+`}]}`)
	s.get("/v1/users/nobody/sessions").is(t, 200, `{"sessions":[]}`)
	s.get("/v1/users/ann/epochs").is(t, 200, `{"disabled":false,"permission_epoch":1,"session_version":1}`)

	s.clock.advance(1500 * time.Millisecond)
	a := s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`).is(t, 204, ``)
	if a.header.Get("Coord-Cache-Propagated") != "true" || a.header.Get("Coord-Effective-By") != "2026-01-02T15:04:06.500Z" {
		t.Errorf("revoke answered the headers %v", a.header)
	}
	s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`).is(t, 204, ``)
	s.post("/v1/sessions/revoke", `{"token":"no token at all"}`).is(t, 204, ``)
	s.post("/v1/sessions/verify", `{"token":"`+token+`"}`).is(t, 200, `{"active":false,"reason":"revoked"}`)
	s.get("/v1/sessions/"+handle).refused(t, 404, "not_found")
	s.delete("/v1/sessions/"+handle).is(t, 204, ``)
	s.delete("/v1/sessions/ses_unknown").refused(t, 404, "not_found")
}

func TestSessionFieldsGoRound(t *testing.T) {
	s := startService(t)
	a := s.must(201, s.post("/v1/sessions", `{"user_id":"a/b","aal":2,"amr":["pwd","otp"],"device_id":"phone","ip":"203.0.113.7","user_agent":"Firefox <3",
		"absolute_ttl_ms":60000,"idle_ttl_ms":500,"expected_session_version":1}`))
	a.sub("session").is(t, 0, `{"aal":2,"amr":["pwd","otp"],"auth_at":"2026-01-02T15:04:05.000Z","device_id":"phone","expires_at":"2026-01-02T15:05:05.000Z",`+
		`"handle":"ses_…","idle_expires_at":"2026-01-02T15:04:05.600Z","ip":"203.0.113.7","issued_at":"2026-01-02T15:04:05.000Z","last_seen_at":"2026-01-02T15:04:05.000Z",`+
		`"permission_epoch":1,"session_version":1,"user_agent":"Firefox <3","user_id":"a/b"}`)
	token := a.field("token")
	for _, c := range []struct{ why, ask, want string }{
		{"the level is met", `"min_aal":2`, "true"},
		{"the level is not met", `"min_aal":3`, "false"},
		{"the right user", `"user_id":"a/b"`, "true"},
		{"another user", `"user_id":"a"`, "false"},
		{"not even a touch", `"touch":false`, "true"},
		{"just authenticated", `"max_auth_age_ms":1000`, "true"},
	} {
		if got := s.must(200, s.post("/v1/sessions/verify", `{"token":"`+token+`",`+c.ask+`}`)).field("active"); got != c.want {
			t.Errorf("%s: active is %s, want %s", c.why, got, c.want)
		}
	}
	s.clock.advance(500 * time.Millisecond)
	s.post("/v1/sessions/verify", `{"token":"`+token+`","touch":false}`)
	s.clock.advance(100 * time.Millisecond)
	s.post("/v1/sessions/verify", `{"token":"`+token+`"}`).is(t, 200, `{"active":false,"reason":"idle_expired"}`)
}

func TestSessionsAreListedInPages(t *testing.T) {
	s := startService(t)
	want := map[string]bool{}
	for range 5 {
		want[s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`)).sub("session").field("handle")] = true
	}
	path, pages := "/v1/users/ann/sessions?limit=2", 0
	for path != "" {
		page := s.must(200, s.get(path))
		for _, handle := range regexp.MustCompile(`ses_[0-9A-Za-z]+`).FindAllString(page.body, -1) {
			delete(want, handle)
		}
		path, pages = "", pages+1
		if next := page.field("next_cursor"); next != "" {
			path = "/v1/users/ann/sessions?limit=2&cursor=" + next
		}
	}
	if pages != 3 || len(want) != 0 {
		t.Errorf("%d pages, not listed: %v", pages, want)
	}
	s.get("/v1/users/ann/sessions?limit=0").refused(t, 422, "invalid_value")
	s.get("/v1/users/ann/sessions?limit=101").refused(t, 422, "invalid_value")
	s.get("/v1/users/ann/sessions?cursor=made-up").refused(t, 422, "invalid_value")
	for _, query := range []string{"limit=x", "limit=1.0", "limit=", "limit=9223372036854775808", "limit=1&limit=2", "page=2", "limit=%zz", "a;b"} {
		s.get("/v1/users/ann/sessions?"+query).refused(t, 400, "invalid_request")
	}
}

func TestUserRoutes(t *testing.T) {
	s := startService(t)
	token := s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`)).field("token")
	other := s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`)).field("token")
	verify := func(token, want string) {
		t.Helper()
		s.post("/v1/sessions/verify", `{"token":"`+token+`"}`).is(t, 200, want)
	}
	const by = `"cache_propagated":true,"effective_by":"2026-01-02T15:04:05.000Z"`

	s.post("/v1/users/ann/permission-epoch", ``).is(t, 200, `{`+by+`,"permission_epoch":2}`)
	s.post("/v1/users/ann/permission-epoch", `{"reason":"role removed"}`).is(t, 200, `{`+by+`,"permission_epoch":3}`)
	if a := s.post("/v1/sessions/verify", `{"token":"`+token+`"}`); a.field("permissions_stale") != "true" {
		t.Errorf("verify after a change of permissions answered %s", a.body)
	}
	s.post("/v1/users/ann/logout-all", `{"except_token":"`+token+`","reason":"stolen laptop"}`).is(t, 200, `{`+by+`,"session_version":2}`)
	verify(other, `{"active":false,"reason":"epoch"}`)
	if a := s.post("/v1/sessions/verify", `{"token":"`+token+`"}`); a.field("active") != "true" {
		t.Errorf("verify of the kept session answered %s", a.body)
	}
	before := s.items()
	s.post("/v1/users/ann/logout-all", `{"except_token":"`+other+`"}`).refused(t, 409, "session_not_active")
	s.post("/v1/sessions", `{"user_id":"ann","expected_session_version":1}`).refused(t, 412, "epoch_mismatch")
	s.unchanged(before)
	s.post("/v1/users/ann/logout-all", `{}`).is(t, 200, `{`+by+`,"session_version":3}`)
	verify(token, `{"active":false,"reason":"epoch"}`)

	s.post("/v1/users/ann/disable", `{"reason":"left"}`).is(t, 200, `{"cache_propagated":true,"disabled":true,"effective_by":"2026-01-02T15:04:05.000Z","session_version":3}`)
	s.post("/v1/sessions", `{"user_id":"ann"}`).refused(t, 403, "user_disabled")
	s.get("/v1/users/ann/epochs").is(t, 200, `{"disabled":true,"permission_epoch":3,"session_version":3}`)
	s.post("/v1/users/ann/enable", `{"reason":"is back"}`).is(t, 200, `{"cache_propagated":true,"disabled":false,"effective_by":"2026-01-02T15:04:05.000Z","session_version":4}`)
	s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`))
}

func TestVerifyTellsWhyOnlyToWhoMayAsk(t *testing.T) {
	s := startService(t)
	token := s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`)).field("token")
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`))
	blunt := s.as(s.newKey("default", "sessions:verify"))
	for _, dead := range []string{token, "cst_unknown", "x"} {
		blunt.post("/v1/sessions/verify", `{"token":"`+dead+`"}`).is(t, 200, `{"active":false}`)
	}
}

func TestRateLimitRoutes(t *testing.T) {
	s := startService(t)
	ask := func(cost int) string {
		return fmt.Sprintf(`{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":%d}`, cost)
	}
	state := func(remaining, reset int) string {
		return fmt.Sprintf(`"limits":[{"algorithm":"token_bucket","limit":20,"name":"user","remaining":%d,"reset_ms":%d,"window_ms":2000}],"policy":"default"`, remaining, reset)
	}
	headers := func(a answer, limit, retry string) {
		t.Helper()
		if a.header.Get("RateLimit") != limit || a.header.Get("RateLimit-Policy") != `"user";q=20;w=2` || a.header.Get("Retry-After") != retry {
			t.Errorf("RateLimit: %s, RateLimit-Policy: %s, Retry-After: %s", a.header.Get("RateLimit"), a.header.Get("RateLimit-Policy"), a.header.Get("Retry-After"))
		}
	}
	a := s.post("/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"}}`)
	a.is(t, 200, `{"allowed":true,"degraded":false,`+state(19, 100)+`,"retry_after_ms":0,"source":"memory","stage":"enforce"}`)
	headers(a, `"user";r=19;t=1`, "")
	a = s.post("/v1/ratelimit/check", ask(11))
	a.is(t, 200, `{"allowed":true,"degraded":false,`+state(8, 1200)+`,"retry_after_ms":0,"source":"memory","stage":"enforce"}`)
	headers(a, `"user";r=8;t=2`, "")

	before := s.items()
	a = s.do(request{method: "POST", path: "/v1/ratelimit/check", body: ask(9), header: map[string]string{"X-Request-Id": "r-1"}})
	a.is(t, 429, `{"allowed":false,"code":"rate_limited","degraded":false,"detail":"the limit user of the policy default is reached","limiting":"user",`+state(8, 1200)+
		`,"request_id":"r-1","retry_after_ms":100,"retryable":true,"source":"memory","stage":"enforce","status":429,"title":"the rate limit is reached","type":"urn:coordsvc:problem:rate_limited"}`)
	headers(a, `"user";r=8;t=1`, "1")
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("the refusal is of type %s", got)
	}
	a = s.post("/v1/ratelimit/peek", ask(9))
	a.is(t, 200, `{"allowed":false,"degraded":false,"limiting":"user",`+state(8, 1200)+`,"retry_after_ms":100,"source":"memory","stage":"enforce"}`)
	headers(a, `"user";r=8;t=2`, "")
	s.post("/v1/ratelimit/peek", ask(1)).is(t, 200, `{"allowed":true,"degraded":false,`+state(8, 1200)+`,"retry_after_ms":0,"source":"memory","stage":"enforce"}`)
	s.unchanged(before)
	s.clock.advance(100 * time.Millisecond)
	s.must(200, s.post("/v1/ratelimit/check", ask(9)))
}

func TestRateLimitRefusals(t *testing.T) {
	s := startService(t)
	before := s.items()
	for _, path := range []string{"/v1/ratelimit/check", "/v1/ratelimit/peek"} {
		a := s.post(path, `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":21}`)
		a.refused(t, 422, "cost_exceeds_capacity")
		if a.field("limit") != "20" || a.header.Get("Retry-After") != "" {
			t.Errorf("answered %s with Retry-After %q", a.body, a.header.Get("Retry-After"))
		}
		a = s.post(path, `{"policy":"default","descriptors":{"user":"ann"}}`)
		a.refused(t, 422, "invalid_value")
		if a.field("field") != "descriptors" {
			t.Errorf("a missing descriptor is not named: %s", a.body)
		}
		s.post(path, `{"policy":"unheard","descriptors":{}}`).refused(t, 404, "not_found")
	}
	s.unchanged(before)
}

// R50: a wait below a second is not 0 seconds.
func TestR50RetryAfterIsAtLeastOneSecond(t *testing.T) {
	s := startService(t)
	const ask = `{"policy":"two","descriptors":{"user":"ann","app":"x"},"cost":2}`
	s.must(200, s.post("/v1/ratelimit/check", ask))
	for _, c := range []struct {
		why    string
		wait   time.Duration
		after  string
		header string
	}{
		{"3 s to wait", 0, "3", `"user";r=0;t=3, "all";r=998;t=1`},
		{"2.999 s to wait", time.Millisecond, "3", `"user";r=0;t=3, "all";r=998;t=1`},
		{"0.2 s to wait", 2799 * time.Millisecond, "1", `"user";r=1;t=1, "all";r=1000;t=0`},
	} {
		s.clock.advance(c.wait)
		a := s.must(429, s.post("/v1/ratelimit/check", ask))
		if a.header.Get("Retry-After") != c.after || a.header.Get("RateLimit") != c.header || a.header.Get("RateLimit-Policy") != `"user";q=2;w=3, "all";q=1000;w=60` {
			t.Errorf("%s: %v", c.why, a.header)
		}
	}
	s.clock.advance(200 * time.Millisecond)
	s.must(200, s.post("/v1/ratelimit/check", ask))
}

func TestPolicyRoutes(t *testing.T) {
	s := startService(t)
	const byDefault = `{"limits":[{"algorithm":"token_bucket","burst":20,"key":["tenant","user"],"name":"user","rate":{"count":10,"per_ms":1000}}],"mode":"exact","name":"default","posture":"local","stage":"enforce"}`
	all := s.must(200, s.get("/v1/ratelimit/policies"))
	version := all.field("version")
	if len(version) < 8 || !strings.HasPrefix(all.body, `{"policies":[`+byDefault+`,{`) {
		t.Errorf("listed %s", all.body)
	}
	s.get("/v1/ratelimit/policies/default").is(t, 200, `{"policies":[`+byDefault+`],"version":"`+version+`"}`)
	s.get("/v1/ratelimit/policies/unheard").refused(t, 404, "not_found")
}

func TestLeaseRoutes(t *testing.T) {
	s := startService(t)
	const path = "/v1/leases/job"
	s.get(path).refused(t, 404, "not_found")
	const held = `"acquired_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-02T15:04:35.000Z","fencing_token":1,"held":true,`
	a := s.post(path+"/acquire", `{"owner":"w1","ttl_ms":30000,"request_id":"q1"}`).is(t, 200, `{`+held+`"lease_id":"lse_…","owner":"w1","resource":"job","valid_for_ms":30000}`)
	id := a.field("lease_id")
	s.get(path).is(t, 200, `{`+held+`"owner":"w1","resource":"job"}`)

	s.clock.advance(10 * time.Second)
	before := s.items()
	a = s.do(request{method: "POST", path: path + "/acquire", body: `{"owner":"w2","ttl_ms":30000}`, header: map[string]string{"X-Request-Id": "r-1"}})
	a.is(t, 409, `{"code":"lease_held","detail":"somebody holds the resource, or it is not yet safely free","held_until":"2026-01-02T15:04:35.000Z","request_id":"r-1",`+
		`"retry_after_ms":20001,"retryable":true,"status":409,"title":"the resource is held","type":"urn:coordsvc:problem:lease_held"}`)
	if a.header.Get("Retry-After") != "21" {
		t.Errorf("Retry-After: %s", a.header.Get("Retry-After"))
	}
	s.post(path+"/renew", `{"lease_id":"lse_other","fencing_token":1,"ttl_ms":1000}`).refused(t, 409, "lease_lost")
	s.post(path+"/release", `{"lease_id":"`+id+`","fencing_token":2}`).refused(t, 409, "lease_lost")
	s.post("/v1/leases/never/renew", `{"lease_id":"`+id+`","fencing_token":1,"ttl_ms":1000}`).refused(t, 409, "lease_lost")
	s.unchanged(before)

	s.post(path+"/renew", `{"lease_id":"`+id+`","fencing_token":1,"ttl_ms":40000}`).is(t, 200, `{"acquired_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-02T15:04:55.000Z","fencing_token":1,"held":true,"lease_id":"lse_…","owner":"w1","resource":"job","valid_for_ms":40000}`)
	s.clock.advance(40 * time.Second)
	s.get(path).is(t, 200, `{"acquired_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-02T15:04:55.000Z","fencing_token":1,"held":false,"owner":"w1","resource":"job"}`)
	s.post(path+"/renew", `{"lease_id":"`+id+`","fencing_token":1,"ttl_ms":1000}`).refused(t, 410, "lease_expired")
	s.post(path+"/acquire", `{"owner":"w1","ttl_ms":30000,"request_id":"q1"}`).refused(t, 409, "request_expired")
	for range 2 {
		s.post(path+"/release", `{"lease_id":"`+id+`","fencing_token":1}`).is(t, 204, ``)
	}
}

// L34: durations out of range, and those that would wrap, are refused.
func TestL34DurationsOutOfRange(t *testing.T) {
	s := startService(t)
	before := s.items()
	for _, n := range []string{"0", "-1", "99", "86400001", "1125899906842624", "9223372036854775807", "-9223372036854775808"} {
		for path, body := range map[string]string{
			"/v1/leases/job/acquire": `{"owner":"w","ttl_ms":` + n + `}`,
			"/v1/leases/job/renew":   `{"lease_id":"x","fencing_token":1,"ttl_ms":` + n + `}`,
			"/v1/sessions":           `{"user_id":"u","absolute_ttl_ms":600,"idle_ttl_ms":` + n + `}`,
		} {
			a := s.post(path, body)
			a.refused(t, 422, "invalid_value")
			if !strings.HasSuffix(a.field("field"), "ttl_ms") {
				t.Errorf("%s %s: the field is not named: %s", path, body, a.body)
			}
		}
	}
	s.unchanged(before)
}

func TestFencingRoutes(t *testing.T) {
	s := startService(t)
	s.get("/v1/fences/job").refused(t, 404, "not_found")
	s.post("/v1/fences/job/admit", `{"fencing_token":5}`).is(t, 200, `{"high_water":5,"sequence":0}`)
	s.post("/v1/fences/job/admit", `{"fencing_token":5,"sequence":3}`).is(t, 200, `{"high_water":5,"sequence":3}`)
	s.get("/v1/fences/job").is(t, 200, `{"high_water":5,"sequence":3}`)
	before := s.items()
	a := s.do(request{method: "POST", path: "/v1/fences/job/admit", body: `{"fencing_token":4}`, header: map[string]string{"X-Request-Id": "r-1"}})
	a.is(t, 409, `{"code":"stale_fencing_token","detail":"a newer holder has been here: stop working on the resource","high_water":5,"request_id":"r-1","retryable":false,`+
		`"sequence":3,"status":409,"title":"the fencing token is stale","type":"urn:coordsvc:problem:stale_fencing_token"}`)
	s.unchanged(before)
	s.must(200, s.post("/v1/leases/leased/acquire", `{"owner":"w","ttl_ms":1000}`))
	a = s.post("/v1/fences/leased/admit", `{"fencing_token":2}`)
	a.refused(t, 422, "invalid_value")
	if a.field("field") != "fencing_token" {
		t.Errorf("the field is not named: %s", a.body)
	}
}

func TestProtectedRoutes(t *testing.T) {
	s := startService(t)
	const path = "/v1/protected/job/state"
	s.get(path).refused(t, 404, "not_found")
	s.put(path, `{"fencing_token":5,"mode":"high_water","value":{"b": "<&>", "a":[1, 18446744073709551615]}}`).is(t, 200, `{"fencing_token":5,"sequence":1,"version":1}`)
	s.get(path).is(t, 200, `{"fencing_token":5,"mode":"high_water","sequence":1,"value":{"b":"<&>","a":[1,18446744073709551615]},"version":1}`)
	s.put(path, `{"fencing_token":6,"sequence":4,"mode":"high_water","value":null}`).is(t, 200, `{"fencing_token":6,"sequence":4,"version":2}`)
	s.put(path, `{"fencing_token":6,"sequence":4,"mode":"high_water","value":null}`).is(t, 200, `{"fencing_token":6,"sequence":4,"version":2}`)
	before := s.items()
	s.put(path, `{"fencing_token":6,"sequence":4,"mode":"high_water","value":1}`).refused(t, 422, "sequence_reused")
	s.put(path, `{"fencing_token":5,"mode":"high_water","value":1}`).refused(t, 409, "stale_fencing_token")
	for fields, wrong := range map[string]string{
		``:                                    "lease_id",
		`"mode":"lease",`:                     "lease_id",
		`"lease_id":"",`:                      "lease_id",
		`"mode":"HIGH_WATER",`:                "mode",
		`"mode":"",`:                          "mode",
		`"lease_id":"x",`:                     "mode", // not the record's
		`"lease_id":"x","mode":"high_water",`: "lease_id",
	} {
		a := s.put(path, `{"fencing_token":7,`+fields+`"value":1}`)
		a.refused(t, 422, "invalid_value")
		if a.field("field") != wrong {
			t.Errorf("%s: %s is not named: %s", fields, wrong, a.body)
		}
	}
	if a := s.put(path, `{"fencing_token":7,"mode":"high_water"}`); a.field("detail") != "value is required" {
		t.Errorf("a missing value is not explained: %s", a.body)
	}
	s.unchanged(before)
	s.get(path).is(t, 200, `{"fencing_token":6,"mode":"high_water","sequence":4,"value":null,"version":2}`)
}

func TestAPIKeyRoutes(t *testing.T) {
	s := startService(t)
	made := s.post("/v1/api-keys", `{"name":"worker","scopes":["leases:use","leases:read"],"expires_at":"2026-01-02T16:04:06.7899+01:00"}`)
	const k = `"created_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-02T15:04:06.789Z","id":"key_…",`
	made.is(t, 201, `{`+k+`"key":"csk_…","name":"worker","scopes":["leases:read","leases:use"],"tenant":"default"}`)
	listed := s.must(200, s.get("/v1/api-keys"))
	if !strings.Contains(secretish.ReplaceAllString(listed.body, "${1}_…"), `{`+k+`"name":"worker","scopes":["leases:read","leases:use"],"tenant":"default"}`) || strings.Contains(listed.body, "csk_") {
		t.Errorf("listed %s", listed.body)
	}

	worker := s.as(made.field("key"))
	worker.must(200, worker.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":1000}`))
	a := worker.get("/v1/api-keys")
	a.refused(t, 403, "forbidden_scope")
	if a.field("scope") != "keys:admin" {
		t.Errorf("the scope is not named: %s", a.body)
	}
	s.clock.advance(1789 * time.Millisecond)
	worker.get("/v1/leases/job").refused(t, 401, "unauthenticated")

	s.delete("/v1/api-keys/"+made.field("id")).is(t, 204, ``)
	s.delete("/v1/api-keys/key_unknown").refused(t, 404, "not_found")
	s.post("/v1/api-keys", `{"name":"late","scopes":["leases:use"],"expires_at":"2026-01-02T15:04:06.000Z"}`).refused(t, 422, "invalid_value")
	a = s.post("/v1/api-keys", `{"name":"late","scopes":["leases:use"],"expires_at":"tomorrow"}`)
	a.refused(t, 422, "invalid_value")
	if a.field("field") != "expires_at" {
		t.Errorf("the field is not named: %s", a.body)
	}
	s.post("/v1/api-keys", `{"name":"odd","scopes":["leases:eat"]}`).refused(t, 422, "invalid_value")
}

func TestAPIKeyGrantsNoMoreThanItsMaker(t *testing.T) {
	s := startService(t)
	admin := s.as(s.newKey("default", "keys:admin", "leases:read"))
	before := s.items()
	a := admin.post("/v1/api-keys", `{"name":"more","scopes":["leases:read","leases:use"]}`)
	a.refused(t, 403, "forbidden_scope")
	if a.field("scope") != "leases:use" {
		t.Errorf("the scope is not named: %s", a.body)
	}
	s.unchanged(before)
	admin.must(201, admin.post("/v1/api-keys", `{"name":"same","scopes":["leases:read"]}`))
}

func TestAPIKeyIsRevokedAtOnce(t *testing.T) {
	s := startService(t)
	made := s.must(201, s.post("/v1/api-keys", `{"name":"worker","scopes":["leases:read"]}`))
	worker := s.as(made.field("key"))
	worker.get("/v1/leases/job").refused(t, 404, "not_found")
	s.must(204, s.delete("/v1/api-keys/"+made.field("id")))
	worker.get("/v1/leases/job").refused(t, 401, "unauthenticated")
}

func TestKeyTypeRoute(t *testing.T) {
	s := startService(t)
	keyless := s.as(s.newKey("default", "leases:read")) // any key will do
	a := keyless.must(200, keyless.get("/v1/key-types"))
	const leases = `{"available":true,"consistency":"linearizable","durability":"durable","if_lost":"fencing tokens would repeat: raise the fence floor after a restore",` +
		`"in_force":{"durability":"durable on this node only","note":"one file in the data folder; an acknowledged write is on disk","store":"bbolt"},` +
		`"key_pattern":"<n>:{tenant}<n>:{resource}","name":"lease","on_store_failure":"fail closed: 503","owner":"lease","runbook":"docs/runbooks/dynamodb.md","store":"dynamodb",` +
		`"ttl":"never removed: the fence counter outlives the lease"}`
	if !strings.Contains(a.body, leases) || strings.Count(a.body, `"key_pattern"`) != len(keytype.All()) {
		t.Errorf("listed %s", a.body)
	}
	s = startService(t, func(d *Deps) { d.Mode = keytype.Mode{DynamoDB: true, Redis: true} })
	if a := s.must(200, s.get("/v1/key-types")); strings.Contains(a.body, `"available":false`) || !strings.Contains(a.body, `"store":"dynamodb"},"key_pattern"`) && !strings.Contains(a.body, `"store":"dynamodb"`) {
		t.Errorf("listed %s", a.body)
	}
}

func TestRoutesOfAMissingFeature(t *testing.T) {
	s := startService(t, func(d *Deps) {
		d.Sessions, d.Limits, d.Leases, d.Fences, d.Quotas, d.Locks, d.Idempotency, d.Audit = nil, nil, nil, nil, nil, nil, nil, nil
	})
	for _, r := range samples(s) {
		a := s.do(r.request())
		switch r.feature {
		case "":
			if a.status >= 400 {
				t.Errorf("%s %s answered %d", r.method, r.path, a.status)
			}
		default:
			a.refused(t, 503, "feature_unavailable")
			if a.field("retryable") != "false" || a.header.Get("Retry-After") != "" {
				t.Errorf("%s %s invites to come back: %v %s", r.method, r.path, a.header, a.body)
			}
		}
	}
}
