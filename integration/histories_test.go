package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/checker"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
)

// faulty returns the settings of a node whose engine is behind a proxy that does what
// networks do, and DynamoDB.
func faulty(t *testing.T, db *engine.Dynamo) ([]string, *dynamotest.Proxy) {
	t.Helper()
	target, err := url.Parse(db.Watched())
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	proxy := &dynamotest.Proxy{
		Target: target, Rand: rand.New(rand.NewPCG(1, 1)),
		Rates: map[dynamotest.Fault]float64{
			dynamotest.Latency: 0.1, dynamotest.ResetBefore: 0.02, dynamotest.ResetAfter: 0.02, dynamotest.NoAnswer: 0.01, dynamotest.Late: 0.02,
			dynamotest.Duplicate: 0.03, dynamotest.Throttle: 0.03, dynamotest.Conflict: 0.02,
		},
		Now:   func() time.Duration { return time.Since(begun) },
		Pause: func(_ context.Context, d time.Duration) { time.Sleep(d) },
		Later: func(d time.Duration, fn func()) { time.AfterFunc(d, fn) },
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return append(db.Env(), "COORD_DYNAMODB="+server.URL), proxy
}

// A mortal is a service that is killed and started again, while others use its address.
type mortal struct {
	*service
	at atomic.Pointer[string]
}

func (m *mortal) rise() {
	m.restart()
	url := m.url
	m.at.Store(&url)
}

// TestL9HistoriesOfServices has clients of two processes work on the same resources while the
// processes are killed and the engine's network fails: what the clients saw must hold together.
func TestL9HistoriesOfServices(t *testing.T) {
	program := hooked(t)
	for _, tc := range []struct {
		name    string
		offsets [2]time.Duration // of the processes' clocks
		beyond  bool             // they differ by more than the guard
	}{
		{"clocks within the guard", [2]time.Duration{-150 * time.Millisecond, 150 * time.Millisecond}, false},
		{"clocks beyond the guard", [2]time.Duration{0, 5 * time.Second}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := engine.DynamoDB(t)
			direct, key := production(t, db.Env(), db.Prefix(t))
			createTables(t, direct)
			behind, proxy := faulty(t, db)
			env := slices.Concat(direct, behind, []string{"COORD_LEASE_GUARD_MS=1000", "COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0"})
			var nodes []*mortal
			var services []checker.Service
			for _, offset := range tc.offsets {
				env := slices.Concat(env, []string{fmt.Sprintf("COORD_TEST_CLOCK_OFFSET_MS=%d", offset.Milliseconds()), "COORD_DATA_DIR=" + t.TempDir()})
				m := &mortal{service: &service{t: t, env: env, program: program}}
				m.rise()
				t.Cleanup(m.kill)
				nodes = append(nodes, m)
				services = append(services, checker.Service{URL: func() string { return *m.at.Load() }, Key: key, Offset: offset})
			}
			killed(t, nodes, depthOf(1, 20), depthOf(4, 40), func(i int) checker.Result {
				return checker.Services(t.Context(), services, fmt.Sprintf("r%d", i), uint64(i), 60, tc.beyond)
			})
			t.Logf("faults: %v", proxy.Counts())
		})
	}
}

func depthOf(ci, proof int) int {
	if text, _ := os.LookupEnv("COORD_TEST_DEPTH"); text == "proof" {
		return proof
	}
	return ci
}

// killed runs histories, four at once, while one node after the other is killed, until
// there were as many of both as asked for.
func killed(t *testing.T, nodes []*mortal, kills, histories int, run func(i int) checker.Result) {
	t.Helper()
	var (
		sums  = map[string]int{}
		mu    sync.Mutex // guards sums
		begun atomic.Int64
		dead  atomic.Int64
		done  = make(chan struct{})
		wg    sync.WaitGroup
	)
	for range 4 {
		wg.Go(func() {
			for dead.Load() < int64(kills) || begun.Load() < int64(histories) {
				r := run(int(begun.Add(1)))
				mu.Lock()
				for what, n := range r.Counts {
					sums[what] += n
				}
				mu.Unlock()
				for _, v := range r.Violations {
					t.Errorf("%v", v)
				}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for n := 0; ; n++ {
		select {
		case <-done:
			for _, what := range slices.Sorted(maps.Keys(sums)) {
				t.Logf("%8d %s", sums[what], what)
			}
			t.Logf("%8d kills", dead.Load())
			return
		case <-time.After(time.Second + rand.N(time.Second)): // into any part of a call
			nodes[n%len(nodes)].kill()
			nodes[n%len(nodes)].rise()
			dead.Add(1)
		}
	}
}
