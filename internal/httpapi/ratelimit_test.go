package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
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

func TestRequestIDsOfChecks(t *testing.T) {
	s := startService(t)
	check := func(policy, user string, cost int) answer {
		return s.post("/v1/ratelimit/check", fmt.Sprintf(`{"policy":%q,"descriptors":{"tenant":"shop","user":%q,"app":"x"},"cost":%d,"request_id":"q"}`, policy, user, cost))
	}
	first := s.must(200, check("two", "ann", 2))
	for range 2 {
		check("two", "ann", 2).is(t, 200, strings.TrimSpace(first.body))
	}
	for why, a := range map[string]answer{"cost": check("two", "ann", 1), "policy": check("default", "ann", 2), "descriptors": check("two", "bob", 2)} {
		a.refused(t, 422, "idempotency_mismatch")
		if a.field("field") != "request_id" {
			t.Errorf("another %s: %s", why, a.body)
		}
	}
	other := s.as(s.newKey("other", auth.RatelimitCheck))
	s.must(200, other.post("/v1/ratelimit/check", `{"policy":"two","descriptors":{"user":"eve","app":"x"},"request_id":"q"}`))
	refund := func(cost int) answer {
		return s.post("/v1/ratelimit/refund", fmt.Sprintf(`{"policy":"two","descriptors":{"tenant":"shop","user":"ann","app":"x"},"cost":%d,"request_id":"q"}`, cost))
	}
	s.must(200, refund(1)) // an id of its own
	refund(2).refused(t, 422, "idempotency_mismatch")
}

