package integration

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlscommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// A collector takes spans by OTLP over HTTP.
type collector struct {
	t     *testing.T
	url   string
	mu    sync.Mutex
	spans []*tracepb.Span // guarded by mu
	text  strings.Builder // guarded by mu: all that came, readable
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{t: t}
	server := httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var export collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &export)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("%s: %v", r.URL.Path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Write(raw) // strings are as they are in protobuf
	for _, of := range export.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// settings have the service send its spans here, soon.
func (c *collector) settings() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=50"}
}

// A traced request's spans.
type traced struct {
	t     *testing.T
	spans []*tracepb.Span
}

// of waits for the spans of a trace until its root, the child of the caller's span, is there.
func (c *collector) of(traceparent string) traced {
	c.t.Helper()
	parts := strings.Split(traceparent, "-")
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c.mu.Lock()
		all := slices.DeleteFunc(slices.Clone(c.spans), func(s *tracepb.Span) bool { return hex.EncodeToString(s.GetTraceId()) != parts[1] })
		c.mu.Unlock()
		if slices.ContainsFunc(all, func(s *tracepb.Span) bool { return hex.EncodeToString(s.GetParentSpanId()) == parts[2] }) {
			return traced{c.t, all}
		}
	}
	c.t.Fatalf("no span is a child of %s", traceparent)
	return traced{}
}

// child demands a span of that name beneath another one, nil for the caller's.
func (r traced) child(parent *tracepb.Span, name string, attributes ...string) *tracepb.Span {
	r.t.Helper()
	for _, s := range r.spans {
		if s.GetName() == name && (parent == nil || string(s.GetParentSpanId()) == string(parent.GetSpanId())) && has(s, attributes) {
			return s
		}
	}
	r.t.Errorf("no span %q %v beneath %q among\n%s", name, attributes, parent.GetName(), r)
	return nil
}

// has reports whether the span has the attributes, each name=value.
func has(s *tracepb.Span, attributes []string) bool {
	var all []string
	for _, a := range s.GetAttributes() {
		value := a.GetValue().GetStringValue()
		if n := a.GetValue().GetIntValue(); n != 0 {
			value = fmt.Sprint(n)
		}
		all = append(all, a.GetKey()+"="+value)
	}
	return !slices.ContainsFunc(attributes, func(a string) bool { return !slices.Contains(all, a) })
}

func (r traced) String() string {
	var b strings.Builder
	for _, s := range r.spans {
		fmt.Fprintf(&b, "%x < %x %s %s %v %v\n", s.GetSpanId(), s.GetParentSpanId(), s.GetName(), s.GetKind(), s.GetStatus(), s.GetAttributes())
	}
	return b.String()
}

// traceparent n is sampled.
func traceparent(n int) string { return fmt.Sprintf("00-%032x-%016x-01", 0xabc000+n, 0xdef000+n) }

// traced sends a request as part of a caller's trace.
func (s *service) traced(want int, traceparent, path, body string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + s.key, "Content-Type": "application/json",
		"traceparent": traceparent, "tracestate": "vendor=state1", "baggage": "k=baggage-secret", "X-Request-Id": "request-id-secret",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, raw: string(raw)}
	if err != nil || a.status != want || json.Unmarshal(raw, &a.body) != nil {
		s.t.Fatalf("POST %s: got %d, want %d: %v %s", path, a.status, want, err, raw)
	}
	return a
}

// A listened proxy before DynamoDB keeps the headers of requests.
type listened struct {
	url     string
	mu      sync.Mutex
	headers []http.Header // guarded by mu
	down    bool          // guarded by mu: answers that it is out of order
}

