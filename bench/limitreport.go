package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
)

// results are what a run found.
type results struct {
	rounds   map[string][]*limitSample // by case; nil in rounds that it was not part of
	keyBytes map[string]interval
	library  functions // empty where only some cases were asked for
}

func (r results) report(out io.Writer, cases []limitCase) error {
	fmt.Fprintln(out, "\nmedians over the rounds [95 % interval of the median, percentile bootstrap]; a decision is about one limit")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\trounds\tdecisions/s\tp50 ms\tp99 ms\tp99.9 ms")
	for _, c := range cases {
		of := func(f func(limitSample) float64) interval { return intervalOf(r.values(c.String(), f)) }
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", c, len(r.values(c.String(), perSecond)), of(perSecond), of(p50), of(p99), of(p999))
	}
	fmt.Fprintln(w, "\ncase\tserver CPU s/100k\tRedis CPU s/100k\tRedis commands each\tallocations each\tserver CPU × floor\tserver CPU × envoyproxy/ratelimit")
	for _, c := range cases {
		of := func(f func(limitSample) float64) interval { return intervalOf(r.values(c.String(), f)) }
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%.0f\t%s\t%s\n", c, of(cpu), of(redisCPU), of(commandsEach).median, of(allocs).median,
			r.words(cpu, c.String(), c.beside(floor)), r.words(cpu, c.String(), c.beside(envoy)))
	}
	if len(r.keyBytes) > 0 {
		fmt.Fprintln(w, "\nbytes of a key (MEMORY USAGE)\tleast\tmedian\tmost")
		for _, name := range []string{keyGCRA, keyBucket, keyWindow} {
			if b, found := r.keyBytes[name]; found {
				fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\n", name, b.low, b.median, b.high)
			}
		}
	}
	r.targets(w)
	return w.Flush()
}

func perSecond(s limitSample) float64    { return s.perSecond }
func p50(s limitSample) float64          { return s.p50 }
func p99(s limitSample) float64          { return s.p99 }
func p999(s limitSample) float64         { return s.p999 }
func cpu(s limitSample) float64          { return s.cpu }
func redisCPU(s limitSample) float64     { return s.redisCPU }
func commandsEach(s limitSample) float64 { return s.commands }
func allocs(s limitSample) float64       { return s.allocs }

// values are those of the rounds that the case was part of.
func (r results) values(name string, f func(limitSample) float64) []float64 {
	var all []float64
	for _, s := range r.rounds[name] {
		if s != nil {
			all = append(all, f(*s))
		}
	}
	return all
}

// ratio is that of two cases within the same round, or the figure itself where to is "";
// ok is false where they share no round.
func (r results) ratio(f func(limitSample) float64, name, to string) (i interval, ok bool) {
	all := r.values(name, f)
	if to != "" {
		all = nil
	}
	for round, s := range r.rounds[name] {
		if others := r.rounds[to]; s != nil && others != nil && others[round] != nil {
			all = append(all, f(*s)/f(*others[round]))
		}
	}
	if len(all) == 0 {
		return interval{}, false
	}
	return intervalOf(all), true
}

func (r results) words(f func(limitSample) float64, name, to string) string {
	if i, ok := r.ratio(f, name, to); ok {
		return i.String()
	}
	return ""
}

// A target is a bound of the ratio of two cases, or of a figure where to is "".
type target struct {
	what        string
	of          func(limitSample) float64
	name, to    string
	least, most float64 // one of them is 0
}

func targets() []target {
	of := func(protocol, program string, s shape) string { return limitCase{protocol, program, s, true}.String() }
	http, peer := of("HTTP", coordsvc, plain), of("HTTP", envoy, plain)
	all := []target{
		{"HTTP: server CPU × floor", cpu, http, of("HTTP", floor, plain), 0, 1.25},
		{"HTTP: server CPU × envoyproxy/ratelimit", cpu, http, peer, 0, 0.65},
		{"HTTP: throughput × envoyproxy/ratelimit", perSecond, http, peer, 1.4, 0},
		{"HTTP: p99 × envoyproxy/ratelimit", p99, http, peer, 0, 1},
	}
	for _, s := range []shape{plain, shared} {
		grpc, peer, name := of("gRPC", coordsvc, s), of("gRPC", envoy, s), "gRPC"+s.name
		all = append(all,
			target{name + ": server CPU × floor", cpu, grpc, of("gRPC", floor, s), 0, 1.2},
			target{name + ": server CPU × envoyproxy/ratelimit", cpu, grpc, peer, 0, 0.7},
			target{name + ": Redis CPU of a call × envoyproxy/ratelimit", redisCPU, grpc, peer, 0, 1.5})
	}
	for _, s := range []shape{times4, sharedTimes4} {
		grpc, peer, name := of("gRPC", coordsvc, s), of("gRPC", envoy, s), "gRPC"+s.name
		all = append(all,
			target{name + ": server CPU × envoyproxy/ratelimit", cpu, grpc, peer, 0, 0.5},
			target{name + ": Redis CPU of a call × envoyproxy/ratelimit", redisCPU, grpc, peer, 0, 1.5})
	}
	return append(all,
		target{"leased: Redis commands of a decision", commandsEach, leasedCase.String(), "", 0, 0.01},
		target{"leased: decisions/s on a key", perSecond, leasedCase.String(), "", 10_000, 0},
		target{"leased: server CPU × echo that decides nothing", cpu, leasedCase.String(), of("HTTP", echoOnly, plain), 0, 1.2})
}

func (r results) targets(w io.Writer) {
	fmt.Fprintln(w, "\ntarget\tbound\tmeasured\t")
	for _, t := range targets() {
		if i, ok := r.ratio(t.of, t.name, t.to); ok {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.what, t.bound(), i, t.verdict(i))
		}
	}
	row := func(what string, i interval, most float64) {
		t := target{most: most}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", what, t.bound(), i, t.verdict(i))
	}
	for _, name := range []string{keyGCRA, keyBucket} {
		if b, found := r.keyBytes[name]; found {
			row("bytes of a key: "+name, b, 140)
		}
	}
	if f, found := r.library[benchLeased]; found {
		row("library, leased: ns", intervalOf(f.ns), 250)
		row("library, leased: allocations", intervalOf(f.allocs), 0)
	}
	if f, found := r.library[benchDenied]; found {
		row("library, denied from cache: ns", intervalOf(f.ns), 150)
	}
}

func (t target) bound() string {
	if t.least > 0 {
		return "≥ " + strconv.FormatFloat(t.least, 'f', -1, 64)
	}
	return "≤ " + strconv.FormatFloat(t.most, 'f', -1, 64)
}

// verdict is "met" where the whole interval is within the bound.
func (t target) verdict(i interval) string {
	within := func(x float64) bool { return t.least > 0 && x >= t.least || t.least == 0 && x <= t.most }
	switch ends := []float64{i.low, i.high}; {
	case !slices.ContainsFunc(ends, func(x float64) bool { return !within(x) }):
		return "met"
	case within(i.median):
		return "met by the median"
	default:
		return "missed"
	}
}
