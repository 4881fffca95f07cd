package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// The longest ids and the largest values that the API takes fit into DynamoDB's keys
// of 2,048 bytes (1,024 for sort keys), its items of 400 KB and its transactions; what
// is longer is refused before it gets there. The engine has the same limits. On the way
// every key type that DynamoDB keeps consumes capacity, which is counted.
func TestTheLargestOfEverythingFitsDynamoDB(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	env, _ := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	id := func(n int) string { return strings.Repeat("é", 126) + fmt.Sprintf("%04d", n) } // 256 bytes
	secret, stderr, err := output(t, env, "keys", "create", "--tenant", id(0))
	if err != nil {
		t.Fatalf("keys create: %v\n%s", err, stderr)
	}
	s := start(t, env...)
	s.key = strings.TrimSpace(secret)
	at := func(format string, ids ...int) string {
		escaped := make([]any, len(ids))
		for i, n := range ids {
			escaped[i] = url.PathEscape(id(n))
		}
		return fmt.Sprintf(format, escaped...)
	}
	data := `"` + strings.Repeat("x", 4094) + `"`

	lease := s.call(200, "POST", at("/v1/leases/%s/acquire", 1), fmt.Sprintf(`{"owner":%q,"ttl_ms":60000,"request_id":%q,"data":%s}`, id(2), id(3), data))
	s.call(200, "GET", at("/v1/leases?owner=%s", 2), "")
	s.call(422, "POST", at("/v1/leases/%s/acquire", 1), fmt.Sprintf(`{"owner":%q,"ttl_ms":60000}`, id(2)+"x"))
	s.call(422, "POST", at("/v1/leases/%sx/acquire", 1), `{"owner":"w","ttl_ms":60000}`)
	s.call(422, "POST", at("/v1/leases/%s/acquire", 5), `{"owner":"w","ttl_ms":60000,"data":"x`+data[1:]+`}`)
	resources := make([]string, 100)
	for i := range resources {
		resources[i] = fmt.Sprintf("%q", id(100+i))
	}
	s.call(200, "POST", "/v1/leases/acquire-set", fmt.Sprintf(`{"resources":[%s],"owner":%q,"ttl_ms":60000,"request_id":%q,"data":%s}`, strings.Join(resources, ","), id(2), id(3), data))

	write := fmt.Sprintf(`{"fencing_token":1,"sequence":9007199254740990,"lease_id":%q,"value":"`, lease.text("lease_id"))
	largest := strings.Repeat("é", (64<<10-len(write)-2)/2)
	s.call(200, "PUT", at("/v1/protected/%s/%s", 1, 2), write+largest+`"}`)
	s.call(413, "PUT", at("/v1/protected/%s/%s", 1, 2), write+largest+`éé"}`)
	s.call(200, "POST", at("/v1/fences/%s/admit", 1), `{"fencing_token":1,"sequence":9007199254740991}`)
	s.call(200, "POST", at("/v1/leases/%s/force-release", 1), fmt.Sprintf(`{"fencing_token":1,"reason":%q,"request_id":%q}`, id(1), id(2)))

	s.call(200, "PUT", at("/v1/quotas/%s/%s", 1, 2), `{"limit":9007199254740991,"window":"day","zone":"America/Argentina/ComodRivadavia"}`)
	s.call(200, "POST", at("/v1/quotas/%s/%s/consume", 1, 2), fmt.Sprintf(`{"amount":1,"request_id":%q}`, id(3)))
	reserved := s.call(200, "POST", at("/v1/quotas/%s/%s/reserve", 1, 2), fmt.Sprintf(`{"amount":9007199254740990,"request_id":%q,"ttl_ms":60000}`, id(4)))
	s.call(200, "POST", at("/v1/quotas/%s/%s/reservations/", 1, 2)+reserved.text("reservation_id")+"/commit", "")

	claim := s.call(200, "POST", at("/v1/idempotency/%s/claim", 1), fmt.Sprintf(`{"fingerprint":%q,"lock_ttl_ms":60000,"ttl_ms":60000,"request_id":%q}`, id(2), id(3)))
	complete := fmt.Sprintf(`{"claim_id":%q,"response":"%s`, claim.text("claim_id"), strings.Repeat("x", 32<<10-2))
	s.call(422, "POST", at("/v1/idempotency/%s/complete", 1), complete+`x"}`)
	s.call(204, "POST", at("/v1/idempotency/%s/complete", 1), complete+`"}`)

	login := s.call(201, "POST", "/v1/sessions", fmt.Sprintf(`{"user_id":%[1]q,"device_id":%[1]q,"ip":"2001:db8:ffff:ffff:ffff:ffff:ffff:ffff","user_agent":%[1]q,"data":%[2]s}`, id(1), data))
	s.call(200, "POST", "/v1/sessions/verify", fmt.Sprintf(`{"token":%q}`, login.text("token")))
	s.call(200, "POST", at("/v1/users/%s/logout-all", 1), fmt.Sprintf(`{"reason":%q}`, id(1)))
	s.call(201, "POST", "/v1/api-keys", fmt.Sprintf(`{"name":%q,"scopes":["leases:read"]}`, id(1)))
	if events := s.call(200, "GET", "/v1/events", ""); strings.Count(events.raw, id(1)) < 3 {
		t.Errorf("events: %s", events.raw)
	}
	metrics := opsText(t, s, "/metrics")
	for _, counted := range []string{
		`operation="UpdateItem",type="lease"`, `operation="Query",type="lease"`, `operation="BatchGetItem",type="lease"`, `operation="TransactWriteItems",type="lease"`,
		`operation="TransactWriteItems",type="protected_record"`, `operation="TransactWriteItems",type="quota"`, `operation="TransactWriteItems",type="quota_receipt"`,
		`operation="TransactWriteItems",type="quota_reservation"`, `operation="UpdateItem",type="idempotency"`, `operation="TransactWriteItems",type="session"`,
		`operation="GetItem",type="api_key"`, `operation="Query",type="audit_event"`,
	} {
		if !strings.Contains(metrics, "coordsvc_dynamodb_consumed_capacity_units_total{"+counted+"} ") {
			t.Errorf("not counted: %s", counted)
		}
	}
}

// opsText reads a page of the ops listener.
func opsText(t *testing.T, s *service, path string) string {
	t.Helper()
	resp, err := http.Get(s.ops + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d, %v", path, resp.StatusCode, err)
	}
	return string(raw)
}