func listenTo(t *testing.T, endpoint string) *listened {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	l, forward := &listened{}, httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.headers = append(l.headers, r.Header.Clone())
		down := l.down
		l.mu.Unlock()
		if down {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

func (l *listened) setDown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
}

// S38: a request's spans are one tree, from the caller's span to each call of a store, and
// hold nothing that a caller sent.
func TestS38TracesReachACollector(t *testing.T) {
	t.Parallel()
	db, c := engine.DynamoDB(t), startCollector(t)
	tables := listenTo(t, db.Watched())
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	grpcAddr := fmt.Sprint("127.0.0.1:", engine.FreePort(t))
	s := start(t, slices.Concat(env, c.settings(), []string{
		"COORD_DYNAMODB=" + tables.url, "COORD_REDIS_URL=" + engine.StartRedis(t).URL(), "COORD_REDIS_BUDGET_MS=1000", "COORD_GRPC_ADDR=" + grpcAddr,
		"OTEL_SERVICE_NAME=the-service", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=the-place",
	})...)
	s.key = key

	s.traced(200, traceparent(1), "/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"tenant-secret","user":"user-secret"}}`)
	got := c.of(traceparent(1))
	request := got.child(nil, "POST /v1/ratelimit/check", "http.route=/v1/ratelimit/check", "http.response.status_code=200")
	got.child(request, "auth authenticate")
	got.child(got.child(request, "ratelimit check"), "redis evalsha", "coordsvc.key_type=rate_bucket", "coordsvc.outcome=ok", "db.system.name=redis")
	if request.GetKind() != tracepb.Span_SPAN_KIND_SERVER || request.GetTraceState() != "vendor=state1" {
		t.Errorf("%v", request)
	}

	token := s.traced(201, traceparent(2), "/v1/sessions", `{"user_id":"user-secret","device_id":"device-secret"}`).text("token")
	got = c.of(traceparent(2))
	request = got.child(nil, "POST /v1/sessions")
	got.child(got.child(request, "sessions post"), "dynamodb TransactWriteItems", "coordsvc.key_type=user_epoch")
	got.child(got.child(request, "sessions post"), "audit record") // within: the handler records whom it concerns
	s.traced(200, traceparent(3), "/v1/sessions/verify", `{"token":"`+token+`"}`)
	got = c.of(traceparent(3))
	verify := got.child(got.child(nil, "POST /v1/sessions/verify"), "sessions verify")
	got.child(verify, "redis evalsha", "coordsvc.outcome=ok") // a miss
	got.child(verify, "dynamodb GetItem", "coordsvc.key_type=user_epoch", "db.system.name=aws.dynamodb")

	s.traced(200, traceparent(4), "/v1/leases/resource-secret/acquire", `{"owner":"owner-secret","ttl_ms":60000,"wait_ms":1000}`)
	got = c.of(traceparent(4))
	acquire := got.child(got.child(nil, "POST /v1/leases/:resource/acquire"), "leases acquire")
	update := got.child(acquire, "dynamodb UpdateItem", "coordsvc.key_type=lease", "coordsvc.outcome=ok")
	sent := func(header http.Header) bool {
		return header.Get("Traceparent") == fmt.Sprintf("00-%032x-%x-01", 0xabc004, update.GetSpanId()) && header.Get("Tracestate") == "vendor=state1"
	}
	tables.mu.Lock()
	if !slices.ContainsFunc(tables.headers, sent) || slices.ContainsFunc(tables.headers, func(h http.Header) bool { return h.Get("Baggage") != "" }) {
		t.Errorf("sent to DynamoDB: %v", tables.headers)
	}
	tables.mu.Unlock()

	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key, "traceparent", traceparent(5))
	_, err = rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlspb.RateLimitRequest{Domain: "default", Descriptors: []*rlscommon.RateLimitDescriptor{
		{Entries: []*rlscommon.RateLimitDescriptor_Entry{{Key: "tenant", Value: "tenant-secret"}, {Key: "user", Value: "user-secret"}}},
	}})
	must(t, err)
	got = c.of(traceparent(5))
	call := got.child(nil, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "coordsvc.code=OK")
	got.child(got.child(call, "ratelimit check"), "redis evalsha", "coordsvc.key_type=rate_bucket")

	// A caller that does not sample is not sampled; this request is through before the next.
	unsampled := strings.TrimSuffix(traceparent(6), "01") + "00"
	s.traced(409, unsampled, "/v1/leases/resource-secret/acquire", `{"owner":"another-secret","ttl_ms":60000}`)
	s.traced(409, traceparent(7), "/v1/leases/resource-secret/acquire", `{"owner":"another-secret","ttl_ms":60000}`)
	got = c.of(traceparent(7))
	refused := got.child(nil, "POST /v1/leases/:resource/acquire", "coordsvc.code=lease_held", "http.response.status_code=409")
	got.child(got.child(refused, "leases acquire", "coordsvc.code=lease_held"), "dynamodb UpdateItem", "coordsvc.outcome=refused")

	tables.setDown()
	s.traced(503, traceparent(8), "/v1/leases/resource-secret/acquire", `{"owner":"owner-secret","ttl_ms":60000}`)
	got = c.of(traceparent(8))
	failed := got.child(nil, "POST /v1/leases/:resource/acquire", "http.response.status_code=503")
	got.child(got.child(failed, "leases acquire"), "dynamodb UpdateItem", "error.type=failed")
	for _, span := range []*tracepb.Span{request, refused} {
		if span.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET {
			t.Errorf("%s: %v", span.GetName(), span.GetStatus())
		}
	}
	if failed.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || failed.GetStatus().GetMessage() != "" {
		t.Errorf("%s: %v", failed.GetName(), failed.GetStatus())
	}

	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	<-s.ended
	line := lineOf(t, s.stderr.String(), "store failed")
	if line["request_id"] != "request-id-secret" || line["trace_id"] != strings.Split(traceparent(8), "-")[1] || line["span_id"] != hex.EncodeToString(failed.GetSpanId()) {
		t.Errorf("logged: %v; the span is %x", line, failed.GetSpanId())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range []string{"the-service", "the-place", "service.version"} {
		if !strings.Contains(c.text.String(), text) {
			t.Errorf("the collector got no %q", text)
		}
	}
	for _, text := range []string{"secret", "csk_", key, token, "ses_", "lse_"} {
		if strings.Contains(c.text.String(), text) {
			t.Errorf("the collector got %q", text)
		}
	}
	for _, span := range c.spans {
		if hex.EncodeToString(span.GetTraceId()) == strings.Split(unsampled, "-")[1] {
			t.Errorf("not sampled by the caller: %v", span)
		}
	}
}

// lineOf is the last line of the log with the message.
func lineOf(t *testing.T, log, message string) (line map[string]any) {
	t.Helper()
	for raw := range strings.Lines(log) {
		var l map[string]any
		if json.Unmarshal([]byte(raw), &l) == nil && l["msg"] == message {
			line = l
		}
	}
	if line == nil {
		t.Errorf("no line %q in\n%s", message, log)
	}
	return line
}

// The log names the caller's trace also where nothing is traced here.
func TestLogNamesTheCallersTrace(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	tables := listenTo(t, db.Watched())
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	s := start(t, append(env, "COORD_DYNAMODB="+tables.url)...)
	s.key = key
	s.call(404, "GET", "/v1/leases/r", "") // the key is known from now on
	tables.setDown()
	s.traced(503, traceparent(1), "/v1/leases/r/acquire", `{"owner":"o","ttl_ms":60000}`)
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	<-s.ended
	line := lineOf(t, s.stderr.String(), "store failed")
	if _, given := line["span_id"]; given || line["request_id"] != "request-id-secret" || line["trace_id"] != strings.Split(traceparent(1), "-")[1] {
		t.Errorf("logged: %v", line)
	}
	if a, err := http.Get(s.ops + "/metrics"); err == nil {
		a.Body.Close()
		t.Error("it has not ended")
	}
}

// A collector that takes connections and never answers changes no answer; what is too
// much is dropped and counted, and the service ends in time.
func TestCollectorThatHangs(t *testing.T) {
	t.Parallel()
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer hung.Close()
	s := start(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+hung.Addr().String())
	dropped := func() string {
		resp, err := http.Get(s.ops + "/metrics")
		must(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		must(t, err)
		for line := range strings.Lines(string(raw)) {
			if value, found := strings.CutPrefix(line, `coordsvc_trace_spans_total{outcome="dropped"} `); found {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	for n := 0; dropped() == "0"; n++ {
		if n > 100 {
			t.Fatal("nothing is dropped")
		}
		for range 100 { // of 4 spans each
			s.call(200, "GET", "/v1/key-types", "")
		}
	}
	begun := time.Now()
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	<-s.ended
	if took := time.Since(begun); s.exit != nil || took > 20*time.Second {
		t.Errorf("it ended after %v: %v", took, s.exit)
	}
	if line := lineOf(t, s.stderr.String(), "the last spans were not sent"); line["error"] == "" {
		t.Error(line)
	}
}
