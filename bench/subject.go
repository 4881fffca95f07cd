package main

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A subject is a program whose rate limits are measured.
type subject struct {
	*process
	http, grpc string // addresses
	// Where the program says how many objects it has allocated: the page, and what stands before the number.
	mallocsAt, mallocsName string
}

// bootstrapKey is the API key of every caller of coordsvc.
const bootstrapKey = "csk_Bench0Bench0Bench0Bench0Bench0Bench0"

// The policies of coordsvc, and the same as domains of envoyproxy/ratelimit.
const (
	one     = "one"    // one limit, which nobody reaches
	four    = "four"   // four such limits
	tight   = "tight"  // one limit, of one request a day
	byLease = "leased" // as one, with units taken in batches
	roomy   = 1_000_000
)

// A unit comes back in half a minute, so that a key outlives the run.
const ourPolicies = `version: 1
policies:
  - {name: one, on_store_failure: fail_closed, limits: [{name: user, key: [user], algorithm: gcra, rate: 1000000/365d}]}
  - {name: tight, on_store_failure: fail_closed, limits: [{name: user, key: [user], algorithm: gcra, rate: 1/d}]}
  - {name: leased, on_store_failure: fail_closed, mode: leased, max_overshoot: 1000, limits: [{name: user, key: [user], algorithm: gcra, rate: 1000000/365d}]}
  - {name: bucket, on_store_failure: fail_closed, limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1000000/365d}]}
  - name: four
    on_store_failure: fail_closed
    slot: [tenant] # the four limits are decided in one step
    limits:
      - {name: tenant, key: [tenant], algorithm: gcra, rate: 1000000/365d}
      - {name: user, key: [tenant, user], algorithm: gcra, rate: 1000000/365d}
      - {name: route, key: [tenant, route], algorithm: gcra, rate: 1000000/365d}
      - {name: address, key: [tenant, address], algorithm: gcra, rate: 1000000/365d}
`

// startOurs starts coordsvc as its README does, with API keys, a policy file, metrics and
// Redis. Its answer from Redis may take longer than the default of 5 ms, for all programs
// of the run share the cores.
func startOurs(ctx context.Context, l *lab, redisAddr string, settings ...string) (*subject, error) {
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	policies, err := l.write("policies.yaml", ourPolicies)
	if err != nil {
		return nil, err
	}
	key, err := l.write("bootstrap", bootstrapKey+"\n")
	if err != nil {
		return nil, err
	}
	p, err := l.launch(ctx, addrs[2], "/readyz", append([]string{
		"COORD_HTTP_ADDR=" + addrs[0], "COORD_GRPC_ADDR=" + addrs[1], "COORD_OPS_ADDR=" + addrs[2],
		"COORD_DATA_DIR=" + filepath.Join(l.dir, "data"), "COORD_BOOTSTRAP_KEY_FILE=" + key, "COORD_POLICY_PATH=" + policies,
		"COORD_REDIS_URL=redis://" + redisAddr, "COORD_REDIS_BUDGET_MS=1000",
	}, settings...), l.coordsvc, "serve")
	return &subject{p, addrs[0], addrs[1], "http://" + addrs[2] + "/metrics", "go_memstats_mallocs_total "}, err
}

// startLimitFloor starts this program as a floor; see limitFloor.
func startLimitFloor(ctx context.Context, l *lab, redisAddr string) (*subject, error) {
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := l.launch(ctx, addrs[0], "/mallocs", nil, self, limitFloorArg, addrs[0], addrs[1], redisAddr)
	return &subject{p, addrs[0], addrs[1], "http://" + addrs[0] + "/mallocs", "mallocs "}, err
}

const envoyDescriptors = `descriptors:
  - key: %s
    rate_limit: {unit: %s, requests_per_unit: %d}
`

// startEnvoyRatelimit starts envoyproxy/ratelimit as its README does, with the statistics
// of its Docker example, and everything else as it is by default.
func startEnvoyRatelimit(ctx context.Context, l *lab, program, redisAddr string) (*subject, error) {
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	ports := make([]string, len(addrs))
	for i, addr := range addrs {
		if _, ports[i], err = net.SplitHostPort(addr); err != nil {
			return nil, err
		}
	}
	nested := "    descriptors:\n"
	for _, key := range []string{"user", "route", "address"} {
		nested += fmt.Sprintf("      - {key: %s, rate_limit: {unit: day, requests_per_unit: %d}}\n", key, roomy)
	}
	for domain, descriptors := range map[string]string{
		one:   fmt.Sprintf(envoyDescriptors, "user", "day", roomy),
		tight: fmt.Sprintf(envoyDescriptors, "user", "year", 1), // its windows end at midnight
		four:  fmt.Sprintf(envoyDescriptors, "tenant", "day", roomy) + nested,
	} {
		if _, err := l.write(filepath.Join("envoy", "ratelimit", "config", domain+".yaml"), "domain: "+domain+"\n"+descriptors); err != nil {
			return nil, err
		}
	}
	p, err := l.launch(ctx, addrs[0], "/healthcheck", []string{
		"HOST=127.0.0.1", "PORT=" + ports[0], "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[2],
		"USE_STATSD=false", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redisAddr,
		"RUNTIME_ROOT=" + filepath.Join(l.dir, "envoy"), "RUNTIME_SUBDIRECTORY=ratelimit",
	}, program)
	return &subject{p, addrs[0], addrs[1], "http://" + addrs[2] + "/debug/pprof/heap?debug=1", "# Mallocs = "}, err
}

// startGubernator starts one node of gubernator, which keeps limits in its own memory. It
// traces by the sampler that its docs recommend, and none of the requests.
func startGubernator(ctx context.Context, l *lab, program string) (*subject, error) {
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	p, err := l.launch(ctx, addrs[0], "/v1/HealthCheck", []string{
		"GUBER_HTTP_ADDRESS=" + addrs[0], "GUBER_GRPC_ADDRESS=" + addrs[1], "GUBER_ADVERTISE_ADDRESS=" + addrs[1],
		"GUBER_MEMBERLIST_BIND_ADDRESS=" + addrs[2], "GUBER_MEMBERLIST_ADDRESS=" + addrs[2], "GUBER_MEMBERLIST_KNOWN_NODES=" + addrs[2], "GUBER_METRIC_FLAGS=golang",
		"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0", "OTEL_TRACES_EXPORTER=none",
	}, program)
	return &subject{p, addrs[0], addrs[1], "http://" + addrs[0] + "/metrics", "go_memstats_mallocs_total "}, err
}

// mallocs is how many objects the program has allocated.
func (s *subject) mallocs(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.mallocsAt, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if number, found := strings.CutPrefix(lines.Text(), s.mallocsName); found {
			return strconv.ParseFloat(strings.TrimSpace(number), 64)
		}
	}
	return 0, fmt.Errorf("%s says nothing of %q: %w", s.mallocsAt, s.mallocsName, fs.ErrNotExist)
}
