package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
)

// A tally is a Meter that counts.
type tally struct {
	mu   sync.Mutex
	seen map[string]int // guarded by mu
}

func (m *tally) count(parts ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen[fmt.Sprint(parts...)]++
}

func (m *tally) Problem(route, method, code string) { m.count(method, " ", route, " ", code) }
func (m *tally) Verified(outcome, source string, degraded bool) {
	m.count(outcome, " ", source, " ", degraded)
}
func (m *tally) Unpropagated() { m.count("unpropagated") }
func (m *tally) Unrecorded()   { m.count("unrecorded") }

// What was refused is counted by its code under the route's pattern, and so is what
// verify answers and an event that was not stored.
func TestMeter(t *testing.T) {
	m := &tally{seen: map[string]int{}}
	s := startService(t, func(d *Deps) { d.Meter = m })
	s.must(200, s.post("/v1/leases/secret/acquire", `{"owner":"v","ttl_ms":1000}`))
	s.must(409, s.post("/v1/leases/secret/acquire", `{"owner":"w","ttl_ms":1000}`))
	s.must(409, s.post("/v1/leases/secret/renew", `{"lease_id":"l","fencing_token":1,"ttl_ms":1000}`))
	s.must(404, s.get("/v1/no/such"))
	s.must(401, s.do(request{method: "GET", path: "/v1/api-keys", header: map[string]string{"Authorization": ""}}))
	token := s.must(201, s.post("/v1/sessions", `{"user_id":"u"}`)).field("token")
	s.must(200, s.post("/v1/sessions/verify", `{"token":"`+token+`"}`))
	s.must(200, s.post("/v1/sessions/verify", `{"token":"cst_x"}`))
	if err := s.events.Close(); err != nil {
		t.Fatal(err)
	}
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`))
	s.must(200, s.post("/v1/sessions/verify", `{"token":"`+token+`"}`))
	want := map[string]int{
		"POST /v1/leases/:resource/acquire lease_held": 1,
		"POST /v1/leases/:resource/renew lease_lost":   1,
		"GET unmatched not_found":                      1,
		"GET /v1/api-keys unauthenticated":             1,
		"active store false":                           1,
		"unknown store false":                          1,
		"revoked store false":                          1,
		"unrecorded":                                   1,
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !maps.Equal(m.seen, want) {
		t.Errorf("counted %v", slices.Sorted(maps.Keys(m.seen)))
	}
}
