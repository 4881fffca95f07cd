package ratelimithttp_test

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// two limits: 3 of 20 are left of one, 900 of 1,000 of the other.
var two = []ratelimit.LimitState{
	{Name: "all", Algorithm: ratelimit.SlidingWindowLog, Limit: 1000, Remaining: 900, Reset: 10 * time.Second, Window: time.Minute},
	{Name: "user", Algorithm: ratelimit.TokenBucket, Limit: 20, Remaining: 3, Reset: 1700 * time.Millisecond, Window: 2 * time.Second},
}

func TestFields(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC) // 1767366245
	for _, c := range []struct {
		why    string
		fields ratelimithttp.Fields
		d      ratelimit.Decision
		want   map[string]string
	}{
		{"allowed", ratelimithttp.Fields{}, ratelimit.Decision{Allowed: true, Limits: two}, map[string]string{
			"Ratelimit": `"all";r=900;t=10, "user";r=3;t=2`, "Ratelimit-Policy": `"all";q=1000;w=60, "user";q=20;w=2`,
		}},
		{"refused: no reset is behind Retry-After", ratelimithttp.Fields{}, ratelimit.Decision{Limiting: "all", RetryAfter: 3001 * time.Millisecond, Limits: two}, map[string]string{
			"Ratelimit": `"all";r=900;t=4, "user";r=3;t=2`, "Ratelimit-Policy": `"all";q=1000;w=60, "user";q=20;w=2`, "Retry-After": "4",
		}},
		{"R50: 200 ms is a second", ratelimithttp.Fields{Older: ratelimithttp.Delta}, ratelimit.Decision{Limiting: "user", RetryAfter: 200 * time.Millisecond, Limits: two[1:]}, map[string]string{
			"Ratelimit": `"user";r=3;t=1`, "Ratelimit-Policy": `"user";q=20;w=2`, "Retry-After": "1",
			"X-Ratelimit-Limit": "20", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "1",
		}},
		{"never 0", ratelimithttp.Fields{}, ratelimit.Decision{}, map[string]string{"Retry-After": "1"}},
		{"the older three are of the limit with the least left", ratelimithttp.Fields{Older: ratelimithttp.Delta}, ratelimit.Decision{Allowed: true, Limits: two}, map[string]string{
			"Ratelimit": `"all";r=900;t=10, "user";r=3;t=2`, "Ratelimit-Policy": `"all";q=1000;w=60, "user";q=20;w=2`,
			"X-Ratelimit-Limit": "20", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "2",
		}},
		{"and of the one that refuses", ratelimithttp.Fields{Older: ratelimithttp.Epoch}, ratelimit.Decision{Limiting: "all", RetryAfter: 2500 * time.Millisecond, Limits: two}, map[string]string{
			"Ratelimit": `"all";r=900;t=3, "user";r=3;t=2`, "Ratelimit-Policy": `"all";q=1000;w=60, "user";q=20;w=2`, "Retry-After": "3",
			"X-Ratelimit-Limit": "1000", "X-Ratelimit-Remaining": "900", "X-Ratelimit-Reset": "1767366248",
		}},
		{"rounded up", ratelimithttp.Fields{Older: ratelimithttp.Epoch}, ratelimit.Decision{Allowed: true, Limits: two[1:]}, map[string]string{
			"Ratelimit": `"user";r=3;t=2`, "Ratelimit-Policy": `"user";q=20;w=2`,
			"X-Ratelimit-Limit": "20", "X-Ratelimit-Remaining": "3", "X-Ratelimit-Reset": "1767366247",
		}},
		{"slots have a unit", ratelimithttp.Fields{Draft: ratelimithttp.Draft10}, ratelimit.Decision{Allowed: true, Limits: []ratelimit.LimitState{
			{Name: "exports", Algorithm: ratelimit.Concurrency, Limit: 3, Remaining: 2, Reset: time.Minute, Window: time.Minute},
		}}, map[string]string{
			"Ratelimit": `"exports";r=2;t=60`, "Ratelimit-Policy": `"exports";q=3;qu="concurrent-requests";w=60`,
		}},
		{"a warning", ratelimithttp.Fields{}, ratelimit.Decision{
			Allowed: true, Limiting: "user", OverBy: 25, EnforceFrom: time.Date(2027, 1, 15, 0, 0, 0, 0, time.UTC), Limits: two[1:],
		}, map[string]string{
			"Ratelimit": `"user";r=3;t=2`, "Ratelimit-Policy": `"user";q=20;w=2`, "Ratelimit-Warning": "25% over; enforcement begins 2027-01-15",
		}},
		{"without a date", ratelimithttp.Fields{}, ratelimit.Decision{Allowed: true, Limiting: "user", OverBy: 3, Limits: two[1:]}, map[string]string{
			"Ratelimit": `"user";r=3;t=2`, "Ratelimit-Policy": `"user";q=20;w=2`, "Ratelimit-Warning": "3% over",
		}},
		{"a posture that asked nobody", ratelimithttp.Fields{Older: ratelimithttp.Delta}, ratelimit.Decision{Allowed: true, Degraded: true}, map[string]string{
			"X-Ratelimit-Degraded": "true",
		}},
		{"a century", ratelimithttp.Fields{Older: ratelimithttp.Epoch}, ratelimit.Decision{Allowed: true, Limits: []ratelimit.LimitState{
			{Name: "l", Algorithm: ratelimit.GCRA, Limit: 100, Reset: 36_600 * 24 * time.Hour, Window: 36_600 * 24 * time.Hour},
		}}, map[string]string{
			"Ratelimit": `"l";r=0;t=3162240000`, "Ratelimit-Policy": `"l";q=100;w=3162240000`,
			"X-Ratelimit-Limit": "100", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "4929606245",
		}},
	} {
		c.fields.Now = func() time.Time { return now }
		h, want := http.Header{}, http.Header{}
		c.fields.Set(h, c.d)
		for name, value := range c.want {
			want.Set(name, value)
		}
		if !reflect.DeepEqual(h, want) {
			t.Errorf("%s: got %v\nwant %v", c.why, h, want)
		}
	}
}

func TestFieldsOfAnUnknownForm(t *testing.T) {
	for _, f := range []ratelimithttp.Fields{{Draft: 9}, {Older: "unix"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is accepted", f)
				}
			}()
			f.Set(http.Header{}, ratelimit.Decision{})
		}()
	}
}
