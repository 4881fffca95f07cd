package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A Prometheus is one of this test's own.
type Prometheus struct{ addr string }

// StartPrometheus starts one that scrapes the addresses as the job coordsvc, and
// evaluates the file of rules, each second. It ends with the test.
func StartPrometheus(t testing.TB, rules string, targets ...string) *Prometheus {
	t.Helper()
	p, source, err := startPrometheus(t, rules, targets)
	if err != nil {
		report("prometheus", "not run: "+err.Error())
	}
	demand(t, "prometheus", err)
	t.Cleanup(p.kill)
	report("prometheus", source)
	t.Logf("prometheus: %s", source)
	return &Prometheus{p.addr()}
}

const prometheusConfig = `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: coordsvc
    static_configs: [{targets: [%s]}]
`

func startPrometheus(t testing.TB, rules string, targets []string) (*process, string, error) {
	path, err := findBinary("prometheus")
	if err != nil {
		return nil, "", err
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	quoted := make([]string, len(targets))
	for i, target := range targets {
		quoted[i] = strconv.Quote(target)
	}
	text := fmt.Sprintf(prometheusConfig, rules, strings.Join(quoted, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	args := func(port int) []string {
		return []string{
			"--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
			"--web.listen-address", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "--log.level", "error",
		}
	}
	p, err := startProcess(path, args, prometheusAnswers)
	return p, path, err
}

func prometheusAnswers(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/ready", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("prometheus at %s: %w", addr, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus at %s: %s", addr, resp.Status)
	}
	return nil
}

// Query evaluates the expression now, and counts the samples that are numbers.
func (p *Prometheus) Query(ctx context.Context, expr string) (numbers int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("query: %w", err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("query: %w", err)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("query: %s", answer.Error)
	}
	for _, sample := range answer.Data.Result {
		if sample.Value[1] != "NaN" {
			numbers++
		}
	}
	return numbers, nil
}

// Promtool returns the path of promtool, which comes with Prometheus. It ends the test where there is none.
func Promtool(t testing.TB) string {
	t.Helper()
	path, err := findBinary("promtool")
	demand(t, "prometheus", err)
	return path
}
