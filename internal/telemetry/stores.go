package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// addStores makes the metrics of what the stores were asked.
func (m *Metrics) addStores() {
	m.storeTries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_store_tries_total",
		Help: "Requests to a store (dynamodb, redis, file), by the key type of the first item or key, operation and outcome (ok, refused by a condition, conflict, throttled, timeout, failed). One that is sent again counts again.",
	}, []string{"store", "type", "operation", "outcome"})
	m.storeTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "coordsvc_store_try_duration_seconds",
		Help:    "Time of a request to a store, by the key type of the first item or key.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
	}, []string{"store", "type"})
	m.tried = childrenOf(func(l tryLabels) tryMetrics {
		return tryMetrics{m.storeTries.WithLabelValues(l.store, l.keyType, l.operation, l.outcome), m.storeTime.WithLabelValues(l.store, l.keyType)}
	})
	m.registry.MustRegister(m.storeTries, m.storeTime)
}

type tryLabels struct{ store, keyType, operation, outcome string }

type tryMetrics struct {
	count prometheus.Counter
	time  prometheus.Observer
}

// StoreTried counts a request to a store. keyType is a registered type's name, or
// "none" for a request that names no key.
func (m *Metrics) StoreTried(store, keyType, operation, outcome string, took time.Duration) {
	tried := m.tried.of(tryLabels{store, keyType, operation, outcome})
	tried.count.Inc()
	tried.time.Observe(took.Seconds())
}
