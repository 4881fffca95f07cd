package client

import (
	"bufio"
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const policies = `version: 1
policies:
  - {name: default, on_store_failure: fail_closed, limits: [{name: l, key: [tenant, user], algorithm: token_bucket, rate: 10/s, burst: 20}]}
  - {name: ten, on_store_failure: fail_closed, limits: [{name: l, key: [app], algorithm: token_bucket, rate: 10/h, burst: 10}]}
  - {name: one, on_store_failure: fail_closed, limits: [{name: l, key: [app], algorithm: token_bucket, rate: 1/h, burst: 1}]}
  - {name: slots, on_store_failure: fail_closed, limits: [{name: l, key: [app], algorithm: concurrency, slots: 1, slot_ttl: 1h}]}
  - {name: often, on_store_failure: fail_closed, mode: leased, max_overshoot: 200, limits: [{name: l, key: [app], algorithm: token_bucket, rate: 1000/m, burst: 1000}]}
`

// folder is where the services are, once one was started.
var folder string

// program is the built binary.
var program = sync.OnceValues(func() (path string, err error) {
	if folder, err = os.MkdirTemp("", "coordsvc-client-"); err != nil {
		return "", err
	}
	path = filepath.Join(folder, "coordsvc")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/coordsvc/coordsvc/cmd/coordsvc").CombinedOutput(); err != nil {
		return path, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	for _, r := range ofExamples {
		r.end()
	}
	_ = os.RemoveAll(folder) // which for "" does nothing
	os.Exit(code)
}

// A running service is the built binary on an embedded store of its own.
type running struct {
	url, key string
	process  *os.Process
}

func start() (r running, err error) {
	path, err := program()
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp(folder, "")
	if err != nil {
		return r, err
	}
	data, rules := filepath.Join(dir, "data"), filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(rules, []byte(policies), 0o600); err != nil {
		return r, err
	}
	serve := exec.Command(path, "serve")
	serve.Env = []string{"COORD_DATA_DIR=" + data, "COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0", "COORD_POLICY_PATH=" + rules}
	out, err := serve.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := serve.Start(); err != nil {
		return r, err
	}
	r.process = serve.Process
	line, err := bufio.NewReader(out).ReadString('\n')
	var api, ops string
	if _, scanErr := fmt.Sscanf(line, "ready http=%s ops=%s", &api, &ops); scanErr != nil {
		r.end()
		return r, fmt.Errorf("the service said %q, %w", line, cmp.Or(err, scanErr))
	}
	key, err := os.ReadFile(filepath.Join(data, "first-key"))
	r.url, r.key = "http://"+api, strings.TrimSpace(string(key))
	return r, err
}

func (r running) end() {
	_ = r.process.Kill()
	_, _ = r.process.Wait()
}

var (
	mu         sync.Mutex // guards ofTests
	ofTests    = map[*testing.T]running{}
	ofExamples []running
)

// service is the test's own, so that each run of it finds what the one before found.
func service(t *testing.T) running {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if r, ok := ofTests[t]; ok {
		return r
	}
	r, err := start()
	if err != nil {
		t.Fatal(err)
	}
	ofTests[t] = r
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		delete(ofTests, t)
		r.end()
	})
	return r
}

// ServiceForExamples starts one, and says where the example finds it.
func ServiceForExamples() (url, key string) {
	r, err := start()
	if err != nil {
		panic(err)
	}
	ofExamples = append(ofExamples, r)
	return r.url, r.key
}

// connect makes a client of the test's service, whose requests go through the faults.
func connect(t *testing.T, opts Options) (*Client, *faults) {
	t.Helper()
	r := service(t)
	f := &faults{next: ownHTTP().Transport}
	opts.APIKey, opts.HTTP = r.key, &http.Client{Transport: f}
	c, err := New(r.url, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c, f
}

// A fault is what becomes of a request.
type fault int

const (
	none    fault = iota
	lost          // it arrives, and its answer does not
	late          // its answer takes a while
	proxied       // a proxy answers in the service's place
)

// faults does to requests, in their order, what it was told, and nothing to those that follow.
type faults struct {
	next http.RoundTripper
	slow time.Duration

	mu   sync.Mutex // guards plan
	plan []fault
	sent atomic.Int64
	all  atomic.Bool // every answer is lost
}

func (f *faults) set(plan ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
	f.sent.Store(0)
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	f.sent.Add(1)
	f.mu.Lock()
	what := none
	if len(f.plan) > 0 {
		what, f.plan = f.plan[0], f.plan[1:]
	}
	f.mu.Unlock()
	resp, err := f.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch {
	case what == lost || f.all.Load():
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the answer was lost")
	case what == late:
		time.Sleep(f.slow)
	case what == proxied:
		_ = resp.Body.Close()
		return answer(http.StatusBadGateway, "", "<html>bad gateway</html>"), nil
	}
	return resp, nil
}
