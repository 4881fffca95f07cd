package httpapi

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

func TestLockRoutes(t *testing.T) {
	s := startService(t)
	const path, ask = "/v1/locks/nightly%2Fjob", `{"owner":"w","ttl_ms":1000}`
	grant := func(validFor string) string {
		return `{"lock_id":"lck_…","valid_for_ms":` + validFor + `,"warning":"advisory only: the lock may be granted twice and has no fencing token; use a lease where that matters"}`
	}
	id := s.post(path+"/acquire", ask).is(t, 200, grant("1000")).field("lock_id")
	s.clock.advance(400 * time.Millisecond)
	if a := s.post(path+"/acquire", ask); a.status != 409 || a.field("code") != "lock_held" || a.field("retry_after_ms") != "600" || a.header.Get("Retry-After") != "1" || a.field("retryable") != "true" {
		t.Errorf("held: %v %s", a.header, a.body)
	}
	s.post(path+"/renew", `{"lock_id":"`+id+`"}`).is(t, 200, grant("1000"))
	s.post(path+"/renew", `{"lock_id":"`+id+`","ttl_ms":5000}`).is(t, 200, grant("5000"))
	s.post(path+"/renew", `{"lock_id":"lck_x"}`).refused(t, 409, "lock_lost")
	s.post(path+"/release", `{"lock_id":"lck_x"}`).refused(t, 409, "lock_lost")
	s.as(s.newKey("other", "locks:use")).post(path+"/acquire", ask).is(t, 200, grant("1000"))
	for range 2 {
		s.post(path+"/release", `{"lock_id":"`+id+`"}`).is(t, 204, ``)
	}
	s.post(path+"/renew", `{"lock_id":"`+id+`"}`).refused(t, 409, "lock_lost")
	next := s.post(path+"/acquire", ask).is(t, 200, grant("1000")).field("lock_id")
	s.clock.advance(time.Second)
	s.post(path+"/renew", `{"lock_id":"`+next+`"}`).refused(t, 409, "lock_lost")
	s.post(path+"/acquire", ask).is(t, 200, grant("1000"))
}

// A lock of one process alone is none for nodes that share tables.
func TestLocksNeedARedisBesideDynamoDB(t *testing.T) {
	s := startService(t, func(d *Deps) { d.Mode, d.Locks = keytype.Mode{DynamoDB: true}, nil })
	s.post("/v1/locks/n/acquire", `{"owner":"w","ttl_ms":1000}`).refused(t, 503, "feature_unavailable")
}
