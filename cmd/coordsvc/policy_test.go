package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const policies = "../../examples/policies"

// policyCommand runs the program with no settings.
func policyCommand(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = run(t.Context(), append([]string{"policy"}, args...), func(string) string { return "" }, &out, &errOut, func(addresses) {})
	return out.String(), err
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPolicyLint(t *testing.T) {
	out, err := policyCommand(t, "lint", policies)
	if err != nil || !strings.HasPrefix(out, "12 policies are right, version ") || strings.Count(out, "\n") != 1 {
		t.Errorf("got %q, %v", out, err)
	}
	wrong := policyFile(t, "version: 1\npolicies:\n  - {name: p, on_store_failure: later, limits: [{name: l, key: [user], algorithm: fixed_window, rate: 5/s, burst: 3}]}\n")
	out, err = policyCommand(t, "lint", wrong)
	want := wrong + ":3: policies[0].limits[0].burst: is no field of fixed_window, which has rate\n" +
		wrong + ":3: policies[0].on_store_failure: must be fail_open, fail_closed or local\n"
	if out != want || err == nil || err.Error() != "2 mistakes" {
		t.Errorf("got %q, %v\nwant %q", out, err, want)
	}
	apart := policyFile(t, "version: 1\npolicies:\n  - {name: p, on_store_failure: local, limits: [{name: l, key: [user], algorithm: gcra, rate: 5/s}, {name: m, key: [route], algorithm: gcra, rate: 5/s}]}\n")
	out, err = policyCommand(t, "lint", apart)
	if err != nil || !strings.HasPrefix(out, "note: "+apart+`:3: policies[0].limits[1].key: limit "m" lacks user of the policy's slot`) {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestPolicyExplain(t *testing.T) {
	out, err := policyCommand(t, "explain", "--policy", "search", "--descriptor", "tenant=trial-7", "--descriptor", "user=a=b", policies)
	want := `policy search: stage enforce, a refusal counts; while the store fails: local
limit user: token_bucket 10/s, burst 20
  key "7:default6:search4:user4:debt28:6:tenant7:trial-74:user3:a=b"
limit tenant: sliding_window_counter 100/m, by override 2 for tenant: trial-*
  key "7:default6:search6:tenant6:window17:6:tenant7:trial-7"
`
	if err != nil || out != want {
		t.Errorf("got\n%s%v\nwant\n%s", out, err, want)
	}
	keys := policyFile(t, "route "+strings.Repeat("A", 43)+"=\nseal "+strings.Repeat("B", 43)+"=\n")
	out, err = policyCommand(t, "explain", "--policy", "search", "--descriptor", "tenant=trial-7", "--descriptor", "user=a=b", "--keys-file", keys, "--redis-prefix", "one:", policies)
	if lines := regexp.MustCompile(`(?m)^  in Redis one:\{[A-Za-z0-9_-]{6}\}b:[A-Za-z0-9_-]{16}$`).FindAllString(out, -1); err != nil || len(lines) != 2 || lines[0] == lines[1] {
		t.Errorf("got\n%s%v", out, err)
	}
	apart := policyFile(t, `version: 1
policies:
  - name: default
    on_store_failure: fail_open
    stage: {canary: 1}
    limits:
      - {name: l, key: [user], algorithm: leaky_bucket, rate: 5/90s, queue: 7}
      - {name: m, key: [route], algorithm: concurrency, slots: 2, slot_ttl: 1500ms}
      - {name: n, key: [user, route], algorithm: sliding_window_log, rate: 5/2d}
`)
	out, err = policyCommand(t, "explain", "--tenant", "t", "--descriptor", "user=u", "--descriptor", "route=r", apart)
	for _, line := range []string{
		"stage canary 1 %, a refusal does not count;", "limit l: leaky_bucket 5/90s, queue 7\n", "limit m: concurrency 2 slots of 1500ms\n",
		"limit n: sliding_window_log 5/2d\n", "  in another slot than the first limit: taken in a second step\nlimit n", `key "1:t7:default`,
	} {
		if err != nil || !strings.Contains(out, line) {
			t.Errorf("got %v and\n%s without %s", err, out, line)
		}
	}
}

func TestPolicyExplainsShards(t *testing.T) {
	file := policyFile(t, "version: 1\npolicies:\n  - {name: default, on_store_failure: fail_open, limits: [{name: l, key: [tenant], algorithm: gcra, rate: 100/s, shards: 16}]}\n")
	for descriptors, says := range map[string]string{
		"user=ann": `\n  one of 16 shards, each with its part of the limit: this request meets number [0-9]+\n`,
		"":         `\n  one of 16 shards, each with its part of the limit: requests like this one take turns, of which this is one\n`,
	} {
		args := []string{"explain", "--descriptor", "tenant=x"}
		if descriptors != "" {
			args = append(args, "--descriptor", descriptors)
		}
		out, err := policyCommand(t, append(args, file)...)
		if err != nil || !regexp.MustCompile(says).MatchString(out) {
			t.Errorf("got %v and\n%s", err, out)
		}
	}
}

func TestPolicyExplainsLeases(t *testing.T) {
	for _, c := range []struct{ stage, rate, says string }{
		{"enforce", "100/s", "mode leased: up to 50 units more than the limits say may pass at any time\n"},
		{"shadow", "100/s", "mode leased: in this stage decided as exact\n"},
		{"enforce", "10/s", "mode leased: too few units for batches, or full again within 100 ms, so decided as exact\n"},
	} {
		file := policyFile(t, "version: 1\npolicies:\n  - {name: default, on_store_failure: fail_open, stage: "+c.stage+", mode: leased, max_overshoot: 50, limits: [{name: l, key: [user], algorithm: gcra, rate: "+c.rate+"}]}\n")
		out, err := policyCommand(t, "explain", "--descriptor", "user=u", file)
		if err != nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: got %q, %v", c.says, out, err)
		}
		out, err = policyCommand(t, "lint", file)
		if err != nil || strings.Contains(out, "has too few units for batches") != (c.rate == "10/s") {
			t.Errorf("%s: lint says %q, %v", c.rate, out, err)
		}
	}
	apart := policyFile(t, "version: 1\npolicies:\n  - {name: default, on_store_failure: fail_open, mode: leased, max_overshoot: 50, limits: [{name: l, key: [user], algorithm: gcra, rate: 100/s}, {name: m, key: [app], algorithm: gcra, rate: 100/s}]}\n")
	if out, err := policyCommand(t, "lint", apart); err == nil || !strings.Contains(out, "policies[0].mode: mode leased needs all limits in one slot: slot must name descriptors that limit m has, too") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestWrongPolicyCommands(t *testing.T) {
	for _, c := range []struct {
		why, says string
		args      []string
	}{
		{"no command", "usage: coordsvc policy lint", nil},
		{"another", "usage: coordsvc policy lint", []string{"check"}},
		{"no file", "usage: coordsvc policy lint", []string{"lint"}},
		{"two files", "usage: coordsvc policy lint", []string{"lint", policies, policies}},
		{"no such file", "no such file", []string{"lint", "nowhere"}},
		{"another policy", "unknown policy", []string{"explain", "--policy", "none", policies}},
		{"a descriptor is missing", `lack "user"`, []string{"explain", "--policy", "search", "--descriptor", "tenant=t", policies}},
		{"a descriptor without a value", "write name=value", []string{"explain", "--descriptor", "user", policies}},
		{"no such keys file", "read the keys file", []string{"explain", "--policy", "search", "--descriptor", "tenant=t", "--descriptor", "user=u", "--keys-file", "nowhere", policies}},
		{"a descriptor twice", `"user" is given twice`, []string{"explain", "--descriptor", "user=a", "--descriptor", "user=b", policies}},
	} {
		if _, err := policyCommand(t, c.args...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %s", c.why, err, c.says)
		}
	}
}
