package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// addGRPC makes the metrics of the gRPC listener.
func (m *Metrics) addGRPC() {
	m.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_grpc_requests_total",
		Help: "Answers of the gRPC listener by method and code: the status, or of a rate limit request that was decided OK or OVER_LIMIT.",
	}, []string{"method", "code"})
	m.callTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "coordsvc_grpc_request_duration_seconds",
		Help:    "Time from a gRPC request to its answer, by method.",
		Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"method"})
	m.called = childrenOf(func(l callLabels) callMetrics {
		return callMetrics{m.calls.WithLabelValues(l.method, l.code), m.callTime.WithLabelValues(l.method)}
	})
	m.registry.MustRegister(m.calls, m.callTime)
}

type callLabels struct{ method, code string }

type callMetrics struct {
	count prometheus.Counter
	time  prometheus.Observer
}

// ObserveGRPC counts one answer of the gRPC listener. The method is one that is served.
func (m *Metrics) ObserveGRPC(method, code string, took time.Duration) {
	called := m.called.of(callLabels{method, code})
	called.count.Inc()
	called.time.Observe(took.Seconds())
}
