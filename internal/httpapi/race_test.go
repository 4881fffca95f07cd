package httpapi

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"
)

// 32 clients race for one free lease: in every round one gets it, the others
// are told that it is held, and the tokens rise across release and expiry.
func TestLeaseRaceOf32Clients(t *testing.T) {
	s := startService(t)
	last := int64(0)
	for round := range 25 {
		answers := make([]answer, 32)
		var clients sync.WaitGroup
		start := make(chan struct{})
		for i := range answers {
			clients.Go(func() {
				<-start
				answers[i] = s.post("/v1/leases/raced/acquire", fmt.Sprintf(`{"owner":"client-%d","ttl_ms":60000}`, i))
			})
		}
		close(start)
		clients.Wait()
		var granted []answer
		for _, a := range answers {
			switch {
			case a.status == 200:
				granted = append(granted, a)
			case a.status != 409 || a.field("code") != "lease_held":
				t.Fatalf("round %d: answered %d %s", round, a.status, a.body)
			}
		}
		if len(granted) != 1 {
			t.Fatalf("round %d: %d clients were granted the lease", round, len(granted))
		}
		token, err := strconv.ParseInt(granted[0].field("fencing_token"), 10, 64)
		if err != nil || token <= last {
			t.Fatalf("round %d: token %d after %d", round, token, last)
		}
		last = token
		if round%2 == 0 {
			s.must(204, s.post("/v1/leases/raced/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, granted[0].field("lease_id"), token)))
		} else {
			s.clock.advance(time.Minute + time.Millisecond)
		}
	}
}

// L15: who was paused and lost the lease is refused from the new holder's first write on.
func TestL15StaleTokenIsRefusedAfterTakeover(t *testing.T) {
	s := startService(t)
	first := s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"w1","ttl_ms":1000}`)).field("fencing_token")
	write := func(token, value string) answer {
		return s.put("/v1/protected/job/state", `{"fencing_token":`+token+`,"mode":"high_water","value":"`+value+`"}`)
	}
	admit := func(token string) answer { return s.post("/v1/fences/job/admit", `{"fencing_token":`+token+`}`) }
	s.must(200, write(first, "by w1"))
	s.must(200, admit(first))

	s.clock.advance(1001 * time.Millisecond) // w1 is paused and does not notice
	second := s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"w2","ttl_ms":1000}`)).field("fencing_token")
	s.must(200, write(second, "by w2"))
	s.must(200, admit(second))

	before := s.items()
	for _, a := range []answer{write(first, "late"), admit(first)} {
		a.refused(t, 409, "stale_fencing_token")
		if a.field("high_water") != second {
			t.Errorf("the mark is not told: %s", a.body)
		}
	}
	s.unchanged(before)
	if got := s.must(200, s.get("/v1/protected/job/state")).field("value"); got != "by w2" {
		t.Errorf("the record holds %q", got)
	}
}

// L5: a retry of an acquire whose answer was lost gets the same grant, and no second token.
func TestL5RetriedRequestIDReturnsTheSameGrant(t *testing.T) {
	s := startService(t)
	const acquire = `{"owner":"w1","ttl_ms":60000,"request_id":"q1"}`
	first := s.must(200, s.post("/v1/leases/job/acquire", acquire))
	before := s.items()
	s.post("/v1/leases/job/acquire", acquire).is(t, 200, secretish.ReplaceAllString(first.body[:len(first.body)-1], "${1}_…"))
	s.clock.advance(20 * time.Second)
	again := s.must(200, s.post("/v1/leases/job/acquire", acquire))
	for _, name := range []string{"lease_id", "fencing_token", "acquired_at", "expires_at"} {
		if again.field(name) != first.field(name) {
			t.Errorf("%s was %s and is %s", name, first.field(name), again.field(name))
		}
	}
	if again.field("valid_for_ms") != "40000" {
		t.Errorf("valid_for_ms is %s", again.field("valid_for_ms"))
	}
	s.unchanged(before)
	s.post("/v1/leases/job/acquire", `{"owner":"w1","ttl_ms":60000,"request_id":"q2"}`).refused(t, 409, "lease_held")
	s.post("/v1/leases/job/acquire", `{"owner":"w2","ttl_ms":60000,"request_id":"q1"}`).refused(t, 409, "lease_held")
}
