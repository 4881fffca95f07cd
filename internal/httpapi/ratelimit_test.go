package httpapi

import (
	"context"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func TestSlotAndDelayRoutes(t *testing.T) {
	s := startService(t)
	const user = `{"policy":"each","descriptors":{"user":"ann"}`
	first := s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2,"request_id":"q"}`))
	slot := first.field("slot_id")
	if slot == "" || first.field("delay_ms") != "" {
		t.Fatalf("got %s", first.body)
	}
	again := s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2,"request_id":"q"}`))
	if again.field("slot_id") != slot {
		t.Errorf("a retry has another slot: %s", again.body)
	}
	second := s.must(200, s.post("/v1/ratelimit/check", user+`}`))
	if second.field("delay_ms") != "400" || second.field("slot_id") == slot {
		t.Errorf("got %s", second.body)
	}
	s.post("/v1/ratelimit/check", user+`}`).refused(t, 429, "rate_limited")
	release := user + `,"slot_id":"` + slot + `"}`
	for range 2 {
		s.post("/v1/ratelimit/release", release).is(t, 204, ``)
	}
	s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2}`))
	s.post("/v1/ratelimit/release", `{"policy":"default","descriptors":{"tenant":"t","user":"ann"},"slot_id":"`+slot+`"}`).refused(t, 422, "invalid_value")
	s.post("/v1/ratelimit/release", user+`,"slot_id":"a:b"}`).refused(t, 422, "invalid_value")
	s.post("/v1/ratelimit/release", `{"policy":"unheard","descriptors":{},"slot_id":"s"}`).refused(t, 404, "not_found")
}

func TestRefundAndResetRoutes(t *testing.T) {
	s := startService(t)
	const user = `{"policy":"two","descriptors":{"user":"ann","app":"x"}`
	s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2}`))
	for range 2 {
		s.post("/v1/ratelimit/refund", user+`,"cost":1,"request_id":"q"}`).is(t, 200,
			`{"limits":[{"algorithm":"token_bucket","limit":2,"name":"user","remaining":1,"reset_ms":1500,"window_ms":3000},`+
				`{"algorithm":"token_bucket","limit":1000,"name":"all","remaining":999,"reset_ms":60,"window_ms":60000}]}`)
	}
	s.must(200, s.post("/v1/ratelimit/check", user+`}`))
	s.post("/v1/ratelimit/check", user+`}`).refused(t, 429, "rate_limited")
	for _, body := range []string{user + `}`, user + `,"cost":0}`, user + `,"cost":-5}`} {
		s.post("/v1/ratelimit/refund", body).refused(t, 422, "invalid_value")
	}
	s.post("/v1/ratelimit/reset", user+`}`).is(t, 204, ``)
	s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2}`))
	s.as(s.newKey("default", auth.RatelimitCheck)).post("/v1/ratelimit/reset", user+`}`).refused(t, 403, "forbidden_scope")
}

func TestWarningHeader(t *testing.T) {
	s := startService(t)
	check := func(body string) string {
		return s.must(200, s.post("/v1/ratelimit/check", body)).header.Get("RateLimit-Warning")
	}
	if got := check(`{"policy":"warned","descriptors":{"user":"ann"},"cost":7}`); got != "" {
		t.Errorf("within the limit: %q", got)
	}
	if got, want := check(`{"policy":"warned","descriptors":{"user":"ann"},"cost":3}`), "25% over; enforcement begins 2027-01-15"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.clock.advance(time.Minute)
	if got := check(`{"policy":"warned","descriptors":{"user":"ann"},"cost":3}`); got != "" {
		t.Errorf("in the next window: %q", got)
	}
}

func TestPolicyRouteShowsEveryNumber(t *testing.T) {
	s := startService(t)
	version := s.get("/v1/ratelimit/policies").field("version")
	s.get("/v1/ratelimit/policies/each").is(t, 200, `{"policies":[{"limits":[`+
		`{"algorithm":"fixed_window","key":["user"],"name":"fixed","overrides":[{"match":{"user":"big-*"},"rate":{"count":500,"per_ms":60000}}],"rate":{"count":100,"per_ms":60000}},`+
		`{"algorithm":"leaky_bucket","key":["user"],"name":"mail","queue":50,"rate":{"count":5,"per_ms":1000}},`+
		`{"algorithm":"concurrency","key":["user"],"name":"exports","slot_ttl_ms":300000,"slots":3}],`+
		`"name":"each","owner":"search-team","posture":"fail_closed","stage":"enforce"}],"version":"`+version+`"}`)
	s.get("/v1/ratelimit/policies/warned").is(t, 200, `{"policies":[{"enforce_from":"2027-01-15","limits":[`+
		`{"algorithm":"fixed_window","key":["user"],"name":"user","rate":{"count":8,"per_ms":60000}}],`+
		`"name":"warned","posture":"fail_open","stage":"warn"}],"version":"`+version+`"}`)
}

// A failingStore decides nothing.
type failingStore struct{ err error }

func (f failingStore) Take(context.Context, ratelimit.Take) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, f.err
}

func (f failingStore) Give(context.Context, ratelimit.Give) (ratelimit.Outcome, error) {
	return ratelimit.Outcome{}, f.err
}

func (f failingStore) Forget(context.Context, []ratelimit.Bucket) error { return f.err }

func TestR26DegradedAnswers(t *testing.T) {
	down := failingStore{&ratelimit.FaultError{Reason: "readonly", Err: keytype.ErrUnavailable}}
	s := startService(t, func(d *Deps) {
		var err error
		d.Limits, err = ratelimit.New(down, []ratelimit.Policy{ratelimit.DefaultPolicy(), twoLimits, warned}, ratelimit.Options{
			Fallback: ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{})),
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	marked := func(a answer) answer {
		t.Helper()
		if got := a.header.Get("X-RateLimit-Degraded"); got != "true" {
			t.Errorf("X-RateLimit-Degraded: %q of %s", got, a.body)
		}
		return a
	}
	a := marked(s.post("/v1/ratelimit/check", `{"policy":"two","descriptors":{"user":"ann","app":"x"}}`))
	a.refused(t, 503, "store_unavailable")
	if a.field("source") != "fail_closed" || a.field("degraded") != "true" || a.field("degraded_reason") != "readonly" || a.header.Get("Retry-After") != "1" {
		t.Errorf("fail_closed: %s", a.body)
	}
	marked(s.post("/v1/ratelimit/check", `{"policy":"warned","descriptors":{"user":"ann"},"cost":3}`)).is(t, 200,
		`{"allowed":true,"degraded":true,"degraded_reason":"readonly","limits":[],"policy":"warned","retry_after_ms":0,"source":"fail_open","stage":"warn"}`)
	const ask = `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":20}`
	a = marked(s.must(200, s.post("/v1/ratelimit/check", ask)))
	if a.field("source") != "local" || a.header.Get("RateLimit") != `"user";r=0;t=2` {
		t.Errorf("local: %s", a.body)
	}
	a = marked(s.post("/v1/ratelimit/check", ask))
	a.refused(t, 429, "rate_limited")
	if a.field("source") != "local" || a.field("degraded") != "true" {
		t.Errorf("local, refused: %s", a.body)
	}
	s.post("/v1/ratelimit/refund", ask).refused(t, 503, "store_unavailable")
}
