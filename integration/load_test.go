package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	rlscommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// loadPolicies are one that refuses, one that would, and one of each posture.
const loadPolicies = `version: 1
policies:
  - {name: tight, on_store_failure: local, limits: [{name: l, key: [app], algorithm: token_bucket, rate: 1/h, burst: 3}]}
  - {name: shadow, on_store_failure: fail_open, stage: shadow, limits: [{name: l, key: [app], algorithm: token_bucket, rate: 1/h, burst: 1}]}
  - {name: closed, on_store_failure: fail_closed, limits: [{name: l, key: [app], algorithm: concurrency, slots: 100, slot_ttl: 1s}]}
`

// A load uses a production node, whose stores fail at times, and an embedded one.
type load struct {
	*service
	embedded *service
	redis    *engine.RedisServer
	faults   *dynamoFaults
	proxy    rlspb.RateLimitServiceClient // of the production node
	rounds   int
}

func startLoad(t *testing.T) *load {
	t.Helper()
	db := engine.DynamoDB(t)
	l := &load{redis: engine.StartRedis(t), faults: newDynamoFaults(t, db.Watched())}
	l.faults.prefix = db.Prefix(t)
	env, key := production(t, db.Env(), l.faults.prefix)
	grpcAddr := fmt.Sprint("127.0.0.1:", engine.FreePort(t))
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l.proxy = rlspb.NewRateLimitServiceClient(conn)
	env = append(env, "COORD_DYNAMODB="+l.faults.url, "COORD_REDIS_URL="+l.redis.URL(), "COORD_LEASE_GUARD_MS=500", "COORD_GRPC_ADDR="+grpcAddr, "COORD_POLICY_PATH="+writeFile(t, loadPolicies))
	createTables(t, append(env, db.Env()...))
	l.service, l.embedded = start(t, append(env, startCollector(t).settings()...)...), start(t)
	l.key = key
	return l
}

// round does a little of everything, with each fault once.
func (l *load) round() {
	l.rounds++
	for i := range 5 {
		l.once(l.service, i)
		l.once(l.embedded, i)
	}
	l.faults.set("ProvisionedThroughputExceededException", "UpdateItem", "leases")
	l.lease(l.service, "throttled")
	l.faults.set("TransactionConflictException", "TransactWriteItems", "quota")
	l.quota(l.service, "conflicting")
	l.faults.set("AccessDeniedException", "PutItem", "audit")
	l.login(l.service)
	l.faults.set("", "", "")
	l.hung()
	l.skewed()
	l.faults.refuseAll("AccessDeniedException")
	l.send(l.service, "GET", "/v1/leases/r", "")
	l.faults.refuseAll("")
}

// send takes any answer: what counts is what is counted.
func (l *load) send(s *service, method, path, body string) answer {
	l.t.Helper()
	a, err := s.try(method, path, s.key, body)
	if err != nil {
		l.t.Errorf("%s %s: %v", method, path, err)
	}
	return a
}

