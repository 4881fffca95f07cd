package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestObserveCountsByPatternMethodAndCode(t *testing.T) {
	m := New()
	m.Observe("/v1/leases/:resource", "GET", 200, 3*time.Millisecond)
	m.Observe("/v1/leases/:resource", "GET", 200, 30*time.Millisecond)
	m.Observe("unmatched", "BREW", 404, time.Second)
	m.CapacityConsumed("lease", "UpdateItem", 1)
	m.CapacityConsumed("lease", "UpdateItem", 0.5)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`coordsvc_http_requests_total{code="200",method="GET",route="/v1/leases/:resource"} 2`,
		`coordsvc_http_requests_total{code="404",method="other",route="unmatched"} 1`,
		`coordsvc_http_request_duration_seconds_bucket{method="GET",route="/v1/leases/:resource",le="0.005"} 1`,
		`coordsvc_http_request_duration_seconds_sum{method="GET",route="/v1/leases/:resource"} 0.033`,
		`coordsvc_dynamodb_consumed_capacity_units_total{operation="UpdateItem",type="lease"} 1.5`,
		"go_goroutines ",
		"process_open_fds ",
	} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no line %s", line)
		}
	}
}
