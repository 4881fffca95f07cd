package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// What a node holds, and what all may hold, is asked for at each scrape.
func TestLeases(t *testing.T) {
	m := New()
	scrape := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return w.Body.String()
	}
	if page := scrape(); strings.Contains(page, "coordsvc_ratelimit_lease_") {
		t.Error("there are leases before anything is leased")
	}
	held := int64(7)
	m.WatchLeases(func() map[string]int64 { return map[string]int64{"p": held} }, func() map[string]int64 { return map[string]int64{"p": 500} })
	m.LeaseUnits("p", "taken", 20)
	m.LeaseUnits("p", "returned", 3)
	for _, line := range []string{
		`coordsvc_ratelimit_lease_held_units{policy="p"} 7`,
		`coordsvc_ratelimit_lease_max_overshoot_units{policy="p"} 500`,
		`coordsvc_ratelimit_lease_units_total{policy="p",result="taken"} 20`,
		`coordsvc_ratelimit_lease_units_total{policy="p",result="returned"} 3`,
	} {
		if page := scrape(); !strings.Contains(page, line) {
			t.Errorf("%s is missing in\n%s", line, page)
		}
	}
	held = 8
	if page := scrape(); !strings.Contains(page, `coordsvc_ratelimit_lease_held_units{policy="p"} 8`) {
		t.Errorf("what is held was not asked for again:\n%s", page)
	}
}
