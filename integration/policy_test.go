package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// policyFile is one of a policy that lets burst units pass, and no more for months.
func policyFile(burst int) string {
	return fmt.Sprintf(`version: 1
policies:
  - name: search
    owner: search-team
    on_store_failure: fail_closed
    limits:
      - {name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: %d}
`, burst)
}

func writePolicy(t *testing.T, path string, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// metric is the value of a line of /metrics.
func (s *service) metric(name string) string {
	s.t.Helper()
	resp, err := http.Get(s.ops + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// within waits for a change of policy files. It is promised within 5 s, on a machine
// that has nothing else to do; a test waits longer and logs how long.
func (s *service) within(why string, holds func() bool) {
	s.t.Helper()
	begun := time.Now()
	for ; !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			s.t.Fatalf("%s: not within 20 s", why)
		}
	}
	s.t.Logf("%s: after %v", why, time.Since(begun))
}

func TestPolicyFilesAreServedAndReloaded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "search.yaml")
	writePolicy(t, path, policyFile(10))
	s := start(t, "COORD_POLICY_PATH="+dir)
	check := func(want int, cost int64) answer {
		t.Helper()
		return s.call(want, "POST", "/v1/ratelimit/check", fmt.Sprintf(`{"policy":"search","descriptors":{"user":"u"},"cost":%d}`, cost))
	}
	version := func() string { return s.call(200, "GET", "/v1/ratelimit/policies", "").text("version") }
	check(200, 8)
	first := s.call(200, "GET", "/v1/ratelimit/policies", "")
	if !strings.Contains(first.raw, `"owner":"search-team"`) || !strings.Contains(first.raw, `"burst":10`) || strings.Contains(first.raw, `"name":"default"`) {
		t.Errorf("the live set is not that of the file: %s", first.raw)
	}
	s.call(404, "POST", "/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"t","user":"u"}}`)

	writePolicy(t, path, policyFile(20))
	s.within("a changed file", func() bool { return version() != first.text("version") })
	second := version()
	if got := check(200, 11); !strings.Contains(got.raw, `"remaining":1`) {
		t.Errorf("burst 10 to 20 with 8 used leaves 12, and 1 after 11 more: %s", got.raw)
	}

	writePolicy(t, path, strings.Replace(policyFile(30), "owner", "ownre", 1))
	s.within("a wrong file", func() bool { return s.metric("coordsvc_policy_files_right") == "0" })
	if version() != second || s.metric(`coordsvc_policy_reloads_total{result="refused"}`) != "1" {
		t.Errorf("a wrong file changes the live set, or is not counted")
	}
	check(429, 2)

	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.within("SIGHUP", func() bool { return s.metric(`coordsvc_policy_reloads_total{result="refused"}`) == "2" })
	writePolicy(t, path, policyFile(20))
	s.within("a mended file", func() bool { return s.metric("coordsvc_policy_files_right") == "1" })
	if version() != second {
		t.Error("the same file has another version")
	}
	check(200, 1)
	s.kill()
	if log := s.stderr.String(); !strings.Contains(log, path+":4: policies[0].ownre: is no field here") {
		t.Errorf("the log does not name the mistake:\n%s", log)
	}
}

func TestWrongPolicyFilesRefuseToStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	writePolicy(t, path, strings.NewReplacer("owner", "ownre", "fail_closed", "closed").Replace(policyFile(0)))
	_, stderr, err := output(t, []string{"COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0", "COORD_POLICY_PATH=" + path}, "serve")
	if err == nil {
		t.Fatal("it starts")
	}
	for _, want := range []string{"COORD_POLICY_PATH=", path + ":4: policies[0].ownre", path + ":5: policies[0].on_store_failure", path + ":7: policies[0].limits[0].burst"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("the message lacks %q:\n%s", want, stderr)
		}
	}
}
