package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A dressed coordsvc counts and traces so much.
type dressed struct {
	name   string
	beside string // what it adds to, "" for nothing
	env    []string
	*subject
	cpu   []float64 // by round: seconds per 100,000 decisions
	spans float64   // of a decision, as the process counts those it sent
	lost  float64   // of a decision, of those that it did not send
}

const (
	bare     = "no metrics"
	measured = "metrics"
)

// instrumentation measures what metrics and traces cost of a decision's CPU: each kind
// is a process of its own, over the same Redis, and takes its turn in every round.
func instrumentation(ctx context.Context, o options, out io.Writer) error {
	l, err := openLab(ctx, o.program, "-ldflags", "-X main.testHooks=1") // or it could not be without metrics
	if err != nil {
		return err
	}
	defer l.close()
	redisAddr, _, err := l.redis(ctx)
	if err != nil {
		return err
	}
	collector, err := collect(ctx)
	if err != nil {
		return err
	}
	all := kinds(collector)
	for i, d := range all {
		home := &lab{dir: filepath.Join(l.dir, strconv.Itoa(i)), coordsvc: l.coordsvc}
		d.subject, err = startOurs(ctx, home, redisAddr, append(d.env, fmt.Sprintf("COORD_REDIS_PREFIX=%d:", i))...)
		l.processes = append(l.processes, home.processes...)
		if err != nil {
			return fmt.Errorf("start it with %s: %w", d.name, err)
		}
	}
	requests, err := limitCase{"HTTP", coordsvc, plain, true}.requests(uniform(o.requests), func(int) bool { return false })
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, %d cores, %d rounds × %d decisions over HTTP, %d connections\n", runtime.Version(), runtime.NumCPU(), o.rounds, o.requests, o.connections)
	random := rand.New(rand.NewPCG(9, 10)) //nolint:gosec // reproducible, nothing secret
	for round := range o.rounds + 1 {      // the first is not counted
		for _, i := range random.Perm(len(all)) {
			if err := all[i].measure(ctx, requests, o.connections, round > 0); err != nil {
				return fmt.Errorf("with %s: %w", all[i].name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round, o.rounds)
	}
	return reportInstrumentation(ctx, out, all, float64(o.requests*(o.rounds+1)))
}

// kinds are no instrumentation, and each part of it on top.
func kinds(collector string) []*dressed {
	all := []*dressed{
		{name: bare, env: []string{"COORD_TEST_METRICS=off"}},
		{name: measured, beside: bare},
	}
	for _, share := range []string{"0", "0.01", "1"} {
		all = append(all, &dressed{name: "metrics and traces of " + share, beside: measured, env: []string{
			"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=" + share,
			"OTEL_BSP_SCHEDULE_DELAY=" + strconv.FormatInt(spanDelay.Milliseconds(), 10),
		}})
	}
	return all
}

// spanDelay is how long spans wait for others at most, so that a round's are sent within it.
const spanDelay = 100 * time.Millisecond

func (d *dressed) measure(ctx context.Context, requests [][]byte, connections int, counts bool) error {
	callers := make([]caller, connections)
	for i := range callers {
		var err error
		if callers[i], err = dialHTTP(ctx, d.http, byStatus); err != nil {
			return err
		}
		defer callers[i].close()
	}
	runtime.GC()
	before, err := d.subject.cpu()
	if err != nil {
		return err
	}
	_, refused, err := send(ctx, callers, requests)
	if err != nil {
		return err
	}
	time.Sleep(3 * spanDelay) // what is sent after the answers belongs to them
	after, err := d.subject.cpu()
	if refused > 0 {
		return fmt.Errorf("%d were refused", refused)
	}
	if counts {
		d.cpu = append(d.cpu, (after-before).Seconds()*100_000/float64(len(requests)))
	}
	return err
}

// collect takes spans and throws them away.
func collect(ctx context.Context) (url string, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	take := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	go func() { _ = http.Serve(listener, take) }() //nolint:gosec // ends with the program
	return "http://" + listener.Addr().String(), nil
}

// readSpans reads what the process counted of its spans.
func (d *dressed) readSpans(ctx context.Context, decisions float64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.mallocsAt, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(page)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, "coordsvc_trace_spans_total{") {
			continue
		}
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		if strings.Contains(name, `"sent"`) {
			d.spans += n / decisions
		} else {
			d.lost += n / decisions
		}
	}
	return nil
}

func reportInstrumentation(ctx context.Context, out io.Writer, all []*dressed, decisions float64) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "with\tCPU s/100k decisions\tbeside\t% more CPU\tspans sent, lost of a decision")
	by := map[string]*dressed{}
	for _, d := range all {
		by[d.name] = d
		if err := d.readSpans(ctx, decisions); err != nil {
			return err
		}
		more, beside := "", ""
		if to := by[d.beside]; to != nil {
			percents := make([]float64, len(d.cpu))
			for i := range percents {
				percents[i] = 100 * (d.cpu[i]/to.cpu[i] - 1)
			}
			i := intervalOf(percents)
			more, beside = fmt.Sprintf("%.1f [%.1f, %.1f]", i.median, i.low, i.high), to.name
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f, %.2f\n", d.name, intervalOf(d.cpu), beside, more, d.spans, d.lost)
	}
	return w.Flush()
}
