package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The suites that every store passes pass on stores in containers, and so do two services on
// them: integration/engine takes its engines from where the containers' ports are published.
func TestSuitesOnContainers(t *testing.T) {
	t.Parallel()
	s := newStack(t, "dynamodb", "valkey")
	s.publish = map[string]string{"dynamodb": "8000", "valkey": "6379"}
	inMemory := s.project.Services["dynamodb"]
	inMemory.Command = slices.DeleteFunc(slices.Clone(inMemory.Command), func(arg string) bool {
		return arg == "--db-path" || strings.HasPrefix(arg, "/data/") // every write would wait for the disk
	})
	s.project.Services["dynamodb"] = inMemory
	s.up("dynamodb", "valkey")
	for _, name := range []string{"dynamodb", "valkey"} {
		healthy(t, s.running[name], "healthy")
	}
	tables, cache := address(t, s.running["dynamodb"], "8000"), address(t, s.running["valkey"], "6379")
	for _, run := range []struct {
		tests    string
		packages string
	}{
		{
			"^(TestDynamoDB|TestDynamoStore|TestStore)$",
			"lease/dynamolease fencing/dynamofence quota/dynamoquota idempotency/dynamoidempotency session/dynamosession internal/auth/dynamoauth internal/audit/dynamoaudit",
		},
		{"^(TestRedis|TestScriptIsTheTransition|TestStoredLock|TestReadComputeWriteOverAdmits)$", "ratelimit/redislimit lock/redislock"},
		{
			"^(TestTwoNodesGrantALeaseOnce|TestTwoNodesShareSessions|TestTwoNodesAnswerARequestOnce|TestTwoNodesShareLocks|TestTwoNodesShareAQuota|TestTwoServicesShareOneBucket|TestVerifyCosts)$",
			"integration",
		},
	} {
		ran := suites(t, run.tests, strings.Fields(run.packages), "COORD_TEST_DYNAMODB="+tables, "COORD_TEST_REDIS="+cache)
		for _, name := range strings.Fields(run.packages) {
			if !strings.Contains(ran, "/"+name+"\t") {
				t.Errorf("%s ran on no container:\n%s", name, ran)
			}
		}
		for line := range strings.Lines(ran) {
			if !strings.Contains(line, tables) && !strings.Contains(line, cache) {
				t.Errorf("ran on something else: %s", line)
			}
		}
	}
}

// suites runs tests of the packages, and returns what they report of the engines they ran on.
func suites(t *testing.T, tests string, packages []string, env ...string) string {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	args := []string{"-C", root, "test", "-count=1", "-shuffle=on", "-timeout=5m", "-run", tests}
	if os.Getenv("COORD_TEST_RACE") != "" {
		args = append(args, "-race") // as `make test` has compiled them
	}
	for _, name := range packages {
		args = append(args, "./"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(append(os.Environ(), "COORD_TEST_REPORT="+report, "COORD_TEST_REQUIRE=dynamodb,redis"), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	ran, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	return string(ran)
}
