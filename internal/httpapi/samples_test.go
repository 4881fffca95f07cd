package httpapi

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// A sample is a request of one route that succeeds.
type sample struct {
	method, path, body string
	feature            string // which manager answers, "" where it is always there
}

// request is the sample as it is sent. A route that needs a version in If-Match gets that of nothing written yet.
func (r sample) request() request {
	out := request{method: r.method, path: r.path, body: r.body}
	if r.method == "PUT" && strings.HasSuffix(r.path, "/data") {
		out.header = map[string]string{"If-Match": `"0"`}
	}
	return out
}

// named is the sample with a request id of the test's own.
func (r sample) named(id string) request {
	out := r.request()
	header := map[string]string{"X-Request-Id": id}
	maps.Copy(header, out.header)
	out.header = header
	return out
}

// samples are one request per route. On a service with all features they
// succeed, in any order but DELETE last.
func samples(s *service) []sample {
	s.t.Helper()
	token, handle, leaseID := "cst_none", "ses_none", "lse_none"
	rotated := token
	if made := s.post("/v1/sessions", `{"user_id":"ann"}`); made.status == 201 {
		token, handle = made.field("token"), made.sub("session").field("handle")
		rotated = s.must(201, s.post("/v1/sessions", `{"user_id":"carl"}`)).field("token")
	}
	if grant := s.post("/v1/leases/held/acquire", `{"owner":"w","ttl_ms":60000}`); grant.status == 200 {
		leaseID = grant.field("lease_id")
		s.must(200, s.post("/v1/fences/held/admit", `{"fencing_token":1}`))
		s.must(200, s.put("/v1/protected/held/state", `{"fencing_token":1,"mode":"high_water","value":1}`))
	}
	s.post("/v1/leases/forced/acquire", `{"owner":"w","ttl_ms":60000}`)
	setID := "lse_none"
	if grant := s.post("/v1/leases/set/acquire", `{"owner":"w","ttl_ms":60000}`); grant.status == 200 {
		setID = grant.field("lease_id")
	}
	committed, cancelled := "rsv_none", "rsv_none"
	if set := s.put("/v1/quotas/mail/ann", `{"limit":100,"window":"day","zone":"Europe/Berlin"}`); set.status == 200 {
		committed = s.must(200, s.post("/v1/quotas/mail/ann/reserve", `{"amount":1,"request_id":"r1","ttl_ms":60000}`)).field("reservation_id")
		cancelled = s.must(200, s.post("/v1/quotas/mail/ann/reserve", `{"amount":1,"request_id":"r2","ttl_ms":60000}`)).field("reservation_id")
	}
	lockID := s.post("/v1/locks/held/acquire", `{"owner":"w","ttl_ms":60000}`).field("lock_id")
	if lockID == "" {
		lockID = "lck_none"
	}
	claimed, abandoned := "clm_none", "clm_none"
	if claim := s.post("/v1/idempotency/claimed/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`); claim.status == 200 {
		claimed = claim.field("claim_id")
		abandoned = s.must(200, s.post("/v1/idempotency/abandoned/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`)).field("claim_id")
	}
	extra := s.must(201, s.post("/v1/api-keys", `{"name":"extra","scopes":["leases:read"]}`)).field("id")
	const descriptors = `"descriptors":{"tenant":"shop","user":"ann"}`
	return []sample{
		{"POST", "/v1/sessions", `{"user_id":"bob","aal":2,"amr":["pwd"],"device_id":"d","ip":"::1","user_agent":"x","absolute_ttl_ms":60000,"idle_ttl_ms":60000,"expected_session_version":1,"max_sessions":100,"data":{"a":1}}`, "sessions"},
		{"POST", "/v1/sessions/verify", `{"token":"` + token + `","touch":true,"min_aal":1,"max_auth_age_ms":60000,"user_id":"ann"}`, "sessions"},
		{"GET", "/v1/sessions/" + handle, ``, "sessions"},
		{"POST", "/v1/sessions/rotate", `{"token":"` + rotated + `","aal":2,"amr":["otp"]}`, "sessions"},
		{"GET", "/v1/sessions/" + handle + "/data", ``, "sessions"},
		{"PUT", "/v1/sessions/" + handle + "/data", `{"a":1}`, "sessions"},
		{"GET", "/v1/users/ann/sessions", ``, "sessions"},
		{"GET", "/v1/users/ann/epochs", ``, "sessions"},
		{"POST", "/v1/users/ann/permission-epoch", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/logout-all", `{"except_token":"` + token + `","reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/disable", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/users/ann/enable", `{"reason":"x"}`, "sessions"},
		{"POST", "/v1/sessions/revoke", `{"token":"` + token + `"}`, "sessions"},
		{"POST", "/v1/ratelimit/check", `{"policy":"default",` + descriptors + `,"cost":1}`, "limits"},
		{"POST", "/v1/ratelimit/peek", `{"policy":"default",` + descriptors + `,"cost":1}`, "limits"},
		{"POST", "/v1/ratelimit/check", `{"policy":"each",` + descriptors + `,"cost":1,"request_id":"q"}`, "limits"},
		{"POST", "/v1/ratelimit/refund", `{"policy":"default",` + descriptors + `,"cost":1,"request_id":"q"}`, "limits"},
		{"POST", "/v1/ratelimit/release", `{"policy":"each",` + descriptors + `,"slot_id":"slt_A"}`, "limits"},
		{"POST", "/v1/ratelimit/reset", `{"policy":"default",` + descriptors + `}`, "limits"},
		{"POST", "/v1/ratelimit/token-leases", `{"policy":"leased",` + descriptors + `,"want":10,"holder":"h","held":1}`, "limits"},
		{"POST", "/v1/ratelimit/token-leases/return", `{"policy":"leased",` + descriptors + `,"unspent":1,"holder":"h"}`, "limits"},
		{"GET", "/v1/ratelimit/policies", ``, "limits"},
		{"GET", "/v1/ratelimit/policies/default", ``, "limits"},
		{"POST", "/v1/leases/free/acquire", `{"owner":"w","ttl_ms":1000,"request_id":"q","max_ttl_ms":1000,"wait_ms":100,"not_after":"2027-01-01T00:00:00.000Z","data":{"a":1}}`, "leases"},
		{"GET", "/v1/leases/held", ``, "leases"},
		{"GET", "/v1/leases?owner=w", ``, "leases"},
		{"POST", "/v1/leases/held/renew", `{"lease_id":"` + leaseID + `","fencing_token":1,"ttl_ms":1000}`, "leases"},
		{"POST", "/v1/leases/held/release", `{"lease_id":"` + leaseID + `","fencing_token":1}`, "leases"},
		{"POST", "/v1/leases/acquire-set", `{"resources":["s1","s2"],"owner":"w","ttl_ms":1000,"request_id":"q","max_ttl_ms":1000,"not_after":"2027-01-01T00:00:00.000Z","data":{"a":1}}`, "leases"},
		{"POST", "/v1/leases/renew-set", `{"leases":[{"resource":"set","lease_id":"` + setID + `","fencing_token":1}],"ttl_ms":1000}`, "leases"},
		{"POST", "/v1/leases/release-set", `{"leases":[{"resource":"set","lease_id":"` + setID + `","fencing_token":1}]}`, "leases"},
		{"POST", "/v1/leases/forced/force-release", `{"fencing_token":1,"reason":"x","request_id":"f"}`, "leases"},
		{"GET", "/v1/fences/held", ``, "fences"},
		{"POST", "/v1/fences/held/admit", `{"fencing_token":1,"sequence":1}`, "fences"},
		{"POST", "/v1/fences/held/reset", `{"fencing_token":1,"key":"state","reason":"x"}`, "fences"},
		{"GET", "/v1/protected/held/state", ``, "fences"},
		{"PUT", "/v1/protected/held/state", `{"fencing_token":1,"sequence":7,"mode":"high_water","value":{"a":1}}`, "fences"},
		{"PUT", "/v1/quotas/mail/ann", `{"limit":100,"window":"day","zone":"Europe/Berlin"}`, "quotas"},
		{"GET", "/v1/quotas/mail/ann", ``, "quotas"},
		{"POST", "/v1/quotas/mail/ann/consume", `{"amount":1,"request_id":"c"}`, "quotas"},
		{"POST", "/v1/quotas/mail/ann/reserve", `{"amount":1,"request_id":"r","ttl_ms":60000}`, "quotas"},
		{"POST", "/v1/quotas/mail/ann/reservations/" + committed + "/commit", `{"amount":1}`, "quotas"},
		{"POST", "/v1/quotas/mail/ann/reservations/" + cancelled + "/cancel", `{}`, "quotas"},
		{"GET", "/v1/events?limit=10", ``, "audit"},
		{"POST", "/v1/locks/free/acquire", `{"owner":"w","ttl_ms":60000}`, "locks"},
		{"POST", "/v1/locks/held/renew", `{"lock_id":"` + lockID + `","ttl_ms":60000}`, "locks"},
		{"POST", "/v1/locks/held/release", `{"lock_id":"` + lockID + `"}`, "locks"},
		{"POST", "/v1/idempotency/new/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000,"request_id":"q"}`, "idempotency"},
		{"POST", "/v1/idempotency/claimed/extend", `{"claim_id":"` + claimed + `","lock_ttl_ms":60000}`, "idempotency"},
		{"POST", "/v1/idempotency/claimed/complete", `{"claim_id":"` + claimed + `","response":{"a":1}}`, "idempotency"},
		{"POST", "/v1/idempotency/abandoned/abandon", `{"claim_id":"` + abandoned + `"}`, "idempotency"},
		{"GET", "/v1/key-types", ``, ""},
		{"GET", "/v1/api-keys", ``, ""},
		{"POST", "/v1/api-keys", `{"name":"n","scopes":["leases:read"],"expires_at":"2027-01-01T00:00:00.000Z"}`, ""},
		{"GET", "/openapi.yaml", ``, ""},
		{"DELETE", "/v1/api-keys/" + extra, ``, ""},
		{"DELETE", "/v1/sessions/" + handle, ``, "sessions"},
		{"POST", "/v1/tenant/logout-all", `{"reason":"x","confirm":"default"}`, "sessions"},
		{"DELETE", "/v1/users/gone", `{"reason":"x","confirm":"gone"}`, "sessions"},
	}
}

func TestSamplesCoverEveryRouteAndSucceed(t *testing.T) {
	s := startService(t)
	served := map[string]bool{}
	for _, r := range samples(s) {
		if a := s.do(r.request()); a.status >= 300 {
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
