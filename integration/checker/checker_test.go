package checker

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
)

// depth is how much a test does: a part of it in CI, all of it as a proof.
func depth(ci, proof int) int {
	if text, _ := os.LookupEnv("COORD_TEST_DEPTH"); text == "proof" {
		return proof
	}
	return ci
}

// on runs the test on every ground that there is.
func on(t *testing.T, run func(t *testing.T, g Ground)) {
	memory := func(*testing.T) (Ground, error) { return Memory(), nil }
	for name, open := range map[string]func(*testing.T) (Ground, error){"memory": memory, "bbolt": Bolt, "DynamoDB": Dynamo} {
		t.Run(name, func(t *testing.T) {
			g, err := open(t)
			if err != nil {
				t.Fatal(err)
			}
			run(t, g)
		})
	}
}

const violations = "violations"

// atOnce is how many histories run beside each other.
const atOnce = 12

// many runs the histories of the seeds 1 to n and adds up what came of them.
func many(t *testing.T, n int, run func(seed uint64) Result) map[string]int {
	t.Helper()
	var (
		mu    sync.Mutex
		sums  = map[string]int{}
		seeds = make(chan uint64)
		wg    sync.WaitGroup
	)
	for range atOnce {
		wg.Go(func() {
			for seed := range seeds {
				r := run(seed)
				mu.Lock()
				for what, count := range r.Counts {
					sums[what] += count
				}
				sums[violations] += len(r.Violations)
				mu.Unlock()
				for _, v := range r.Violations {
					t.Errorf("seed %d: %v", seed, v)
				}
			}
		})
	}
	for seed := range n {
		if t.Failed() {
			break
		}
		seeds <- uint64(seed + 1)
	}
	close(seeds)
	wg.Wait()
	return sums
}

func report(t *testing.T, what string, sums map[string]int, took time.Duration) {
	t.Helper()
	text := fmt.Sprintf("%s: %d histories, %d calls in %v, %d violations", what, sums["histories"], sums["calls"], took.Round(time.Millisecond), sums[violations])
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if name != "histories" && name != "calls" && name != violations {
			text += fmt.Sprintf("\n%8d %s", sums[name], name)
		}
	}
	t.Log(text)
}

// Leases, fences, records and quotas keep what they promise, wherever they are stored,
// whatever happens to requests, clocks and clients.
func TestHistories(t *testing.T) {
	type run func(ctx context.Context, g Ground, seed uint64, calls int, m Mutant) Result
	kinds := []struct {
		name      string
		run       run
		ci, proof int
	}{
		{"leases", Leases, 12, 1000}, {"records", Records, 6, 300}, {"quotas", Quotas, 3, 200},
	}
	met := map[string]int{} // of all kinds, wherever
	on(t, func(t *testing.T, g Ground) {
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) {
				begun := time.Now()
				sums := many(t, depth(k.ci, k.proof), func(seed uint64) Result { return k.run(t.Context(), g, seed, 100, Mutant{}) })
				report(t, g.Name+" "+k.name, sums, time.Since(begun))
				for what, n := range sums {
					met[what] += n
				}
			})
		}
		for _, what := range happens(g) {
			if met[what] == 0 {
				t.Errorf("no history had this: %s", what)
			}
		}
		clear(met)
	})
}

// happens is what the histories on a ground must have met, so that they show something. A seed
// decides what a history meets, and not the machine.
func happens(g Ground) []string {
	all := []string{"takeovers", "forced releases", "completions", "units used", "pauses", "calls of unknown outcome", "calls refused by a fault"}
	if g.Name == "DynamoDB" {
		all = append(all, "late requests carried out")
		for _, f := range dynamotest.Faults {
			all = append(all, string(f))
		}
	}
	if depth(0, 1) == 1 {
		all = append(all, "losses of items, floor raised", "overlapping holds, clocks beyond G")
	}
	return all
}
