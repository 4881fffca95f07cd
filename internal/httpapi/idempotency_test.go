package httpapi

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/kv"
)

func TestIdempotencyRoutes(t *testing.T) {
	s := startService(t)
	const path, ask = "/v1/idempotency/order%2F7", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":60000}`
	first := s.post(path+"/claim", ask).is(t, 200, `{"attempt":1,"claim_id":"clm_…","state":"claimed","valid_for_ms":1000}`).field("claim_id")
	s.clock.advance(400 * time.Millisecond)
	if a := s.post(path+"/claim", ask); a.status != 409 || a.field("code") != "idempotency_in_flight" || a.field("retry_after_ms") != "601" || a.header.Get("Retry-After") != "1" || a.field("retryable") != "true" {
		t.Errorf("in flight: %d %v %s", a.status, a.header, a.body)
	}
	s.post(path+"/claim", strings.Replace(ask, `"f"`, `"g"`, 1)).refused(t, 422, "idempotency_mismatch")
	s.post(path+"/extend", `{"claim_id":"`+first+`","lock_ttl_ms":2000}`).is(t, 200, `{"attempt":1,"claim_id":"clm_…","valid_for_ms":2000}`)
	s.clock.advance(2001 * time.Millisecond)
	second := s.post(path+"/claim", ask).is(t, 200, `{"attempt":2,"claim_id":"clm_…","state":"claimed","valid_for_ms":1000}`).field("claim_id")
	for _, lost := range []request{
		{method: "POST", path: path + "/complete", body: `{"claim_id":"` + first + `","response":1}`},
		{method: "POST", path: path + "/extend", body: `{"claim_id":"` + first + `","lock_ttl_ms":1000}`},
		{method: "POST", path: path + "/abandon", body: `{"claim_id":"` + first + `"}`},
		{method: "POST", path: path + "/complete", body: `{"claim_id":"clm_x","response":1}`},
		{method: "POST", path: "/v1/idempotency/other/complete", body: `{"claim_id":"` + second + `","response":1}`},
	} {
		s.do(lost).refused(t, 409, "claim_lost")
	}
	for range 2 {
		s.post(path+"/complete", `{"claim_id":"`+second+`","response": {"a": [1, null]} }`).is(t, 204, ``)
	}
	s.post(path+"/complete", `{"claim_id":"`+second+`","response":2}`).refused(t, 422, "idempotency_mismatch")
	s.post(path+"/claim", ask).is(t, 200, `{"response":{"a":[1,null]},"state":"completed"}`)
	s.post(path+"/abandon", `{"claim_id":"`+second+`"}`).refused(t, 409, "claim_lost")
	s.as(s.newKey("other", "idempotency:use")).post(path+"/claim", ask).is(t, 200, `{"attempt":1,"claim_id":"clm_…","state":"claimed","valid_for_ms":1000}`)
}

func TestIdempotencyRequestIDs(t *testing.T) {
	s := startService(t)
	const path, ask = "/v1/idempotency/k", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":60000,"request_id":"q"}`
	first := s.must(200, s.post(path+"/claim", ask)).field("claim_id")
	s.clock.advance(400 * time.Millisecond)
	if again := s.must(200, s.post(path+"/claim", ask)); again.field("claim_id") != first || again.field("attempt") != "1" || again.field("valid_for_ms") != "600" {
		t.Errorf("repeated: %s", again.body)
	}
	for range 2 {
		s.post(path+"/abandon", `{"claim_id":"`+first+`"}`).is(t, 204, ``)
	}
	if again := s.must(200, s.post(path+"/claim", ask)); again.field("claim_id") == first || again.field("attempt") != "2" {
		t.Errorf("claimed anew: %s", again.body)
	}
}

func TestIdempotencyResponses(t *testing.T) {
	s := startService(t)
	for i, c := range []struct {
		response string
		status   int
		code     string
	}{
		{`null`, 204, ""},
		{`""`, 204, ""},
		{`{"a":"<b>&"}`, 204, ""},
		{`"` + strings.Repeat("x", 32<<10-2) + `"`, 204, ""},
		{`"` + strings.Repeat("x", 32<<10-1) + `"`, 422, "invalid_value"},
		{`{"a":1,"a":1}`, 400, "invalid_request"},
	} {
		path := fmt.Sprint("/v1/idempotency/", i)
		id := s.must(200, s.post(path+"/claim", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":1000}`)).field("claim_id")
		a := s.post(path+"/complete", `{"claim_id":"`+id+`","response":`+c.response+`}`)
		if a.status != c.status || a.field("code") != c.code {
			t.Errorf("%.40s: answered %d %s", c.response, a.status, a.body)
		}
		if c.status == 204 {
			s.post(path+"/claim", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":1000}`).is(t, 200, `{"response":`+c.response+`,"state":"completed"}`)
		}
	}
}

// A skewed node says so, of claims and of requests with an Idempotency-Key.
func TestL23SkewedNodesFollowNoClaim(t *testing.T) {
	var skewed atomic.Bool
	s := startService(t, func(d *Deps) {
		store := idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
		opts := idempotency.Options{Now: d.Now, Skewed: skewed.Load}
		d.Idempotency = idempotency.New(store, opts)
		opts.Space = "receipts"
		d.Receipts = idempotency.New(store, opts)
	})
	const path, ask = "/v1/idempotency/k/claim", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":1000}`
	s.must(200, s.post(path, ask))
	s.must(201, s.under("k", "/v1/sessions", ann))
	s.clock.advance(25 * time.Hour)
	skewed.Store(true)
	before := s.items()
	for _, a := range []answer{s.post(path, ask), s.under("k", "/v1/sessions", ann)} {
		if a.refused(t, 503, "clock_skew"); a.header.Get("Retry-After") != "1" {
			t.Errorf("%v", a.header)
		}
	}
	s.unchanged(before)
}
