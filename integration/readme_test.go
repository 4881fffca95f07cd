package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the README's commands print into the README")

// A step is one command of the README and what it prints there.
type step struct{ command, output string }

const (
	blockStart = "```console\n"
	blockEnd   = "```"
)

// TestReadme runs the README's console blocks in order, in one shell, beside a
// fresh service, and compares what they print. Ids, tokens and times are masked.
func TestReadme(t *testing.T) {
	path := filepath.Join("..", "README.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	readme := string(raw)
	steps := consoleSteps(readme)
	if len(steps) < 5 {
		t.Fatalf("the README has %d console commands, want at least 5", len(steps))
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing: install it to run the README's blocks")
	}
	dir := t.TempDir()
	s := start(t, "COORD_DATA_DIR="+filepath.Join(dir, "coordsvc-data"))
	written, rest := "", readme
	for i, got := range runSteps(t, dir, s.url, steps) {
		if *update {
			before, after, _ := strings.Cut(rest, "$ "+steps[i].command+steps[i].output)
			written, rest = written+before+"$ "+steps[i].command+got, after
			continue
		}
		if mask(got) != mask(steps[i].output) {
			t.Errorf("$ %sprints\n%swhere the README has\n%s", steps[i].command, got, steps[i].output)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(written+rest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// consoleSteps finds the commands, which begin with "$ " and go on after a backslash, and the lines after each.
func consoleSteps(readme string) []step {
	var steps []step
	for _, block := range strings.Split(readme, blockStart)[1:] {
		block, _, _ = strings.Cut(block, blockEnd)
		continued := false
		for line := range strings.Lines(block) {
			command, begins := strings.CutPrefix(line, "$ ")
			switch {
			case begins:
				steps = append(steps, step{command: command})
			case continued:
				steps[len(steps)-1].command += line
			default:
				steps[len(steps)-1].output += line
			}
			continued = (begins || continued) && strings.HasSuffix(line, "\\\n")
		}
	}
	return steps
}

// runSteps returns what each command prints. The README's address becomes that of the service.
func runSteps(t *testing.T, dir, url string, steps []step) []string {
	t.Helper()
	const mark = "@@ next command @@"
	var script strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&script, "%s\nprintf '%%s\\n' '%s'\n", strings.ReplaceAll(s.command, "http://127.0.0.1:8080", url), mark)
	}
	cmd := exec.Command("sh", "-c", script.String())
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the README's commands: %v\n%s", err, out)
	}
	parts := strings.Split(strings.ReplaceAll(string(out), url, "http://127.0.0.1:8080"), mark+"\n")
	if len(parts) != len(steps)+1 {
		t.Fatalf("%d outputs of %d commands:\n%s", len(parts)-1, len(steps), out)
	}
	for i, p := range parts {
		if p != "" && !strings.HasSuffix(p, "\n") {
			parts[i] = p + "\n" // curl ends without one
		}
	}
	return parts[:len(steps)]
}

// masks are the parts of an answer that differ from run to run.
var masks = []struct{ pattern, with string }{
	{`\b(cst|ses|csk|key|lse|ls)_[0-9A-Za-z_-]+`, "${1}_MASKED"},
	{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`, "INSTANT"},
	{`"(valid_for_ms|retry_after_ms|reset_ms)":\d+`, `"$1":MILLISECONDS`},
	{`"request_id":"[^"]*"`, `"request_id":"MASKED"`},
}

func mask(s string) string {
	for _, m := range masks {
		s = regexp.MustCompile(m.pattern).ReplaceAllString(s, m.with)
	}
	return s
}

func TestMaskHidesOnlyWhatDiffers(t *testing.T) {
	const a = `{"token":"cst_abc","valid_for_ms":59998,"fencing_token":1,"expires_at":"2026-01-02T03:04:05.678Z"}`
	const b = `{"token":"cst_xyz","valid_for_ms":60000,"fencing_token":1,"expires_at":"2027-01-02T03:04:05.678Z"}`
	if mask(a) != mask(b) {
		t.Errorf("%s differs from %s", mask(a), mask(b))
	}
	if mask(a) == mask(strings.Replace(b, `"fencing_token":1`, `"fencing_token":2`, 1)) {
		t.Error("a fencing token was masked")
	}
}
