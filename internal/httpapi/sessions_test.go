package httpapi

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// login starts a session and returns its token and handle.
func (s *service) login(body string) (token, handle string) {
	s.t.Helper()
	made := s.must(201, s.post("/v1/sessions", body))
	return made.field("token"), made.sub("session").field("handle")
}

func (s *service) verdict(token string) answer {
	s.t.Helper()
	return s.must(200, s.post("/v1/sessions/verify", `{"token":"`+token+`"}`))
}

// S24, S50: a step-up is a new token, and the old one stays what it was, for a while.
func TestS24S50Rotate(t *testing.T) {
	s := startService(t)
	old, handle := s.login(`{"user_id":"ann"}`)
	s.must(200, s.post("/v1/users/ann/permission-epoch", ``))
	s.clock.advance(time.Second)
	stepped := s.must(200, s.post("/v1/sessions/rotate", `{"token":"`+old+`","aal":2,"amr":["pwd","otp"]}`))
	next, after := stepped.field("token"), stepped.sub("session")
	if next == old || after.field("handle") != handle || after.field("aal") != "2" || after.field("auth_at") != "2026-01-02T15:04:06.000Z" || after.field("expires_at") != "2026-01-03T03:04:05.000Z" {
		t.Errorf("stepped up: %s", stepped.body)
	}
	if v := s.verdict(next); v.field("permissions_stale") != "false" || v.field("source") != "store" {
		t.Errorf("the new token: %s", v.body)
	}
	if v := s.verdict(old); v.sub("session").field("aal") != "1" {
		t.Errorf("the old token: %s", v.body)
	}
	s.post("/v1/sessions/rotate", `{"token":"`+old+`"}`).refused(t, 409, "session_not_active")
	s.clock.advance(10 * time.Second)
	s.post("/v1/sessions/verify", `{"token":"`+old+`"}`).is(t, 200, `{"active":false,"reason":"rotated"}`)
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+old+`"}`))
	s.post("/v1/sessions/verify", `{"token":"`+next+`"}`).is(t, 200, `{"active":false,"reason":"revoked"}`)
	s.post("/v1/sessions/rotate", `{"token":"`+next+`"}`).refused(t, 409, "session_not_active")
}

// S1: data have a version, and a late write finds no session.
func TestS1SessionData(t *testing.T) {
	s := startService(t)
	token, handle := s.login(`{"user_id":"ann"}`)
	path := "/v1/sessions/" + handle + "/data"
	put := func(version, body string) answer {
		return s.do(request{method: "PUT", path: path, body: body, header: map[string]string{"If-Match": version}})
	}
	read := func(want, version string) {
		t.Helper()
		if a := s.must(200, s.get(path)); a.body != want || a.header.Get("ETag") != version {
			t.Errorf("read %s at %s, want %s at %s", a.body, a.header.Get("ETag"), want, version)
		}
	}
	read("null", `"0"`)
	if a := s.must(204, put(`"0"`, `{"a": "<b>"}`)); a.header.Get("ETag") != `"1"` {
		t.Errorf("written at %s", a.header.Get("ETag"))
	}
	read(`{"a": "<b>"}`, `"1"`)
	put(`"0"`, `2`).refused(t, 412, "version_mismatch")
	s.must(204, put(`"1"`, `null`))
	read("null", `"2"`)
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`))
	put(`"2"`, `3`).refused(t, 404, "not_found")
	s.get(path).refused(t, 404, "not_found")

	_, with := s.login(`{"user_id":"ann","data":[1]}`)
	if a := s.must(200, s.get("/v1/sessions/"+with+"/data")); a.body != `[1]` || a.header.Get("ETag") != `"1"` {
		t.Errorf("made with data: %s at %s", a.body, a.header.Get("ETag"))
	}
}

func TestSessionLimit(t *testing.T) {
	s := startService(t)
	for _, n := range []string{"0", "-1", "101"} {
		a := s.post("/v1/sessions", `{"user_id":"ann","max_sessions":`+n+`}`)
		a.refused(t, 422, "invalid_value")
		if a.field("detail") != "max_sessions must be from 1 to 100" {
			t.Errorf("max_sessions %s: %s", n, a.body)
		}
	}
	first, _ := s.login(`{"user_id":"ann","max_sessions":2}`)
	s.login(`{"user_id":"ann","max_sessions":2}`)
	before := s.items()
	s.post("/v1/sessions", `{"user_id":"ann","max_sessions":2}`).refused(t, 409, "session_limit")
	s.unchanged(before)
	if v := s.verdict(first); v.field("active") != "true" {
		t.Errorf("somebody was logged out: %s", v.body)
	}
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+first+`"}`))
	s.login(`{"user_id":"ann","max_sessions":2}`)
}

// What hits many at once needs two scopes and the name once more.
func TestEraseAndLogoutTenant(t *testing.T) {
	s := startService(t)
	token, handle := s.login(`{"user_id":"ann","data":1}`)
	bobs, _ := s.login(`{"user_id":"bob"}`)
	erase := func(by *service, body string) answer {
		return by.do(request{method: "DELETE", path: "/v1/users/ann", body: body})
	}
	for _, scope := range []auth.Scope{auth.UsersRevoke, auth.UsersDisable} {
		half := s.as(s.newKey("default", scope))
		erase(half, `{"reason":"asked for","confirm":"ann"}`).refused(t, 403, "forbidden_scope")
		half.post("/v1/tenant/logout-all", `{"reason":"breach","confirm":"default"}`).refused(t, 403, "forbidden_scope")
	}
	before := s.items()
	erase(s, `{"reason":"asked for","confirm":"bob"}`).refused(t, 422, "invalid_value")
	s.post("/v1/tenant/logout-all", `{"reason":"breach","confirm":"other"}`).refused(t, 422, "invalid_value")
	s.unchanged(before)

	erase(s, `{"reason":"asked for","confirm":"ann"}`).is(t, 200, `{"cache_propagated":true,"disabled":true,"effective_by":"2026-01-02T15:04:05.000Z","session_version":2}`)
	s.post("/v1/sessions/verify", `{"token":"`+token+`"}`).is(t, 200, `{"active":false,"reason":"unknown"}`)
	s.get("/v1/sessions/"+handle+"/data").refused(t, 404, "not_found")
	s.post("/v1/sessions", `{"user_id":"ann"}`).refused(t, 403, "user_disabled")

	s.post("/v1/tenant/logout-all", `{"reason":"breach","confirm":"default"}`).is(t, 200, `{"cache_propagated":false,"effective_by":"2026-01-02T15:04:15.000Z"}`)
	s.post("/v1/sessions/verify", `{"token":"`+bobs+`"}`).is(t, 200, `{"active":false,"reason":"epoch"}`)
	again, _ := s.login(`{"user_id":"bob"}`)
	if v := s.verdict(again); v.field("active") != "true" {
		t.Errorf("a login after it: %s", v.body)
	}
}
