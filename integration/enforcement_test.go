package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// The exercise in examples/enforcement-action passes on a service that it starts
// itself, as the README has it, and on the binary with either set of stores.
func TestEnforcementAction(t *testing.T) {
	program := filepath.Join(t.TempDir(), "enforcement-action")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/coordsvc/coordsvc/examples/enforcement-action").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Run("by itself", func(t *testing.T) {
		t.Parallel()
		exercise(t, program)
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		exerciseOn(t, program, s)
		exerciseOn(t, program, s) // again is as good
	})
	t.Run("DynamoDB and Redis", func(t *testing.T) {
		t.Parallel()
		db := engine.DynamoDB(t)
		env, key := production(t, db.Env(), db.Prefix(t))
		createTables(t, env)
		s := start(t, append(env, "COORD_LEASE_GUARD_MS=500", "COORD_REDIS_BUDGET_MS=200",
			"COORD_REDIS_URL="+engine.Redis(t).URL(), "COORD_REDIS_PREFIX="+engine.FreshPrefix())...)
		s.key = key
		exerciseOn(t, program, s)
	})
}

// exerciseOn runs the exercise on the service and looks at what the paused worker's account has become.
func exerciseOn(t *testing.T, program string, s *service) {
	t.Helper()
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(s.key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := exercise(t, program, "-url", s.url, "-key-file", keyFile)
	name := regexp.MustCompile(`session of mod-5-(\w+)`).FindStringSubmatch(said)
	if name == nil {
		t.Fatalf("no moderator is named:\n%s", said)
	}
	a := s.call(200, "GET", "/v1/protected/account%2Fdia-"+name[1]+"/state", "")
	if a.number("version") != 1 || a.number("fencing_token") != 2 || a.text("mode") != "lease" {
		t.Errorf("the paused worker's account: %s", a.raw)
	}
}

// exercise runs the program, which fails where an action was carried out twice or a late write stood.
func exercise(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends a service of its own
	out, err := cmd.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("enforcement-action: %v\n%s", err, said)
	}
	for _, want := range []string{"refused: token 1 is stale", "8 answers, one of each call", "a run before wrote it", "refused: rate_limited", "refused: logged out", "no late write was accepted\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	return said
}
