package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// functions are what a Go benchmark says of the library, by its name.
type functions map[string]struct{ ns, allocs []float64 }

// The benchmarks of decisions that ask no store.
const (
	benchLeased = "BenchmarkSpend/allowed"
	benchDenied = "BenchmarkDenied"
)

var benchLine = regexp.MustCompile(`(?m)\s([\d.]+) ns/op.*\s(\d+) allocs/op$`)

// libraryFunctions runs the benchmarks, each some times.
func libraryFunctions(ctx context.Context) (functions, error) {
	all := functions{}
	for name, folder := range map[string]string{benchLeased: "./ratelimit/tokenlease", benchDenied: "./ratelimit"} {
		pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
		run := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchmem", "-benchtime", "200ms", "-count", "15", folder) //nolint:gosec // of the constants above
		run.Dir = ".."
		said, err := run.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go test -bench %s: %w\n%s", name, err, said)
		}
		f := all[name]
		for _, found := range benchLine.FindAllSubmatch(said, -1) {
			ns, err1 := strconv.ParseFloat(string(found[1]), 64)
			allocs, err2 := strconv.ParseFloat(string(found[2]), 64)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("go test -bench wrote %q", found[0])
			}
			f.ns, f.allocs = append(f.ns, ns), append(f.allocs, allocs)
		}
		if len(f.ns) == 0 {
			return nil, fmt.Errorf("go test -bench %s measured nothing:\n%s", name, said)
		}
		all[name] = f
	}
	return all, nil
}
