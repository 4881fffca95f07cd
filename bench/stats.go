package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
)

// An interval is a median over the rounds with its 95 % interval.
type interval struct{ low, median, high float64 }

func (i interval) String() string {
	return fmt.Sprintf("%s [%s, %s]", figure(i.median), figure(i.low), figure(i.high))
}

func figure(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 0.1 || x == 0:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.4f", x)
	}
}

// intervalOf resamples the rounds (percentile bootstrap, Efron 1979).
func intervalOf(values []float64) interval {
	const resamples = 2000
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible, nothing secret
	medians := make([]float64, resamples)
	again := make([]float64, len(values))
	for i := range medians {
		for j := range again {
			again[j] = values[random.IntN(len(values))]
		}
		medians[i] = median(again)
	}
	slices.Sort(medians)
	return interval{low: medians[resamples*25/1000], median: median(values), high: medians[resamples*975/1000]}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// report prints every case, and its ratios to the first one, the floor, and to the last, the peer, within the same round.
func report(out io.Writer, loads []load, rounds map[string][]sample) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\treq/s\tp50 ms\tp99 ms\tserver CPU s/100k\tRedis CPU s/100k\tserver CPU × floor\tp50 × floor\tserver CPU × peer\tp50 × peer")
	floor, peer := rounds[loads[0].name], rounds[loads[len(loads)-1].name]
	for _, l := range loads {
		samples := rounds[l.name]
		of := func(f func(sample) float64) interval {
			values := make([]float64, len(samples))
			for i, s := range samples {
				values[i] = f(s)
			}
			return intervalOf(values)
		}
		ratio := func(f func(sample) float64, to []sample) interval {
			values := make([]float64, len(samples))
			for i, s := range samples {
				values[i] = f(s) / f(to[i])
			}
			return intervalOf(values)
		}
		p50 := func(s sample) float64 { return s.p50.Seconds() * 1000 }
		cpu := func(s sample) float64 { return s.cpu }
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.name,
			of(func(s sample) float64 { return s.perSecond }).median, of(p50),
			of(func(s sample) float64 { return s.p99.Seconds() * 1000 }), of(cpu),
			of(func(s sample) float64 { return s.redisCPU }), ratio(cpu, floor), ratio(p50, floor), ratio(cpu, peer), ratio(p50, peer))
	}
	return w.Flush()
}
