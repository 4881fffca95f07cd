package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestQuotaRoutes(t *testing.T) {
	s := startService(t)
	const path = "/v1/quotas/mail/ann"
	quota := func(available, reserved, used int) string {
		return fmt.Sprintf(`{"available":%d,"limit":10,"reserved":%d,"resets_at":"2026-01-02T23:00:00.000Z","used":%d,"window":"day","zone":"Europe/Berlin"}`, available, reserved, used)
	}
	s.get(path).refused(t, 404, "not_found")
	s.post(path+"/consume", `{"amount":1,"request_id":"a"}`).refused(t, 404, "not_found")
	s.put(path, `{"limit":10,"window":"day","zone":"Europe/Berlin"}`).is(t, 200, quota(10, 0, 0))
	s.post(path+"/consume", `{"amount":3,"request_id":"a"}`).is(t, 200, quota(7, 0, 3))
	s.post(path+"/consume", `{"amount":3,"request_id":"a"}`).is(t, 200, quota(7, 0, 3))
	s.post(path+"/consume", `{"amount":4,"request_id":"a"}`).refused(t, 422, "idempotency_mismatch")
	s.get(path).is(t, 200, quota(7, 0, 3))

	granted := s.must(200, s.post(path+"/reserve", `{"amount":5,"request_id":"b","ttl_ms":60000}`))
	id := granted.field("reservation_id")
	if !strings.HasPrefix(id, "rsv_") || granted.field("valid_for_ms") != "60000" || granted.field("available") != "2" || granted.field("reserved") != "5" {
		t.Errorf("answered %s", granted.body)
	}
	s.clock.advance(time.Second)
	again := s.must(200, s.post(path+"/reserve", `{"amount":5,"request_id":"b","ttl_ms":60000}`))
	if again.field("reservation_id") != id || again.field("valid_for_ms") != "59000" {
		t.Errorf("answered %s after %s", again.body, granted.body)
	}
	s.post(path+"/reservations/"+id+"/commit", `{"amount":6}`).refused(t, 422, "invalid_value")
	s.post(path+"/reservations/"+id+"/commit", `{"amount":0}`).refused(t, 422, "invalid_value")
	s.post(path+"/reservations/"+id+"/commit", `{"amount":4}`).is(t, 200, quota(3, 0, 7))
	s.post(path+"/reservations/"+id+"/commit", `{"amount":4}`).is(t, 200, quota(3, 0, 7))
	s.post(path+"/reservations/"+id+"/commit", ``).refused(t, 422, "idempotency_mismatch")
	s.post(path+"/reservations/"+id+"/cancel", ``).refused(t, 422, "idempotency_mismatch")
	s.post(path+"/reservations/rsv_x/commit", ``).refused(t, 404, "not_found")

	all := s.must(200, s.post(path+"/reserve", `{"amount":1,"request_id":"c","ttl_ms":60000}`)).field("reservation_id")
	s.post(path+"/reservations/"+all+"/commit", ``).is(t, 200, quota(2, 0, 8))
	none := s.must(200, s.post(path+"/reserve", `{"amount":1,"request_id":"d","ttl_ms":60000}`)).field("reservation_id")
	s.post(path+"/reservations/"+none+"/cancel", ``).is(t, 200, quota(2, 0, 8))
	s.post(path+"/reservations/"+none+"/cancel", `{}`).is(t, 200, quota(2, 0, 8))

	late := s.must(200, s.post(path+"/reserve", `{"amount":1,"request_id":"e","ttl_ms":100}`)).field("reservation_id")
	s.clock.advance(100 * time.Millisecond)
	s.post(path+"/reservations/"+late+"/commit", ``).refused(t, 409, "reservation_expired")
	s.post(path+"/reservations/"+late+"/cancel", ``).refused(t, 409, "reservation_expired")
	s.as(s.newKey("other", "quotas:use", "quotas:admin")).get(path).refused(t, 404, "not_found")
}

