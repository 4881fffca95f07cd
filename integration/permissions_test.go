package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/schema"
	"github.com/coordsvc/coordsvc/keytype"
)

// An access is something that a node asks of a table or an index, for a key type.
type access struct{ kind, resource, action string }

// accessOf is what a call asks for, false where no type claims it.
func accessOf(c engine.Call) (access, bool) {
	// A prefix is any text: the longest table's name that the rest can be is the table's.
	table := ""
	for _, t := range schema.Tables("") {
		if strings.HasSuffix(c.Table, t.Name) && len(t.Name) > len(table) {
			table = t.Name
		}
	}
	kind, known := keytype.OfItem("", table, c.PK, c.SK)
	if table == "" || !known {
		return access{}, false
	}
	if c.Index != "" {
		table += "/index/" + c.Index
	}
	return access{kind.Name, table, c.Operation}, true
}

// note keeps what a request asks for.
func (f *dynamoFaults) note(t *testing.T, r *http.Request, body []byte) {
	calls, err := engine.Calls(r, body)
	if err != nil {
		t.Error(err)
	}
	for _, c := range calls {
		a, known := accessOf(c)
		if !known {
			t.Errorf("%s asks for an item of no type: %s %s %s", c.Operation, c.Table, c.PK, c.SK)
			continue
		}
		f.mu.Lock()
		f.seen[a] = true
		f.mu.Unlock()
	}
}

// nodeAgent is in the User-Agent of what a running node asks DynamoDB for, so that it
// can be told from what operators' commands and the tests themselves do.
const nodeAgent = "coordsvc-serve"

// asked is what all nodes of all tests have asked DynamoDB for, as it went over the wire.
var asked = struct {
	sync.Mutex
	calls  int
	seen   map[access]bool
	errors map[string]bool
}{seen: map[access]bool{}, errors: map[string]bool{}}

func overhear(calls []engine.Call, err error) {
	asked.Lock()
	defer asked.Unlock()
	if err != nil {
		asked.errors[err.Error()] = true
		return
	}
	for _, c := range calls {
		if !strings.Contains(c.Agent, "app/"+nodeAgent) {
			continue
		}
		asked.calls++
		if a, known := accessOf(c); known {
			asked.seen[a] = true
		} else {
			asked.errors[fmt.Sprintf("%s asks for an item of no type in %s", c.Operation, c.Table)] = true
		}
	}
}

// policyOfTheRun compares what the nodes of this whole run have asked for with the
// policy in Terraform. Where only a part of the tests has run, what the policy allows
// and nobody asked for says nothing.
func policyOfTheRun(whole bool) bool {
	asked.Lock()
	defer asked.Unlock()
	if asked.calls == 0 && !whole { // no test of this run has started a node on tables
		return true
	}
	return testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "TestPolicyOfTheWholeRun", F: func(t *testing.T) {
			for e := range asked.errors {
				t.Error(e)
			}
			compare(t, asked.seen, whole)
			fmt.Printf("the nodes asked DynamoDB %d times, for %d kinds of access; whole run: %v, as the policy allows: %v\n", asked.calls, len(asked.seen), whole, !t.Failed())
		},
	}})
}

// compare demands that the policy allows what was asked for and, where all has been
// asked for that can be, nothing else.
func compare(t *testing.T, seen map[access]bool, all bool) {
	t.Helper()
	allowed := policyStatements(t)
	for _, a := range slices.SortedFunc(maps.Keys(seen), func(a, b access) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		if !allowed[a] {
			t.Errorf("for %s the service asks for dynamodb:%s on %s, which the policy does not allow", a.kind, a.action, a.resource)
		}
	}
	for a := range allowed {
		if all && !seen[a] {
			t.Errorf("for %s the policy allows dynamodb:%s on %s, which nothing asked for", a.kind, a.action, a.resource)
		}
	}
}

// Every call to DynamoDB that a node makes is allowed for its key type by the policy
// in Terraform, and the policy allows nothing that no call needs.
func TestPolicyAllowsExactlyTheCalls(t *testing.T) {
	t.Parallel()
	l := startLoad(t)
	for i := range 3 {
		l.once(l.service, i)
	}
	l.theRest()
	l.stop()
	compare(t, l.faults.seen, true)
	t.Logf("%d kinds of access", len(l.faults.seen))
}

