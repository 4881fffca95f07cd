package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// hottest is asked at every scrape which share of each policy's checks met one key.
type hottest struct {
	share *prometheus.Desc
	ask   atomic.Pointer[func() map[string]float64]
}

func (m *Metrics) addHottest() {
	m.hottest.share = prometheus.NewDesc("coordsvc_ratelimit_hottest_key_share",
		"Of the checks that asked the store in the last 10 s, the share that met the same bucket as most others, by policy: 1 where all did, 0 where there were too few to tell. Counted on a sample.", []string{"policy"}, nil)
	m.registry.MustRegister(&m.hottest)
}

// WatchHottest has the shares, by policy, asked at every scrape.
func (m *Metrics) WatchHottest(shares func() map[string]float64) { m.hottest.ask.Store(&shares) }

// Describe implements prometheus.Collector.
func (h *hottest) Describe(ch chan<- *prometheus.Desc) { ch <- h.share }

// Collect implements prometheus.Collector.
func (h *hottest) Collect(ch chan<- prometheus.Metric) {
	ask := h.ask.Load()
	if ask == nil {
		return
	}
	for policy, share := range (*ask)() {
		ch <- prometheus.MustNewConstMetric(h.share, prometheus.GaugeValue, share, policy)
	}
}
