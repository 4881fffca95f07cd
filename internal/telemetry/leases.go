package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// leases are the metrics of units that this node has leased. Gauges are asked for at every scrape.
type leases struct {
	units       *prometheus.CounterVec
	held, bound *prometheus.Desc
	ask         atomic.Pointer[leaseQuestions]
}

// leaseQuestions are asked at a scrape: each answers by policy.
type leaseQuestions struct{ held, bound func() map[string]int64 }

func (m *Metrics) addLeases() {
	m.leases.units = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_ratelimit_lease_units_total",
		Help: "Units of batches by policy and result: taken from the store, returned to it, or lapsed because they were not spent in time or got lost. What is neither returned nor lapsed was spent.",
	}, []string{"policy", "result"})
	m.leases.held = prometheus.NewDesc("coordsvc_ratelimit_lease_held_units", "Units that this node has leased and may still spend, by policy.", []string{"policy"}, nil)
	m.leases.bound = prometheus.NewDesc("coordsvc_ratelimit_lease_max_overshoot_units",
		"Units that all nodes together may hold of each limit of a policy with mode leased: by how much more than a limit says may have passed at any time.", []string{"policy"}, nil)
	m.registry.MustRegister(m.leases.units, &m.leases)
}

// LeaseUnits counts what became of units of batches.
func (m *Metrics) LeaseUnits(policy, result string, units int64) {
	m.leases.units.WithLabelValues(policy, result).Add(float64(units))
}

// WatchLeases has what this node holds, and what all may hold, asked at every scrape.
func (m *Metrics) WatchLeases(held, bound func() map[string]int64) {
	m.leases.ask.Store(&leaseQuestions{held, bound})
}

// Describe implements prometheus.Collector.
func (l *leases) Describe(ch chan<- *prometheus.Desc) { ch <- l.held; ch <- l.bound }

// Collect implements prometheus.Collector.
func (l *leases) Collect(ch chan<- prometheus.Metric) {
	q := l.ask.Load()
	if q == nil {
		return
	}
	for desc, values := range map[*prometheus.Desc]map[string]int64{l.held: q.held(), l.bound: q.bound()} {
		for policy, n := range values {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), policy)
		}
	}
}