func TestQuotaExceeded(t *testing.T) {
	s := startService(t)
	for _, c := range []struct {
		why, set, amount string
		retry, header    string
	}{
		{"the next day has as many", `"window":"day"`, "8", "32155000", "32155"},
		{"no window ever has", `"window":"day"`, "11", "", ""},
		{"there is no next window", `"window":"none"`, "8", "", ""},
		{"the next minute has", `"window":{"ms":60000}`, "8", "55000", "55"},
	} {
		path := "/v1/quotas/n/" + strings.ReplaceAll(c.why, " ", "%20")
		s.must(200, s.put(path, `{"limit":10,`+c.set+`}`))
		s.must(200, s.post(path+"/consume", `{"amount":3,"request_id":"a"}`))
		a := s.post(path+"/consume", `{"amount":`+c.amount+`,"request_id":"b"}`)
		a.refused(t, 429, "quota_exceeded")
		if a.field("available") != "7" || a.field("retry_after_ms") != c.retry || a.header.Get("Retry-After") != c.header || a.field("retryable") != fmt.Sprint(c.amount != "11") {
			t.Errorf("%s: answered %v %s", c.why, a.header, a.body)
		}
		s.must(200, s.put(path, `{"limit":1,`+c.set+`}`))
		if a := s.post(path+"/reserve", `{"amount":1,"request_id":"b","ttl_ms":1000}`); a.field("available") != "-2" || a.status != 429 {
			t.Errorf("%s: answered %s after the limit was lowered", c.why, a.body)
		}
	}
}

func TestQuotaWindows(t *testing.T) {
	s := startService(t)
	for _, c := range []struct {
		window string
		status int
		code   string
	}{
		{`"none"`, 200, ""},
		{`"day"`, 200, ""},
		{`"month"`, 200, ""},
		{`{"ms":100}`, 200, ""},
		{`{"ms":31622400000}`, 200, ""},
		{`{"ms":99}`, 422, "invalid_value"},
		{`{"ms":31622400001}`, 422, "invalid_value"},
		{`{"ms":0}`, 422, "invalid_value"},
		{`{"ms":-1}`, 422, "invalid_value"},
		{`{"ms":9223372036854775807}`, 422, "invalid_value"},
		{`{}`, 422, "invalid_value"},
		{`"week"`, 422, "invalid_value"},
		{`"ms:60000"`, 422, "invalid_value"},
		{`"Day"`, 422, "invalid_value"},
		{`""`, 422, "invalid_value"},
		{`{"ms":1.5}`, 400, "invalid_request"},
		{`{"ms":"1000"}`, 400, "invalid_request"},
		{`{"ms":1000,"s":1}`, 400, "invalid_request"},
		{`{"MS":1000}`, 400, "invalid_request"},
		{`{"ms":null}`, 400, "invalid_request"},
		{`1000`, 400, "invalid_request"},
		{`true`, 400, "invalid_request"},
		{`null`, 400, "invalid_request"},
		{`["day"]`, 400, "invalid_request"},
	} {
		a := s.put("/v1/quotas/n/s", `{"limit":10,"window":`+c.window+`}`)
		if a.status != c.status || a.field("code") != c.code {
			t.Errorf("%s: answered %d %s, want %d %s", c.window, a.status, a.body, c.status, c.code)
		}
		if c.status == 200 && !strings.Contains(a.body, `"window":`+c.window+`,`) {
			t.Errorf("%s came back as %s", c.window, a.body)
		}
	}
	for _, window := range []string{`"none"`, `{"ms":60000}`, `"day"`} { // the zone is what was set, also where it moves nothing
		for _, zone := range []string{"Europe/Berlin", "Asia/Tokyo"} {
			for _, a := range []answer{s.put("/v1/quotas/n/zoned", fmt.Sprintf(`{"limit":10,"window":%s,"zone":%q}`, window, zone)), s.get("/v1/quotas/n/zoned")} {
				if a.status != 200 || a.field("zone") != zone {
					t.Errorf("%s in %s: answered %d %s", window, zone, a.status, a.body)
				}
			}
		}
	}
	for _, zone := range []string{"Local", "Mars/Olympus", "../etc/passwd", "europe", "Europe/Berlin ", ""} {
		s.put("/v1/quotas/n/s", fmt.Sprintf(`{"limit":10,"window":"day","zone":%q}`, zone)).refused(t, 422, "invalid_value")
	}
}