func (l *load) once(s *service, i int) {
	token := l.login(s)
	for range 2 {
		l.send(s, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`)
	}
	l.send(s, "POST", "/v1/sessions/verify", `{"token":"cst_none"}`)
	l.send(s, "POST", "/v1/sessions/revoke", `{"token":"`+token+`"}`)
	l.lease(s, fmt.Sprint("r", i))
	l.quota(s, fmt.Sprint("q", i))
	l.check(s)
	if _, err := l.proxy.ShouldRateLimit(metadata.AppendToOutgoingContext(l.t.Context(), "authorization", "Bearer "+l.key), &rlspb.RateLimitRequest{
		Domain: "tight", Descriptors: []*rlscommon.RateLimitDescriptor{{Entries: []*rlscommon.RateLimitDescriptor_Entry{{Key: "app", Value: "a"}}}},
	}); err != nil {
		l.t.Error(err)
	}
	if _, err := s.try("GET", "/v1/leases/r", "csk_wrong", ""); err != nil {
		l.t.Error(err)
	}
}

func (l *load) login(s *service) string {
	return l.send(s, "POST", "/v1/sessions", `{"user_id":"u"}`).text("token")
}

func (l *load) check(s *service) {
	for _, policy := range []string{"tight", "shadow", "closed", "default"} {
		l.send(s, "POST", "/v1/ratelimit/check", `{"policy":"`+policy+`","descriptors":{"app":"a","tenant":"t","user":"u"}}`)
	}
}

// lease is contended, lost and written to by a stale holder.
func (l *load) lease(s *service, resource string) {
	path := "/v1/leases/" + resource
	a := l.send(s, "POST", path+"/acquire", `{"owner":"a","ttl_ms":60000}`)
	l.send(s, "POST", path+"/acquire", `{"owner":"b","ttl_ms":60000}`)
	l.send(s, "POST", path+"/renew", `{"lease_id":"other","fencing_token":1,"ttl_ms":60000}`)
	token := a.number("fencing_token")
	for _, n := range []int64{token, token - 1} {
		l.send(s, "POST", "/v1/fences/"+resource+"/admit", fmt.Sprintf(`{"fencing_token":%d}`, n))
	}
	l.send(s, "POST", path+"/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, a.text("lease_id"), token))
	for range 2 {
		l.send(s, "POST", "/v1/locks/"+resource+"/acquire", `{"owner":"a","ttl_ms":60000}`)
	}
}

// quota is one of this round's, and is used up.
func (l *load) quota(s *service, name string) {
	path := fmt.Sprintf("/v1/quotas/%s/%d", name, l.rounds)
	l.send(s, "PUT", path, `{"limit":1,"window":"none"}`)
	for _, id := range []string{"a", "b"} {
		l.send(s, "POST", path+"/consume", `{"amount":1,"request_id":"`+id+`"}`)
	}
}

// hung is while Redis does not answer: postures decide, and changes do not reach the cache.
func (l *load) hung() {
	token := l.login(l.service)
	l.redis.Pause(l.t)
	for range 4 {
		l.check(l.service)
	}
	l.send(l.service, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`)
	l.send(l.service, "POST", "/v1/sessions/revoke", `{"token":"`+token+`"}`)
	l.redis.Resume(l.t)
}

// skewed is while the node's clock cannot be trusted: no expired lease is taken over.
func (l *load) skewed() {
	path := fmt.Sprintf("/v1/leases/expires%d/acquire", l.rounds)
	l.send(l.service, "POST", path, `{"owner":"a","ttl_ms":100}`)
	time.Sleep(800 * time.Millisecond) // beyond the lease and the guard
	l.faults.shiftClock(-time.Hour)
	l.send(l.service, "GET", "/v1/leases/none", "")
	l.send(l.service, "POST", path, `{"owner":"b","ttl_ms":100}`)
	l.faults.shiftClock(0)
}

// lost is the code of an answer that does not arrive.
const lost = "lost"

// dynamoFaults is a proxy that answers as DynamoDB does when it fails.
type dynamoFaults struct {
	url    string
	prefix string // of the tables

	mu        sync.Mutex // guards the rest
	code      string     // of the error; every second matching request gets it
	operation string     // "" = any
	table     string     // a part of its name
	all       string     // the code that every request is refused with
	requests  int
	clock     time.Duration
	seen      map[access]bool // what was asked for
}

func newDynamoFaults(t *testing.T, endpoint string) *dynamoFaults {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	f := &dynamoFaults{seen: map[access]bool{}}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.Header.Set("Date", time.Now().Add(f.clock).UTC().Format(http.TimeFormat))
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.note(t, r, body)
		code := f.fault(r.Header.Get("X-Amz-Target"), string(body))
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch code {
		case "":
			proxy.ServeHTTP(w, r)
		case lost:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"made by the test"}`, code)
		}
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// fault is the code that a request is refused with, "" where it is not.
func (f *dynamoFaults) fault(target, body string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all != "" {
		return f.all
	}
	if f.code == "" || f.operation != "" && !strings.HasSuffix(target, "."+f.operation) || !strings.Contains(body, f.table) {
		return ""
	}
	f.requests++
	if f.requests%2 == 0 && f.code != "AccessDeniedException" {
		return ""
	}
	return f.code
}

func (f *dynamoFaults) set(code, operation, table string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.code, f.operation, f.table = code, operation, table
}

func (f *dynamoFaults) refuseAll(code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = code
}

func (f *dynamoFaults) shiftClock(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = d
}