// policyStatements reads the policy: an entry per action, resource and key type. What a
// node asks at its start is for each table's first type.
func policyStatements(t *testing.T) map[access]bool {
	t.Helper()
	m := readModule(t)
	made, types := map[string]cty.Value{}, map[string]string{}
	for _, table := range schema.Tables("") {
		made[table.Name] = cty.ObjectVal(map[string]cty.Value{"arn": cty.StringVal("arn:" + table.Name)})
	}
	m.made["aws_dynamodb_table"] = cty.ObjectVal(map[string]cty.Value{"this": cty.ObjectVal(made)})
	for _, kind := range keytype.All() {
		types[camel(kind.Name)] = kind.Name
	}
	all := map[access]bool{}
	for _, statement := range m.within(m.resources("aws_iam_policy_document")[0], "statement") {
		sid := m.text(statement, "sid")
		kind := types[strings.TrimSuffix(sid, "Index")]
		for _, resource := range each(m.value(statement, "resources")) {
			resource, ok := strings.CutPrefix(resource, "arn:")
			if !ok || strings.Contains(resource, "*") {
				t.Errorf("%s allows %s", sid, resource)
			}
			of := kind
			if sid == "Start" {
				first, _ := keytype.OfItem("", resource, "", "")
				of = first.Name
			}
			for _, action := range each(m.value(statement, "actions")) {
				action, ok := strings.CutPrefix(action, "dynamodb:")
				if !ok || of == "" || all[access{of, resource, action}] {
					t.Errorf("%s allows %s on %s: of no type, or twice", sid, action, resource)
				}
				all[access{of, resource, action}] = true
			}
		}
	}
	return all
}

// camel writes a key type's name as the policy's statements are called.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func each(list cty.Value) (all []string) {
	for it := list.ElementIterator(); it.Next(); {
		_, v := it.Element()
		all = append(all, v.AsString())
	}
	return all
}

