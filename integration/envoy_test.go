package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// A gateway is the Envoy of examples/envoy, before an upstream that counts and a
// service on that example's policies. Only the ports are not the example's.
type gateway struct {
	t        *testing.T
	proxy    *engine.EnvoyProxy
	service  *service
	client   *http.Client
	upstream sync.Map // by client: how many requests came through, *atomic.Int64
}

func startGateway(t *testing.T, env ...string) *gateway {
	t.Helper()
	g := &gateway{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(g.client.CloseIdleConnections)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		g.through(r.Header.Get("x-client")).Add(1)
	}))
	t.Cleanup(upstream.Close)
	dir, err := filepath.Abs("../examples/envoy")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(engine.FreePort(t))
	g.service = start(t, append(env, "COORD_GRPC_ADDR=127.0.0.1:"+port, "COORD_POLICY_PATH="+filepath.Join(dir, "policies.yaml"))...)
	t.Setenv("COORDSVC_KEY", g.service.key)
	g.proxy = engine.StartEnvoy(t, func(admin, listener int) string {
		config := string(raw)
		for _, p := range [][2]string{
			{"9901", fmt.Sprint(admin)}, {"10000", fmt.Sprint(listener)}, {"9091", port}, {"10001", upstream.URL[strings.LastIndex(upstream.URL, ":")+1:]},
		} {
			old := "port_value: " + p[0] + "}"
			if strings.Count(config, old) != 1 {
				t.Fatalf("the example has %d times %s", strings.Count(config, old), old)
			}
			config = strings.Replace(config, old, "port_value: "+p[1]+"}", 1)
		}
		return config
	})
	return g
}

func (g *gateway) through(client string) *atomic.Int64 {
	n, _ := g.upstream.LoadOrStore(client, &atomic.Int64{})
	return n.(*atomic.Int64)
}

func (g *gateway) get(path, client, tier string) (answer, error) {
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.proxy.URL+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	if client != "" {
		req.Header.Set("x-client", client)
	}
	if tier != "" {
		req.Header.Set("x-tier", tier)
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header}, err
}

