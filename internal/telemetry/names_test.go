package telemetry

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// described takes a description apart: client_golang shows its fields in no other way.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)", unit: "[^"]*", constLabels: \{\}, variableLabels: \{([^}]*)\}`)

// bounded labels: what each stands for is in a fixed list, in the routes, or in the policy files.
var labels = []string{"code", "degraded", "method", "operation", "outcome", "policy", "reason", "result", "route", "source", "stage", "store", "type"}

// docs/metrics.md names every metric, its labels and its meaning, and no other; no label holds an id.
func TestEveryMetricIsInTheTable(t *testing.T) {
	m := New()
	m.WatchReady(func() bool { return true })
	m.addTraces()
	ch := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(ch)
	close(ch)
	var rows []string
	for d := range ch {
		found := described.FindStringSubmatch(d.String())
		if found == nil {
			if strings.Contains(d.String(), `"coordsvc_`) {
				t.Errorf("cannot be read: %s", d)
			}
			continue
		}
		name, help, names := found[1], found[2], strings.FieldsFunc(found[3], func(r rune) bool { return r == ',' })
		if !strings.HasPrefix(name, "coordsvc_") {
			continue
		}
		for _, label := range names {
			if !slices.Contains(labels, label) {
				t.Errorf("%s: the label %q is not known to be bounded", name, label)
			}
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", name, strings.Join(names, ", "), help))
	}
	slices.Sort(rows)
	raw, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var written []string
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "| `coordsvc_") {
			written = append(written, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(rows) < 15 || !slices.Equal(rows, written) {
		t.Errorf("the table in docs/metrics.md must be\n%s", strings.Join(rows, "\n"))
	}
}
