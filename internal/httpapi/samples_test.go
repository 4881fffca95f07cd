package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// A sample is a request of one route that succeeds.
type sample struct {
	method, path, body string
	feature            string // which manager answers, "" where it is always there
}

// samples are one request per route. On a service with all features they
// succeed, in any order but DELETE last.
func samples(s *service) []sample {
	s.t.Helper()
	token, handle, leaseID := "cst_none", "ses_none", "lse_none"
	if made := s.post("/v1/sessions", `{"user_id":"ann"}`); made.status == 201 {
		token, handle = made.field("token"), made.sub("session").field("handle")
	}
	if grant := s.post("/v1/leases/held/acquire", `{"owner":"w","ttl_ms":60000}`); grant.status == 200 {
		leaseID = grant.field("lease_id")
		s.must(200, s.post("/v1/fences/held/admit", `{"fencing_token":1}`))
		s.must(200, s.put("/v1/protected/held/state", `{"fencing_token":1,"mode":"high_water","value":1}`))
	}
	extra := s.must(201, s.post("/v1/api-keys", `{"name":"extra","scopes":["leases:read"]}`)).field("id")
	const descriptors = `"descriptors":{"tenant":"shop","user":"ann"}`
	return []sample{
		{"POST", "/v1/sessions", `{"user_id":"bob","aal":2,"amr":["pwd"],"device_id":"d","ip":"::1","user_agent":"x","absolute_ttl_ms":60000,"idle_ttl_ms":60000,"expected_session_version":1}`, "sessions"},
		{"POST", "/v1/sessions/verify", `{"token":"` + token + `","touch":true,"min_aal":1,"max_auth_age_ms":60000,"user_id":"ann"}`, "sessions"},
		{"GET", "/v1/sessions/" + handle, ``, "sessions"},
		{"GET", "/v1/users/ann/sessions", ``, "sessions"},
		{"GET", "/v1/users/ann/epochs", ``, "sessions"},
		{"POST", "/v1/users/ann/permission-epoch", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/logout-all", `{"except_token":"` + token + `","reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/disable", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/enable", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/sessions/revoke", `{"token":"` + token + `"}`, "sessions"},
		{"POST", "/v1/ratelimit/check", `{"policy":"default",` + descriptors + `,"cost":1}`, "limits"},
		{"POST", "/v1/ratelimit/peek", `{"policy":"default",` + descriptors + `,"cost":1}`, "limits"},
		{"GET", "/v1/ratelimit/policies", ``, "limits"},
		{"GET", "/v1/ratelimit/policies/default", ``, "limits"},
		{"POST", "/v1/leases/free/acquire", `{"owner":"w","ttl_ms":1000,"request_id":"q","max_ttl_ms":1000}`, "leases"},
		{"GET", "/v1/leases/held", ``, "leases"},
		{"POST", "/v1/leases/held/renew", `{"lease_id":"` + leaseID + `","fencing_token":1,"ttl_ms":1000}`, "leases"},
		{"POST", "/v1/leases/held/release", `{"lease_id":"` + leaseID + `","fencing_token":1}`, "leases"},
		{"GET", "/v1/fences/held", ``, "fences"},
		{"POST", "/v1/fences/held/admit", `{"fencing_token":1,"sequence":1}`, "fences"},
		{"GET", "/v1/protected/held/state", ``, "fences"},
		{"PUT", "/v1/protected/held/state", `{"fencing_token":1,"sequence":7,"mode":"high_water","value":{"a":1}}`, "fences"},
		{"GET", "/v1/key-types", ``, ""},
		{"GET", "/v1/api-keys", ``, ""},
		{"POST", "/v1/api-keys", `{"name":"n","scopes":["leases:read"],"expires_at":"2027-01-01T00:00:00.000Z"}`, ""},
		{"GET", "/openapi.yaml", ``, ""},
		{"DELETE", "/v1/api-keys/" + extra, ``, ""},
		{"DELETE", "/v1/sessions/" + handle, ``, "sessions"},
	}
}

func TestSamplesCoverEveryRouteAndSucceed(t *testing.T) {
	s := startService(t)
	served := map[string]bool{}
	for _, r := range samples(s) {
		if a := s.do(request{method: r.method, path: r.path, body: r.body}); a.status >= 300 {
			t.Errorf("%s %s answered %d %s", r.method, r.path, a.status, a.body)
		}
		served[fmt.Sprint(theContract.operation(r.method, r.path)["operationId"])] = true
	}
	for path, item := range theContract.at("paths") {
		for method := range item.(map[string]any) {
			op := theContract.at("paths", path, method)
			if id := fmt.Sprint(op["operationId"]); method != "parameters" && !served[id] {
				t.Errorf("no sample of %s %s", strings.ToUpper(method), path)
			}
		}
	}
}
