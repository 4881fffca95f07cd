// Package telemetry decides what is counted about the service, under which
// names. Labels are route patterns, methods and codes, never ids.
package telemetry

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics counts the answers of one process.
type Metrics struct {
	registry      *prometheus.Registry
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	bypassed      *prometheus.CounterVec
	leftover      prometheus.Counter
	leases        leases
	hottest       hottest
	reloads       *prometheus.CounterVec
	calls         *prometheus.CounterVec
	callTime      *prometheus.HistogramVec
	policiesRight prometheus.Gauge
	capacity      *prometheus.CounterVec

	problems     *prometheus.CounterVec
	decisions    *prometheus.CounterVec
	breakerOpen  prometheus.Gauge
	verdicts     *prometheus.CounterVec
	unpropagated prometheus.Counter
	unrecorded   prometheus.Counter
	storeTries   *prometheus.CounterVec
	storeTime    *prometheus.HistogramVec

	// The same, for those that are counted with every request.
	answers *children[answerLabels, answerMetrics]
	limited *children[decisionLabels, prometheus.Counter]
	refused *children[problemLabels, prometheus.Counter]
	tried   *children[tryLabels, tryMetrics]
	called  *children[callLabels, callMetrics]
}

type answerLabels struct {
	route, method string
	status        int
}

type answerMetrics struct {
	count prometheus.Counter
	time  prometheus.Observer
}

// New makes the metrics, all at zero, with those of the Go runtime and the process.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coordsvc_http_requests_total",
			Help: "Answers of the API by route pattern, method and status code.",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "coordsvc_http_request_duration_seconds",
			Help:    "Time from a request's headers to its answer, by route pattern and method.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route", "method"}),
	}
	m.bypassed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_ratelimit_bypassed_total",
		Help: "Rate limit decisions that a policy's posture made because the store did not, by reason.",
	}, []string{"reason"})
	m.leftover = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "coordsvc_ratelimit_leftover_charges_total",
		Help: "Charges over several slots that may stay although the request did not pass (the answer was lost, or they could not be given back wholly), or that could not be settled: they lapse with their windows.",
	})
	m.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_policy_reloads_total",
		Help: "Readings of the policy files by result: taken into force, or refused.",
	}, []string{"result"})
	m.policiesRight = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "coordsvc_policy_files_right",
		Help: "1 while the policies in force are those of the files as last read, 0 while the files were refused.",
	})
	m.policiesRight.Set(1)
	m.capacity = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coordsvc_dynamodb_consumed_capacity_units_total",
		Help: "Capacity units that DynamoDB says requests consumed, by operation and the key type that the table is there for. Answers that are errors do not say.",
	}, []string{"type", "operation"})
	m.registry.MustRegister(m.capacity, m.bypassed, m.leftover, m.reloads, m.policiesRight)
	m.addDecisions()
	m.addStores()
	m.addLeases()
	m.addHottest()
	m.addGRPC()
	m.answers = childrenOf(func(l answerLabels) answerMetrics {
		return answerMetrics{m.requests.WithLabelValues(l.route, l.method, strconv.Itoa(l.status)), m.duration.WithLabelValues(l.route, l.method)}
	})
	m.registry.MustRegister(m.requests, m.duration, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Observe counts one answer. The route is a pattern; a method that no route has is counted as "other".
func (m *Metrics) Observe(route, method string, status int, took time.Duration) {
	answers := m.answers.of(answerLabels{route, bounded(method), status})
	answers.count.Inc()
	answers.time.Observe(took.Seconds())
}

// LimitBypassed counts a rate limit decision under a posture.
func (m *Metrics) LimitBypassed(reason string) { m.bypassed.WithLabelValues(reason).Inc() }

// LimitLeftover counts a charge that stays until its window ends.
func (m *Metrics) LimitLeftover() { m.leftover.Inc() }

// PolicyReloaded counts a reading of the policy files, and whether they were taken into force.
func (m *Metrics) PolicyReloaded(taken bool) {
	if taken {
		m.reloads.WithLabelValues("taken").Inc()
		m.policiesRight.Set(1)
		return
	}
	m.reloads.WithLabelValues("refused").Inc()
	m.policiesRight.Set(0)
}

// CapacityConsumed counts what a request to DynamoDB consumed.
func (m *Metrics) CapacityConsumed(keyType, operation string, units float64) {
	m.capacity.WithLabelValues(keyType, operation).Add(units)
}

// Handler serves the metrics in the formats that Prometheus scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// bounded keeps the callers from making labels.
func bounded(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}