// must asks and demands an answer.
func (g *gateway) must(path, client, tier string) answer {
	g.t.Helper()
	a, err := g.get(path, client, tier)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// await asks until the answer is as wanted: Envoy connects when it likes, and on a
// busy machine an answer may take longer than its 5 ms.
func (g *gateway) await(why, path string, want func(answer) bool) {
	g.t.Helper()
	for begun, n := time.Now(), 0; ; n++ {
		resp := g.must(path, fmt.Sprintf("await-%s-%d-%d", path, begun.UnixNano(), n), "free")
		if want(resp) {
			return
		}
		if time.Since(begun) > time.Minute {
			g.t.Fatalf("%s: not within a minute; the last answer is %d %v", why, resp.status, resp.header)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// decided reports whether the service decided, and not Envoy for want of an answer.
func decided(a answer) bool { return a.header.Get("ratelimit") != "" }

// stats are Envoy's own counts of what it asked: ok, over_limit and error.
func (g *gateway) stats() map[string]int64 {
	g.t.Helper()
	resp, err := http.Get(g.proxy.Admin + "/stats?format=json&filter=%5C.ratelimit%5C.")
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct {
		Stats []struct {
			Name  string
			Value int64
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		g.t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, s := range body.Stats {
		counts[s.Name[strings.LastIndex(s.Name, ".")+1:]] += s.Value
	}
	return counts
}

// A tally is what became of one client's requests.
type tally struct {
	path, client, tier                string
	sends, capacity                   int64
	passed, refused, open, refused503 atomic.Int64 // decided, and for want of an answer
}

// send sends one request and counts the answer.
func (g *gateway) send(c *tally) {
	resp, err := g.get(c.path, c.client, c.tier)
	switch {
	case err != nil:
		g.t.Errorf("%s: %v", c.client, err)
	case resp.status == 200 && decided(resp):
		c.passed.Add(1)
	case resp.status == 200 && c.path != "/payments":
		c.open.Add(1)
	case resp.status == 503 && c.path == "/payments":
		c.refused503.Add(1)
	case resp.status == 429 && decided(resp) && resp.header.Get("ratelimit-policy") != "" && resp.header.Get("retry-after") >= "1":
		c.refused.Add(1)
	default:
		g.t.Errorf("%s: %d %v", c.client, resp.status, resp.header)
	}
}

// check compares with what the limit allows. A request that Envoy got no answer for
// in time may have been charged.
func (c *tally) check(t *testing.T, through int64) (sent, undecided int64) {
	t.Helper()
	passed, unknown := c.passed.Load(), c.open.Load()+c.refused503.Load()
	if passed > c.capacity || passed+unknown < c.capacity {
		t.Errorf("%s: %d passed and %d had no answer, of a limit of %d", c.client, passed, unknown, c.capacity)
	}
	if through != passed+c.open.Load() {
		t.Errorf("%s: %d requests came through, want %d", c.client, through, passed+c.open.Load())
	}
	return c.sends, unknown
}

// requestsThroughEnvoy is how many are decided at least.
func requestsThroughEnvoy() int64 {
	if depth, _ := os.LookupEnv("COORD_TEST_DEPTH"); depth == "proof" {
		return 50_000
	}
	return 500
}

// Through a real Envoy exactly as many requests of each client pass as its tier
// allows, an export counts for five, and Envoy's own counts agree.
func TestEnvoyLimitsByTier(t *testing.T) {
	g := startGateway(t)
	g.await("an answer of the service", "/", decided)
	before, begun := g.stats(), time.Now()
	var answered, unanswered, passed, refused int64
	for round := 0; answered < requestsThroughEnvoy(); round++ {
		if unanswered > 3*requestsThroughEnvoy() {
			t.Fatalf("%d requests had no answer in time, and %d had one", unanswered, answered)
		}
		clients := []*tally{
			{path: "/", client: fmt.Sprintf("free-%d", round), tier: "free", sends: 30, capacity: 20},
			{path: "/", client: fmt.Sprintf("gold-%d", round), tier: "gold", sends: 220, capacity: 200},
			{path: "/export", client: fmt.Sprintf("export-%d", round), tier: "free", sends: 8, capacity: 4},
			{path: "/payments", client: fmt.Sprintf("payments-%d", round), tier: "free", sends: 15, capacity: 10},
		}
		g.sendAll(clients)
		for _, c := range clients {
			sent, undecided := c.check(t, g.through(c.client).Load())
			answered, unanswered = answered+sent-undecided, unanswered+undecided
			passed, refused = passed+c.passed.Load(), refused+c.refused.Load()
		}
	}
	took := time.Since(begun)
	after := g.stats()
	for name, want := range map[string]int64{"ok": passed, "over_limit": refused, "error": unanswered} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("Envoy counts %d %s, the test %d", got, name, want)
		}
	}
	t.Logf("%d passed, %d refused, %d without an answer within 5 ms, in %v", passed, refused, unanswered, took)
	if passed == 0 || refused == 0 {
		t.Error("nothing was shown")
	}
	g.checkMetrics()
}

// checkMetrics demands that the requests were counted, and no client's name.
func (g *gateway) checkMetrics() {
	g.t.Helper()
	const counter = `coordsvc_grpc_requests_total{code="%s",method="/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"}`
	for _, code := range []string{"OK", "OVER_LIMIT"} {
		if g.service.metric(fmt.Sprintf(counter, code)) == "" {
			g.t.Errorf("no request with the code %s was counted", code)
		}
	}
	resp, err := http.Get(g.service.ops + "/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Contains(string(text), "gold-0") {
		g.t.Errorf("a client's name is counted, or %v", err)
	}
}

// sendAll mixes the clients' requests over eight workers.
func (g *gateway) sendAll(clients []*tally) {
	work := make(chan *tally)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for c := range work {
				g.send(c)
			}
		})
	}
	for i, more := int64(0), true; more; i++ {
		more = false
		for _, c := range clients {
			if i < c.sends {
				more = true
				work <- c
			}
		}
	}
	close(work)
	workers.Wait()
}

// No client gets past its limit by what it sends in its headers, or leaves out.
func TestEnvoyLimitsWhateverAClientSends(t *testing.T) {
	g := startGateway(t)
	g.await("an answer of the service", "/", decided)
	for _, missing := range [][2]string{{"", "free"}, {"someone", ""}} {
		if resp := g.must("/", missing[0], missing[1]); resp.status != 401 {
			t.Errorf("without a header: %d", resp.status)
		}
	}
	for name, client := range map[string]string{
		"not UTF-8": "\xff\xfe", "half a rune": "caf\xc3", "long": strings.Repeat("x", 20_000), "two words": "a b", "dots": "..",
	} {
		c := &tally{path: "/", client: client, tier: "free", capacity: 20}
		for c.passed.Load()+c.refused.Load() < 25 {
			if c.sends++; c.sends > 5000 {
				t.Fatalf("%s: %d passed and %d were refused, and all else of %d had no answer", name, c.passed.Load(), c.refused.Load(), c.sends)
			}
			g.send(c)
		}
		c.client = name
		c.check(t, g.through(client).Load())
	}
}

// While the service is stopped Envoy does as its filters are set; afterwards the
// service decides again.
func TestEnvoyWithoutTheService(t *testing.T) {
	g := startGateway(t)
	g.await("an answer of the service", "/", decided)
	g.await("the same for payments", "/payments", decided)
	if err := g.service.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-g.service.ended
	if g.service.exit != nil {
		t.Errorf("the service ends with %v while Envoy is connected\n%s", g.service.exit, g.service.stderr)
	}
	for i := range 50 {
		client := fmt.Sprintf("stopped-%d", i)
		if resp := g.must("/", client, "free"); resp.status != 200 || decided(resp) {
			t.Errorf("the open route: %d %v", resp.status, resp.header)
		}
		if resp := g.must("/payments", client, "free"); resp.status != 503 || decided(resp) {
			t.Errorf("the closed route: %d %v", resp.status, resp.header)
		}
		if n := g.through(client).Load(); n != 1 {
			t.Errorf("%d of the two requests came through", n)
		}
	}
	g.service.restart()
	g.await("an answer after a restart", "/", decided)
	g.await("the same for payments", "/payments", decided)
}

// While Redis fails the policies' postures answer, and the service tells so: not
// Envoy's failure mode.
func TestEnvoyWithoutRedis(t *testing.T) {
	redis := engine.StartRedis(t)
	g := startGateway(t, "COORD_REDIS_URL="+redis.URL(), "COORD_REDIS_PREFIX="+engine.FreshPrefix(), "COORD_REDIS_BUDGET_MS=2")
	degraded := func(a answer) bool { return a.header.Get("x-ratelimit-degraded") == "true" }
	g.await("an answer by Redis", "/", func(a answer) bool { return decided(a) && !degraded(a) })
	redis.Kill()
	g.await("fail_open answers", "/", func(a answer) bool { return degraded(a) && a.status == 200 })
	g.await("fail_closed answers", "/payments", func(a answer) bool {
		return degraded(a) && a.status == 429 && a.header.Get("retry-after") == "1"
	})
	for i := range 100 {
		client := fmt.Sprintf("down-%d", i)
		if resp := g.must("/", client, "free"); resp.status != 200 || decided(resp) {
			t.Errorf("the open policy: %d %v", resp.status, resp.header)
		}
		switch resp := g.must("/payments", client, "free"); {
		case resp.status == 429 && degraded(resp):
		case resp.status == 503 && !degraded(resp): // no answer within Envoy's 5 ms
		default:
			t.Errorf("the closed policy: %d %v", resp.status, resp.header)
		}
	}
	redis.Restart(t)
	g.await("an answer by Redis again", "/", func(a answer) bool { return decided(a) && !degraded(a) })
}
