package integration

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// hooked builds the service with what only tests may set.
func hooked(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "coordsvc")
	out, err := exec.Command("go", "build", "-ldflags", "-X main.testHooks=1", "-o", path, "github.com/coordsvc/coordsvc/cmd/coordsvc").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// L23: a node whose clock is off by more than half the guard is not ready and takes
// over no lease; one that is off by less does both.
func TestL23ClockOffset(t *testing.T) {
	const offset = "COORD_TEST_CLOCK_OFFSET_MS"
	if _, stderr, err := output(t, []string{offset + "=1"}, "serve"); err == nil || !strings.Contains(stderr, offset) {
		t.Errorf("a binary for production takes the setting: %v %s", err, stderr)
	}
	program := hooked(t)
	db := engine.DynamoDB(t)
	for name, tc := range map[string]struct {
		offset string
		ready  int
		steal  string // the code of the refusal, empty for a grant
	}{
		"right":       {"0", 200, ""},
		"a bit ahead": {"500", 200, ""},
		"far ahead":   {"5000", 503, "clock_skew"},
		"far behind":  {"-1500", 503, "clock_skew"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, key := production(t, db.Env(), db.Prefix(t))
			createTables(t, env)
			s := &service{t: t, env: append(env, "COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0", "COORD_DATA_DIR="+t.TempDir(), offset+"="+tc.offset), program: program}
			s.run()
			t.Cleanup(s.kill)
			s.awaitReady()
			s.key = key
			resp, err := http.Get(s.ops + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != tc.ready {
				t.Errorf("/readyz: %d\n%s", resp.StatusCode, s.stderr)
			}
			grant := s.call(200, "POST", "/v1/leases/r/acquire", `{"owner":"a","ttl_ms":100}`) // nothing to take over
			time.Sleep(2200 * time.Millisecond)                                                // its time and the guard
			a, err := s.try("POST", "/v1/leases/r/acquire", key, `{"owner":"b","ttl_ms":100}`)
			if err != nil || a.text("code") != tc.steal {
				t.Errorf("taking over an expired lease: %v %s, want %q", err, a.raw, tc.steal)
			}
			if tc.steal == "" {
				return
			}
			s.call(204, "POST", "/v1/leases/r/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":1}`, grant.text("lease_id")))
			s.call(200, "POST", "/v1/leases/r/acquire", `{"owner":"b","ttl_ms":100}`) // no clock has to tell that it is free
		})
	}
}
