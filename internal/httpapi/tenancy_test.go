package httpapi

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/internal/auth"
)

var requestIDField = regexp.MustCompile(`"request_id":"[^"]*"`)

// S42: what another tenant has is, byte for byte, what nobody has.
func TestS42AnotherTenantsObjectIsAsAMissingOne(t *testing.T) {
	s := startService(t)
	token := s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`)).field("token")
	handle := s.must(200, s.get("/v1/users/ann/sessions")).body
	handle = regexp.MustCompile(`ses_\w+`).FindString(handle)
	leaseID := s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":60000,"request_id":"q"}`)).field("lease_id")
	s.must(200, s.post("/v1/fences/job/admit", `{"fencing_token":1}`))
	s.must(200, s.put("/v1/protected/job/state", `{"fencing_token":1,"mode":"high_water","value":"theirs"}`))
	keyID := s.must(201, s.post("/v1/api-keys", `{"name":"n","scopes":["leases:read"]}`)).field("id")
	s.must(200, s.post("/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":20}`))

	other := s.as(s.newKey("other", auth.AllScopes()...))
	before := s.items()
	for _, c := range []struct{ method, theirs, nobodys, body, sameBody string }{
		{"GET", "/v1/sessions/" + handle, "/v1/sessions/ses_nobody", ``, ``},
		{"DELETE", "/v1/sessions/" + handle, "/v1/sessions/ses_nobody", ``, ``},
		{"GET", "/v1/users/ann/sessions", "/v1/users/nobody/sessions", ``, ``},
		{"GET", "/v1/users/ann/epochs", "/v1/users/nobody/epochs", ``, ``},
		{"POST", "/v1/sessions/verify", "/v1/sessions/verify", `{"token":"` + token + `"}`, `{"token":"cst_nobody"}`},
		{"POST", "/v1/sessions/revoke", "/v1/sessions/revoke", `{"token":"` + token + `"}`, `{"token":"cst_nobody"}`},
		{"POST", "/v1/users/ann/logout-all", "/v1/users/nobody/logout-all", `{"except_token":"` + token + `"}`, `{"except_token":"cst_nobody"}`},
		{"GET", "/v1/leases/job", "/v1/leases/never", ``, ``},
		{"POST", "/v1/leases/job/renew", "/v1/leases/never/renew", `{"lease_id":"` + leaseID + `","fencing_token":1,"ttl_ms":1000}`, ``},
		{"POST", "/v1/leases/job/release", "/v1/leases/never/release", `{"lease_id":"` + leaseID + `","fencing_token":1}`, ``},
		{"GET", "/v1/fences/job", "/v1/fences/never", ``, ``},
		{"GET", "/v1/protected/job/state", "/v1/protected/never/state", ``, ``},
		{"DELETE", "/v1/api-keys/" + keyID, "/v1/api-keys/key_nobody", ``, ``},
	} {
		if c.sameBody == "" {
			c.sameBody = c.body
		}
		theirs := other.do(request{method: c.method, path: c.theirs, body: c.body})
		nobodys := other.do(request{method: c.method, path: c.nobodys, body: c.sameBody})
		if theirs.status != nobodys.status || same(theirs) != same(nobodys) {
			t.Errorf("%s %s of another tenant answered\n %d %s, of nobody\n %d %s", c.method, c.theirs, theirs.status, theirs.body, nobodys.status, nobodys.body)
		}
		for name := range theirs.header {
			if _, there := nobodys.header[name]; !there {
				t.Errorf("%s %s of another tenant has the header %s", c.method, c.theirs, name)
			}
		}
	}
	if listed := other.must(200, other.get("/v1/api-keys")); strings.Count(listed.body, `"id"`) != 1 || strings.Contains(listed.body, "default") {
		t.Errorf("the other tenant lists %s", listed.body)
	}
	if after := s.items(); !maps.Equal(before, after) {
		t.Errorf("the other tenant changed the stores:\n before %q\n after  %q", before, after)
	}
	if a := s.post("/v1/sessions/verify", `{"token":"`+token+`"}`); a.field("active") != "true" {
		t.Errorf("the session is dead: %s", a.body)
	}
}

func same(a answer) string { return requestIDField.ReplaceAllString(a.body, "") }

// The same names in two tenants are two objects.
func TestTenantsDoNotShareNames(t *testing.T) {
	s := startService(t)
	other := s.as(s.newKey("other", auth.AllScopes()...))
	for _, tenant := range []*service{s, other} {
		tenant.must(201, tenant.post("/v1/sessions", `{"user_id":"ann","expected_session_version":1}`))
		if a := tenant.must(200, tenant.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":60000}`)); a.field("fencing_token") != "1" {
			t.Errorf("the other tenant's lease counts: %s", a.body)
		}
		tenant.must(200, tenant.put("/v1/protected/job/state", `{"fencing_token":1,"sequence":1,"mode":"high_water","value":"`+tenant.key[:8]+`"}`))
		tenant.must(200, tenant.post("/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":20}`))
		tenant.must(200, tenant.post("/v1/users/ann/logout-all", ``))
	}
	if got := s.must(200, s.get("/v1/protected/job/state")).field("value"); got != s.key[:8] {
		t.Errorf("the record holds %s", got)
	}
	if got := other.must(200, other.get("/v1/users/ann/epochs")).field("session_version"); got != "2" {
		t.Errorf("the user's session version is %s", got)
	}
}
