package telemetry

import "github.com/prometheus/client_golang/prometheus"

// addDecisions makes the metrics of what the service decided.
func (m *Metrics) addDecisions() {
	m.problems = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_http_problems_total",
		Help: "Answers that are problems, by route pattern, method and the problem's code: what was refused, and why.",
	}, []string{"route", "method", "code"})
	m.decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_ratelimit_decisions_total",
		Help: "Rate limit checks by policy, its stage, outcome (allowed, refused, would_refuse where the stage lets the request pass) and what decided.",
	}, []string{"policy", "stage", "outcome", "source"})
	m.breakerOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "coordsvc_ratelimit_breaker_open",
		Help: "1 while this node does not ask the store of rate limits because it failed, else 0.",
	})
	m.verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_session_verdicts_total",
		Help: "Answers of verify by outcome (active, or the reason why not), what they were read from, and whether a store that should have been asked did not answer.",
	}, []string{"outcome", "source", "degraded"})
	m.unpropagated = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "coordsvc_session_cache_propagation_failures_total",
		Help: "Durable changes of sessions or users that did not reach the cache: verifies see them within the bound that the answer names.",
	})
	m.unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "coordsvc_audit_unrecorded_events_total",
		Help: "Events that could not be stored and went to the log instead.",
	})
	m.limited = childrenOf(func(l decisionLabels) prometheus.Counter {
		return m.decisions.WithLabelValues(l.policy, l.stage, l.outcome, l.source)
	})
	m.refused = childrenOf(func(l problemLabels) prometheus.Counter {
		return m.problems.WithLabelValues(l.route, l.method, l.code)
	})
	m.registry.MustRegister(m.problems, m.decisions, m.breakerOpen, m.verdicts, m.unpropagated, m.unrecorded)
}

type (
	decisionLabels struct{ policy, stage, outcome, source string }
	problemLabels  struct{ route, method, code string }
)

// Problem counts an answer that is a problem. The route is a pattern, the code one of the contract's.
func (m *Metrics) Problem(route, method, code string) {
	m.refused.of(problemLabels{route, bounded(method), code}).Inc()
}

// LimitDecided counts a rate limit check.
func (m *Metrics) LimitDecided(policy, stage, outcome, source string) {
	m.limited.of(decisionLabels{policy, stage, outcome, source}).Inc()
}

// BreakerOpen says whether the store of rate limits is given up.
func (m *Metrics) BreakerOpen(open bool) { m.breakerOpen.Set(number(open)) }

// Verified counts an answer of verify.
func (m *Metrics) Verified(outcome, source string, degraded bool) {
	m.verdicts.WithLabelValues(outcome, source, truth(degraded)).Inc()
}

// Unpropagated counts a change that did not reach the session cache.
func (m *Metrics) Unpropagated() { m.unpropagated.Inc() }

// Unrecorded counts an event that was not stored.
func (m *Metrics) Unrecorded() { m.unrecorded.Inc() }

// WatchReady has ready asked at every scrape. Call it once.
func (m *Metrics) WatchReady(ready func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "coordsvc_ready",
		Help: "1 while /readyz is 200, else 0.",
	}, func() float64 { return number(ready()) }))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func truth(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