// theRest uses what once does not: every other route that stores or reads something.
func (l *load) theRest() {
	do := func(status int, method, path, body string) answer { return l.call(status, method, path, body) }
	do(200, "POST", "/v1/tenant/logout-all", `{"reason":"r","confirm":"default"}`)
	token := do(201, "POST", "/v1/sessions", `{"user_id":"v","data":{"a":1},"max_sessions":3}`)
	handle := "/v1/sessions/" + token.body["session"].(map[string]any)["handle"].(string)
	do(200, "POST", "/v1/sessions/rotate", `{"token":"`+token.text("token")+`"}`)
	do(200, "GET", handle, "")
	do(200, "GET", handle+"/data", "")
	l.putData(handle)
	for _, path := range []string{"/v1/users/v/sessions", "/v1/users/v/epochs", "/v1/events", "/v1/api-keys", "/v1/leases?owner=a", "/v1/quotas/q0/0"} {
		do(200, "GET", path, "")
	}
	kept := do(201, "POST", "/v1/sessions", `{"user_id":"v"}`).text("token")
	do(200, "POST", "/v1/users/v/logout-all", `{"except_token":"`+kept+`"}`)
	do(200, "POST", "/v1/users/v/permission-epoch", `{}`)
	do(200, "POST", "/v1/users/v/disable", `{"reason":"r"}`)
	do(200, "POST", "/v1/users/v/enable", `{"reason":"r"}`)
	do(201, "POST", "/v1/sessions", `{"user_id":"v","data":{"a":1}}`)
	do(200, "DELETE", "/v1/users/v", `{"reason":"r","confirm":"v"}`)
	l.touched()

	id := do(201, "POST", "/v1/api-keys", `{"name":"n","scopes":["leases:read"]}`).text("id")
	do(204, "DELETE", "/v1/api-keys/"+id, "")

	held := do(200, "POST", "/v1/leases/set/acquire", `{"owner":"a","ttl_ms":60000,"request_id":"x"}`)
	number := held.number("fencing_token")
	write := func(lease answer, mode string) string {
		return fmt.Sprintf(`{"fencing_token":%d,"lease_id":%q,"mode":%q,"value":1}`, lease.number("fencing_token"), lease.text("lease_id"), mode)
	}
	do(200, "PUT", "/v1/protected/set/a", write(held, "lease"))
	do(200, "PUT", "/v1/protected/set/b", fmt.Sprintf(`{"fencing_token":%d,"mode":"high_water","value":1}`, number))
	do(200, "GET", "/v1/protected/set/a", "")
	do(200, "POST", "/v1/fences/set/admit", fmt.Sprintf(`{"fencing_token":%d}`, number))
	do(200, "GET", "/v1/fences/set", "")
	do(200, "POST", "/v1/fences/set/reset", fmt.Sprintf(`{"fencing_token":%d,"key":"b","reason":"r"}`, number))
	do(200, "POST", "/v1/fences/set/reset", fmt.Sprintf(`{"fencing_token":%d,"reason":"r"}`, number))
	do(200, "POST", "/v1/leases/set/renew", fmt.Sprintf(`{"fencing_token":%d,"lease_id":%q,"ttl_ms":60000}`, number, held.text("lease_id")))
	do(200, "POST", "/v1/leases/set/force-release", fmt.Sprintf(`{"fencing_token":%d,"reason":"r"}`, number))
	set := do(200, "POST", "/v1/leases/acquire-set", `{"resources":["s1","s2"],"owner":"a","ttl_ms":60000}`)
	l.endSet(set)

	do(200, "PUT", "/v1/quotas/r/s", `{"limit":10,"window":"day"}`)
	for i, end := range []string{"commit", "cancel"} {
		r := do(200, "POST", "/v1/quotas/r/s/reserve", fmt.Sprintf(`{"amount":1,"request_id":"r%d","ttl_ms":60000}`, i))
		do(200, "POST", "/v1/quotas/r/s/reservations/"+r.text("reservation_id")+"/"+end, `{}`)
	}
	do(200, "POST", "/v1/quotas/r/s/reserve", `{"amount":1,"request_id":"late","ttl_ms":100}`)

	claim := do(200, "POST", "/v1/idempotency/k/claim", `{"fingerprint":"f","lock_ttl_ms":60000,"ttl_ms":60000}`).text("claim_id")
	do(200, "POST", "/v1/idempotency/k/extend", `{"claim_id":"`+claim+`","lock_ttl_ms":60000}`)
	do(204, "POST", "/v1/idempotency/k/complete", `{"claim_id":"`+claim+`","response":1}`)
	l.faults.set(lost, "PutItem", "audit")
	l.login(l.service) // whose event is there when it is put again
	l.faults.set("", "", "")
	for _, r := range [][3]string{ // of what is not there
		{"POST", "/v1/idempotency/none/extend", `{"claim_id":"c","lock_ttl_ms":1000}`},
		{"POST", "/v1/idempotency/none/complete", `{"claim_id":"c","response":1}`},
		{"POST", "/v1/quotas/none/s/consume", `{"amount":1,"request_id":"r"}`},
		{"POST", "/v1/quotas/none/s/reservations/none/commit", `{}`},
		{"POST", "/v1/leases/none/renew", `{"lease_id":"l","fencing_token":1,"ttl_ms":1000}`},
		{"POST", "/v1/leases/none/force-release", `{"fencing_token":1,"reason":"r"}`},
		{"POST", "/v1/fences/none/reset", `{"fencing_token":1,"reason":"r"}`},
		{"PUT", "/v1/protected/none/k", `{"fencing_token":1,"lease_id":"l","value":1}`},
		{"DELETE", "/v1/api-keys/none", ""},
		{"DELETE", handle, ""},
	} {
		l.send(l.service, r[0], r[1], r[2])
	}
	time.Sleep(2 * time.Second) // the sweeper returns the late reservation, beyond its guard
}

// putData replaces a session's data: the route wants the version that it replaces.
func (l *load) putData(handle string) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodPut, l.url+handle+"/data", strings.NewReader(`{"a":2}`))
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("If-Match", `"1"`)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		l.t.Fatalf("PUT data: %s", resp.Status)
	}
}

// touched uses a session until its use is written down durably: after a fifth of its idle time.
func (l *load) touched() {
	l.t.Helper()
	token := l.call(201, "POST", "/v1/sessions", `{"user_id":"w","idle_ttl_ms":2500}`).text("token")
	for range 4 {
		time.Sleep(300 * time.Millisecond)
		l.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`)
	}
}

func (l *load) endSet(set answer) {
	l.t.Helper()
	raw, err := json.Marshal(set.body["leases"])
	if err != nil {
		l.t.Fatal(err)
	}
	var leases []struct {
		Resource string `json:"resource"`
		LeaseID  string `json:"lease_id"`
		Token    int64  `json:"fencing_token"`
	}
	if err := json.Unmarshal(raw, &leases); err != nil {
		l.t.Fatal(err)
	}
	if raw, err = json.Marshal(leases); err != nil {
		l.t.Fatal(err)
	}
	l.call(200, "POST", "/v1/leases/renew-set", `{"ttl_ms":60000,"leases":`+string(raw)+`}`)
	l.call(204, "POST", "/v1/leases/release-set", `{"leases":`+string(raw)+`}`)
}

// stop ends the service as a node ends, so that what it does last is seen as well.
func (l *load) stop() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		l.t.Fatal(err)
	}
	<-l.ended
}
