package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
)

// Bodies as DynamoDB refuses with.
const (
	throttledBody = `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"made by the test"}`
	conflictBody  = `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionConflictException","message":"made by the test"}`
	canceledBody  = `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","message":"made by the test","CancellationReasons":[{"Code":"TransactionConflict"},{"Code":"None"}]}`
)

// L32: a throttled request has had no effect and is to come again; a conflict is tried
// again, a transaction under the same token, and no caller hears of it.
func TestL32ThrottlesAndConflictsAtTheService(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	pk := keytype.Lease.Key("default", "r")
	var mu sync.Mutex                 // guards what follows
	refusals := map[string][]string{} // what to answer the next requests of an operation with
	var tokens []string               // of transactions
	tap := newTap(t, db, "r", func(operation string, body []byte) string {
		mu.Lock()
		defer mu.Unlock()
		if operation == "UpdateItem" && !strings.Contains(string(body), pk) {
			return "" // the service's own
		}
		if operation == "TransactWriteItems" {
			var sent struct{ ClientRequestToken string }
			if err := json.Unmarshal(body, &sent); err != nil {
				t.Error(err)
			}
			tokens = append(tokens, sent.ClientRequestToken)
		}
		next := refusals[operation]
		if len(next) == 0 {
			return ""
		}
		refusals[operation] = next[1:]
		return next[0]
	})
	refuse := func(operation string, bodies ...string) {
		mu.Lock()
		defer mu.Unlock()
		refusals[operation], tokens = bodies, nil
	}
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	s := start(t, append(env, "COORD_DYNAMODB="+tap.URL)...)
	s.key = key

	const acquire, set = "/v1/leases/r/acquire", "/v1/leases/acquire-set"
	refuse("UpdateItem", slices.Repeat([]string{throttledBody}, 100)...)
	a := s.call(503, "POST", acquire, `{"owner":"w","ttl_ms":60000}`)
	if a.text("code") != "store_unavailable" || a.header.Get("Retry-After") == "" || a.body["retryable"] != true {
		t.Errorf("throttled: %v %s", a.header, a.raw)
	}
	refuse("UpdateItem")
	s.call(404, "GET", "/v1/leases/r", "")
	refuse("UpdateItem", throttledBody, conflictBody)
	first := s.call(200, "POST", acquire, `{"owner":"w","ttl_ms":60000}`)
	if first.number("fencing_token") != 1 {
		t.Errorf("after a throttle and a conflict: %s", first.raw)
	}

	refuse("TransactWriteItems", slices.Repeat([]string{canceledBody}, 100)...)
	a = s.call(503, "POST", set, `{"resources":["a","b"],"owner":"w","ttl_ms":60000}`)
	if a.text("code") != "store_unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("in conflict for ever: %v %s", a.header, a.raw)
	}
	refuse("TransactWriteItems", canceledBody)
	a = s.call(200, "POST", set, `{"resources":["a","b"],"owner":"w","ttl_ms":60000}`)
	if strings.Count(a.raw, `"fencing_token":1,`) != 2 {
		t.Errorf("after a conflict: %s", a.raw)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(tokens) != 2 || tokens[0] != tokens[1] || tokens[0] == "" {
		t.Errorf("the transaction was sent under the tokens %q", tokens)
	}
}
