package integration

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/coordsvc/coordsvc/integration/engine"
)

const (
	rulesFile   = "../infra/prometheus/rules.yml"
	grafanaDir  = "../infra/grafana"
	runbooksDir = "../docs/runbooks"
)

// The alerts do what their tests say, and the tests notice where one does not.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := engine.Promtool(t)
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("../infra/prometheus/rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	run := func(rules string) (string, error) {
		dir := t.TempDir()
		for name, text := range map[string]string{"rules.yml": rules, "rules_test.yml": string(tests)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command(promtool, "test", "rules", filepath.Join(dir, "rules_test.yml")).CombinedOutput()
		return string(out), err
	}
	if out, err := run(string(rules)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, a := range readRules(t) {
		if a.Alert != "" && !strings.Contains(string(tests), "alertname: "+a.Alert+"\n") {
			t.Errorf("%s is never expected to fire", a.Alert)
		}
	}
	for what, change := range map[string][2]string{
		"the bound of bypasses": {"ratio_rate1m > 0.005", "ratio_rate1m > 0.02"},
		"the time of bypasses":  {"> 0.005\n        for: 60s", "> 0.005\n        for: 10m"},
		"what is a bypass":      {"local|fail_open|fail_closed", "fail_open"},
		"what is an outage":     {"store_unavailable|outcome_unknown", "store_unavailable"},
		"what does not fail":    {`outcome!="ok"`, `outcome="failed"`},
		"what is asked of Redis": {`_total{source="redis"}[1m]))
      # The share of acquires`, `_total[1m]))
      # The share of acquires`},
		"what counts as a stage": {`outcome="refused"`, `outcome=~"refused|would_refuse"`},
	} {
		if !strings.Contains(string(rules), change[0]) {
			t.Fatalf("%s: the rules hold no %q", what, change[0])
		}
		if _, err := run(strings.Replace(string(rules), change[0], change[1], 1)); err == nil {
			t.Errorf("the tests do not notice another value of %s", what)
		}
	}
}

// A rule is a recorded expression or an alert.
type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T) (all []rule) {
	t.Helper()
	raw, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("%d rules", len(all))
	}
	return all
}

// comparison is what makes an alert's expression empty while all is well.
var comparison = regexp.MustCompile(`\s*(==|>)\s*[0-9.]+\s*$`)

// expressions are those of all rules, panels and runbooks, by where they stand. An
// alert's own is there without its bound as well.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range readRules(t) {
		if r.Record != "" {
			all["rule "+r.Record] = r.Expr
			continue
		}
		without := comparison.ReplaceAllString(r.Expr, "")
		if without == r.Expr {
			t.Errorf("%s compares with no number", r.Alert)
		}
		all["alert "+r.Alert] = without
	}
	panels(t, all)
	for path, text := range readRunbooks(t) {
		for i, block := range fenced(text, "promql") {
			all[path+" "+string(rune('1'+i))] = block
		}
	}
	return all
}

// panels adds the expressions of the dashboards, with the variables that Grafana fills in.
func panels(t *testing.T, all map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(grafanaDir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("dashboards: %v, %v", files, err)
	}
	uids := map[string]bool{}
	fill := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			UID    string
			Panels []struct {
				Title   string
				Targets []struct{ Expr, RefID string }
			}
		}
		if err := json.Unmarshal(raw, &dashboard); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if uids[dashboard.UID] || len(dashboard.Panels) == 0 {
			t.Errorf("%s: uid %q is another's, or there is no panel", path, dashboard.UID)
		}
		uids[dashboard.UID] = true
		for _, p := range dashboard.Panels {
			for _, target := range p.Targets {
				all[filepath.Base(path)+" "+p.Title+" "+target.RefID] = fill.Replace(target.Expr)
			}
		}
	}
}

// Every expression of an alert, a panel or a runbook finds data on a Prometheus that
// scrapes the service, under load and through faults of its stores.
func TestEveryPanelAndAlertFindsData(t *testing.T) {
	t.Parallel()
	wanted := expressions(t)
	l := startLoad(t)
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	prometheus := engine.StartPrometheus(t, rules, strings.TrimPrefix(l.ops, "http://"), strings.TrimPrefix(l.embedded.ops, "http://"))
	for _, r := range readRules(t) { // whole, with the bound
		if _, err := prometheus.Query(t.Context(), r.Expr); err != nil {
			t.Errorf("%s%s: %v", r.Record, r.Alert, err)
		}
	}
	asked := len(wanted)
	for end := time.Now().Add(2 * time.Minute); len(wanted) > 0 && time.Now().Before(end) && !t.Failed(); {
		l.round()
		maps.DeleteFunc(wanted, func(where, expr string) bool {
			n, err := prometheus.Query(t.Context(), expr)
			if err != nil {
				t.Errorf("%s: %v\n%s", where, err, expr)
			}
			return n > 0
		})
	}
	for _, where := range slices.Sorted(maps.Keys(wanted)) {
		t.Errorf("%s finds nothing:\n%s", where, wanted[where])
	}
	t.Logf("%d expressions found data, %d rounds of load", asked-len(wanted), l.rounds)
}
