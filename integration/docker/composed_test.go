package docker

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The stack of infra/compose starts by itself: tables first, then a node that is healthy and
// that Prometheus watches. What it acknowledged outlives its container.
func TestComposedStack(t *testing.T) {
	t.Parallel()
	s := newStack(t, "coordsvc", "tables", "dynamodb", "valkey", "prometheus")
	s.up("prometheus")
	node := s.running["coordsvc"]
	healthy(t, node, "healthy")
	if wrote := logs(t, node); !regexp.MustCompile(`ready http=\S*:8080 ops=\S*:9090 grpc=\S*:9091`).MatchString(wrote) {
		t.Errorf("the node listens elsewhere: %s", wrote)
	}

	code, wrote := ended(t, s.run("coordsvc", "keys", "create", "--tenant", "default"))
	key := regexp.MustCompile(`csk_\w+`).FindString(wrote)
	if code != 0 || key == "" {
		t.Fatalf("keys create ended with %d: %s", code, wrote)
	}
	api := caller{t: t, url: "http://" + address(t, node, "8080"), key: key}
	session := api.call(201, "/v1/sessions", `{"user_id":"ada"}`)
	token := `{"token":"` + session["token"].(string) + `"}`
	api.until("source", "cache", "/v1/sessions/verify", token)
	api.until("source", "redis", "/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"acme","user":"ada"},"cost":1}`)
	lease := api.call(200, "/v1/leases/report/acquire", `{"owner":"one","ttl_ms":600000,"request_id":"r1"}`)

	s.watched()

	patience := 30 * time.Second
	if err := node.Stop(t.Context(), &patience); err != nil {
		t.Fatal(err)
	}
	if state, err := node.State(t.Context()); err != nil || state.ExitCode != 0 {
		t.Errorf("told to stop it ended with %+v, %v", state, err)
	}
	if err := node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthy(t, node, "healthy")
	api.url = "http://" + address(t, node, "8080") // published anew
	if verdict := api.call(200, "/v1/sessions/verify", token); verdict["active"] != true {
		t.Errorf("after the restart: %v", verdict)
	}
	api.call(409, "/v1/leases/report/acquire", `{"owner":"two","ttl_ms":600000}`)
	if again := api.call(200, "/v1/leases/report/acquire", `{"owner":"one","ttl_ms":600000,"request_id":"r1"}`); again["fencing_token"] != lease["fencing_token"] {
		t.Errorf("the same request got the token %v, before %v", again["fencing_token"], lease["fencing_token"])
	}

	// Without its tables a node lives, so that nobody restarts it, and is not ready.
	if err := s.running["dynamodb"].Stop(t.Context(), &patience); err != nil {
		t.Fatal(err)
	}
	healthy(t, node, "unhealthy")
	if code, said := inside(t, node, "/coordsvc", "healthcheck"); code != 0 || !strings.Contains(said, "ok") {
		t.Errorf("without its store the node does not live: %d, %s", code, said)
	}
	if err := s.running["dynamodb"].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthy(t, node, "healthy")
	if verdict := api.call(200, "/v1/sessions/verify", token); verdict["active"] != true {
		t.Errorf("after the store's restart: %v", verdict)
	}
}

// watched waits until Prometheus reads the node's metrics, and has the alerts.
func (s *stack) watched() {
	s.t.Helper()
	prometheus := caller{t: s.t, url: "http://" + address(s.t, s.running["prometheus"], "9090")}
	deadline := time.Now().Add(allowed)
	for {
		answer, _ := json.Marshal(prometheus.call(200, "/api/v1/query?query=coordsvc_ready", ""))
		if bytes.Contains(answer, []byte(`"instance":"coordsvc:9090"`)) {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("Prometheus knows only %s", answer)
		}
		time.Sleep(100 * time.Millisecond)
	}
	rules, _ := json.Marshal(prometheus.call(200, "/api/v1/rules?type=alert", ""))
	if n := bytes.Count(rules, []byte(`"type":"alerting"`)); n < 10 {
		s.t.Errorf("Prometheus has %d alerts: %s", n, rules)
	}
}

// until repeats the request until the answer's field has the value: a machine that is busy is
// now and then too late for Valkey.
func (c caller) until(field, value, path, body string) {
	c.t.Helper()
	for deadline := time.Now().Add(allowed); ; time.Sleep(100 * time.Millisecond) {
		answer := c.call(200, path, body)
		if answer[field] == value {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v, want the %s %q", path, answer, field, value)
		}
	}
}

// A caller sends requests with a key.
type caller struct {
	t        *testing.T
	url, key string
}

// call posts the body, or gets where there is none, and demands the status.
func (c caller) call(want int, path, body string) map[string]any {
	c.t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(raw, &answer); err != nil || resp.StatusCode != want {
		c.t.Fatalf("%s %s: %d, want %d: %s", method, path, resp.StatusCode, want, raw)
	}
	return answer
}