// A refund above the capacity makes a limit full, and not fuller: the limit may have been
// lowered since the charge.
func TestRefundAboveTheCapacity(t *testing.T) {
	s := startService(t)
	const user = `{"policy":"two","descriptors":{"user":"ann","app":"x"}`
	s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2}`))
	for range 2 {
		s.post("/v1/ratelimit/refund", user+`,"cost":1000000000}`).is(t, 200,
			`{"limits":[{"algorithm":"token_bucket","limit":2,"name":"user","remaining":2,"reset_ms":0,"window_ms":3000},`+
				`{"algorithm":"token_bucket","limit":1000,"name":"all","remaining":1000,"reset_ms":0,"window_ms":60000}]}`)
	}
	s.must(200, s.post("/v1/ratelimit/check", user+`,"cost":2}`))
	s.post("/v1/ratelimit/check", user+`}`).refused(t, 429, "rate_limited")
	s.post("/v1/ratelimit/refund", user+`,"cost":1000000001}`).refused(t, 422, "invalid_value")
}

// The service writes the fields that package ratelimithttp writes for its middleware.
func TestOlderFields(t *testing.T) {
	for older, resets := range map[ratelimithttp.Older][]string{"": nil, ratelimithttp.Delta: {"2", "1", "2"}, ratelimithttp.Epoch: {"1767366247", "1767366246", "1767366247"}} {
		s := startService(t, func(d *Deps) { d.RateLimitFields = ratelimithttp.Fields{Older: older, Now: d.Now} })
		if s.clock.now().Unix() != 1_767_366_245 {
			t.Fatalf("the clock begins at %v", s.clock.now())
		}
		const ask = `{"policy":"default","descriptors":{"tenant":"shop","user":"ann"},"cost":`
		for i, a := range []answer{s.must(200, s.post("/v1/ratelimit/check", ask+`16}`)), s.post("/v1/ratelimit/check", ask+`5}`), s.post("/v1/ratelimit/peek", ask+`5}`)} {
			var want [3]string
			if resets != nil {
				want = [3]string{"20", "4", resets[i]}
			}
			if got := [3]string{a.header.Get("X-RateLimit-Limit"), a.header.Get("X-RateLimit-Remaining"), a.header.Get("X-RateLimit-Reset")}; got != want {
				t.Errorf("%q, call %d: %d with %q, want %q", older, i+1, a.status, got, want)
			}
		}
	}
}

// A batch is taken as far as the limit and those who hold others allow.
func TestTokenLeaseRoutes(t *testing.T) {
	s := startService(t)
	lease := func(rest string) answer {
		t.Helper()
		return s.must(200, s.post("/v1/ratelimit/token-leases", `{"policy":"leased","descriptors":{"user":"ann"},"want":`+rest+`}`))
	}
	give := func(rest string) {
		t.Helper()
		s.must(204, s.post("/v1/ratelimit/token-leases/return", `{"policy":"leased","descriptors":{"user":"ann"},"unspent":`+rest+`}`))
	}
	granted := func(n, valid, retry string) string {
		return `{"granted":` + n + `,"max_overshoot":40,"retry_after_ms":` + retry + `,"valid_for_ms":` + valid + `}`
	}
	lease(`10,"holder":"a"`).is(t, 200, granted("10", "1000", "0"))
	lease(`30,"holder":"b"`).is(t, 200, granted("25", "1000", "0")) // a quarter of the limit at most
	lease(`10,"holder":"b","held":20`).is(t, 200, granted("10", "1000", "0"))
	lease(`10,"holder":"c"`).is(t, 200, granted("0", "0", "0"))   // the others hold all 40
	lease(`3,"holder":"a"`).is(t, 200, granted("3", "1000", "0")) // in place of its 10
	give(`2,"holder":"a"`)
	lease(`10`).is(t, 200, granted("10", "1000", "0")) // which b leaves
	s.clock.advance(1250 * time.Millisecond)           // then no batch counts as held any more
	lease(`10,"holder":"d"`).is(t, 200, granted("10", "1000", "0"))
	for range 2 {
		s.clock.advance(1250 * time.Millisecond)
		lease(`25`)
	}
	lease(`1,"holder":"other","held":1`).is(t, 200, granted("0", "0", "250"))
	policies := s.get("/v1/ratelimit/policies/leased").body
	if !strings.Contains(policies, `"max_overshoot":40,"mode":"leased"`) {
		t.Errorf("listed %s", policies)
	}
	for path, body := range map[string]string{"": `,"want":1}`, "/return": `,"unspent":1}`} {
		s.post("/v1/ratelimit/token-leases"+path, `{"policy":"default","descriptors":{"tenant":"t","user":"u"}`+body).refused(t, 422, "invalid_value")
		s.post("/v1/ratelimit/token-leases"+path, `{"policy":"leased","descriptors":{}`+body).refused(t, 422, "invalid_value")
		s.post("/v1/ratelimit/token-leases"+path, `{"policy":"none","descriptors":{}`+body).refused(t, 404, "not_found")
		s.as(s.newKey("default", auth.LeasesUse)).post("/v1/ratelimit/token-leases"+path, `{}`).refused(t, 403, "forbidden_scope")
	}
}

func TestPolicyRouteShowsEveryNumber(t *testing.T) {
	s := startService(t)
	version := s.get("/v1/ratelimit/policies").field("version")
	s.get("/v1/ratelimit/policies/each").is(t, 200, `{"policies":[{"limits":[`+
		`{"algorithm":"fixed_window","key":["user"],"name":"fixed","overrides":[{"match":{"user":"big-*"},"rate":{"count":500,"per_ms":60000}}],"rate":{"count":100,"per_ms":60000}},`+
		`{"algorithm":"leaky_bucket","key":["user"],"name":"mail","queue":50,"rate":{"count":5,"per_ms":1000}},`+
		`{"algorithm":"concurrency","key":["user"],"name":"exports","slot_ttl_ms":300000,"slots":3}],`+
		`"mode":"exact","name":"each","owner":"search-team","posture":"fail_closed","stage":"enforce"}],"version":"`+version+`"}`)
	s.get("/v1/ratelimit/policies/warned").is(t, 200, `{"policies":[{"enforce_from":"2027-01-15","limits":[`+
		`{"algorithm":"fixed_window","key":["user"],"name":"user","rate":{"count":8,"per_ms":60000}}],`+
		`"mode":"exact","name":"warned","posture":"fail_open","stage":"warn"}],"version":"`+version+`"}`)
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
	marked(s.post("/v1/ratelimit/peek", `{"policy":"two","descriptors":{"user":"ann","app":"x"}}`)).is(t, 200,
		`{"allowed":false,"degraded":true,"degraded_reason":"readonly","limits":[],"policy":"two","retry_after_ms":0,"source":"fail_closed","stage":"enforce"}`)
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
