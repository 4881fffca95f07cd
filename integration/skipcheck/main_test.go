package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// judge runs `go test -json` on a module with the one test file and returns what
// skipcheck makes of it.
func judge(t *testing.T, testFile string, args ...string) (out string, complete bool) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":    "module example.com/m\n\ngo 1.26\n",
		"m.go":      "package m\n",
		"m_test.go": "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n" + testFile,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	events, _ := cmd.CombinedOutput() // its exit code is what skipcheck finds out too
	var b strings.Builder
	s := newSummary(&b)
	if err := s.read(strings.NewReader(string(events))); err != nil {
		t.Fatal(err)
	}
	complete = s.close()
	t.Logf("%s", b.String())
	return b.String(), complete
}

func TestSkipcheckJudgesRuns(t *testing.T) {
	for _, step := range []struct {
		why      string
		file     string
		last     string // last line
		shows    []string
		complete bool
	}{
		{
			"all pass, a subtest among them", `func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Log("chatter") }) }`,
			"2 passed, 0 failed, 0 skipped",
			[]string{"ok  \texample.com/m\t"},
			true,
		},
		{
			"a skip is named with its reason", `func TestA(t *testing.T) {}; func TestB(t *testing.T) { t.Skip("no engine") }`,
			"1 passed, 0 failed, 1 skipped",
			[]string{"--- SKIP: TestB", "no engine", "ok  \texample.com/m\t"},
			false,
		},
		{
			"a skipped subtest counts", `func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Skip("no engine") }) }`,
			"1 passed, 0 failed, 1 skipped",
			[]string{"--- SKIP: TestA/sub"},
			false,
		},
		{
			"a failure is shown", `func TestA(t *testing.T) { t.Error("wrong sum") }`,
			"0 passed, 1 failed, 0 skipped",
			[]string{"--- FAIL: TestA", "wrong sum", "FAIL\texample.com/m\t"},
			false,
		},
		{
			"a panic fails the test under way", `func TestA(t *testing.T) { panic("boom") }`,
			"0 passed, 1 failed, 0 skipped",
			[]string{"boom"},
			false,
		},
		{
			"an exit fails the test under way", `func TestA(t *testing.T) { os.Exit(3) }`,
			"0 passed, 1 failed, 0 skipped",
			[]string{"FAIL\texample.com/m\t"},
			false,
		},
		{
			"a package whose tests never begin fails", `func TestMain(m *testing.M) { os.Exit(3) }`,
			"0 passed, 1 failed, 0 skipped",
			[]string{"FAIL\texample.com/m\t"},
			false,
		},
		{
			"a package that does not build fails", `func TestA(t *testing.T) { undefined() }`,
			"0 passed, 1 failed, 0 skipped",
			[]string{"undefined: undefined", "FAIL\texample.com/m [build failed]"},
			false,
		},
		{
			"no test is no success", `var _ testing.TB`,
			"0 passed, 0 failed, 0 skipped", nil, false,
		},
	} {
		t.Run(step.why, func(t *testing.T) {
			out, complete := judge(t, step.file)
			if complete != step.complete {
				t.Errorf("complete = %v, want %v", complete, step.complete)
			}
			if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[len(lines)-1] != step.last {
				t.Errorf("last line %q, want %q", lines[len(lines)-1], step.last)
			}
			for _, want := range step.shows {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q", want)
				}
			}
			if strings.Contains(out, "chatter") {
				t.Error("output of a test that passed is shown")
			}
		})
	}
}

func TestSkipcheckTimeoutFailsTestUnderWay(t *testing.T) {
	out, complete := judge(t, `func TestA(t *testing.T) { select {} }`, "-timeout=200ms")
	if complete || !strings.Contains(out, "panic: test timed out") || !strings.HasSuffix(out, "0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("complete = %v", complete)
	}
}

func TestSkipcheckCutOffRunIsIncomplete(t *testing.T) {
	s := newSummary(new(strings.Builder))
	err := s.read(strings.NewReader(`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.close() || s.passed != 1 || s.failed != 1 {
		t.Errorf("%d passed, %d failed; want 1 and 1", s.passed, s.failed)
	}
}
