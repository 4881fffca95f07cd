package integration

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

var update = flag.Bool("update", false, "write what the README's commands print into the README")

// A step is one command of the README and what it prints there.
type step struct{ command, output string }

const (
	blockStart = "```console\n"
	blockEnd   = "```"
)

// TestReadme runs the README's console blocks in order, in one shell, beside a
// fresh service, and compares what they print. Ids, tokens and times are masked. A
// newcomer who runs them again sees the same, but for numbers that grow.
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
		return
	}
	time.Sleep(2100 * time.Millisecond) // until the bucket of the second step is full again
	for i, got := range runSteps(t, dir, s.url, steps) {
		if maskGrowing(got) != maskGrowing(steps[i].output) {
			t.Errorf("the second time $ %sprints\n%swhere the README has\n%s", steps[i].command, got, steps[i].output)
		}
	}
}

// The commands for DynamoDB work as they stand, but for the address and the last one,
// which serves.
func TestReadmeOnDynamoDB(t *testing.T) {
	db := engine.DynamoDB(t)
	raw, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(raw), "\n## With DynamoDB\n")
	_, block, _ = strings.Cut(block, "```sh\n")
	block, _, _ = strings.Cut(block, "\n```")
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"go build -o coordsvc ./cmd/coordsvc", "ln -s " + program + " coordsvc"},
		{"COORD_DYNAMODB=aws", "COORD_DYNAMODB=" + db.Endpoint},
		{"./coordsvc serve", "./coordsvc serve --http-addr 127.0.0.1:0 --ops-addr 127.0.0.1:0 & sleep 60; kill $!"},
	} {
		if strings.Count(block, change[0]) != 1 {
			t.Fatalf("the block has no %q:\n%s", change[0], block)
		}
		block = strings.Replace(block, change[0], change[1], 1)
	}
	// A shell of its own group, so that serve ends with it.
	cmd := exec.Command("sh", "-ec", block)
	cmd.Dir = t.TempDir()
	cmd.Env = append(db.Env(), "PATH="+os.Getenv("PATH"), "COORD_TABLE_PREFIX="+db.Prefix(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, key, ready := []string{}, false, false
	for lines := bufio.NewScanner(stdout); !ready && lines.Scan(); {
		said = append(said, lines.Text())
		key = key || strings.HasPrefix(lines.Text(), "csk_")
		ready = strings.HasPrefix(lines.Text(), "ready http=")
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	if !key || !ready {
		t.Errorf("a key: %v, ready: %v\n%s\n%s", key, ready, strings.Join(said, "\n"), stderr.String())
	}
}

// maskGrowing masks also what is another number each time.
func maskGrowing(s string) string {
	return regexp.MustCompile(`"(fencing_token|high_water|session_version|version)":\d+`).ReplaceAllString(mask(s), `"$1":N`)
}

// Every setting of the program has a row in the README, and no other has one.
func TestReadmeSettings(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := output(t, nil, "serve", "--help")
	var told, rows []string
	for _, m := range regexp.MustCompile(`(?m)(.*); (COORD_[A-Z_]+)$`).FindAllStringSubmatch(help, -1) {
		if !strings.Contains(m[1], "not supported yet") && !strings.Contains(m[1], "linked for tests") {
			told = append(told, m[2])
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(COORD_[A-Z_]+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		rows = append(rows, m[1])
	}
	slices.Sort(told)
	slices.Sort(rows)
	if len(told) < 10 || !slices.Equal(told, rows) {
		t.Errorf("serve --help has %v\nthe README has  %v", told, rows)
	}
}

// What the README shows of the libraries compiles: each line stands in an example that
// is run.
func TestReadmeCode(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var examples []byte
	for _, path := range []string{"../embedded/readme_example_test.go", "../client/example_test.go"} {
		example, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, example...)
	}
	blocks := strings.Split(string(raw), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the README shows no Go")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, blockEnd)
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(line, " // ")
			if line = strings.TrimSpace(line); !strings.Contains(string(examples), line) {
				t.Errorf("no example has the line %s", line)
			}
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

// Every link between the pages leads somewhere, to its heading too.
func TestLinks(t *testing.T) {
	links := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "..":
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(raw), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			} else if heading != "" && !slices.Contains(headings(t, to), heading) {
				t.Errorf("%s links to %s, which has the headings %v", path, m[1], headings(t, to))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 30 {
		t.Errorf("%d links were found", links)
	}
}

// headings are a page's, as links name them.
func headings(t *testing.T, path string) (all []string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(raw), -1) {
		plain := regexp.MustCompile(`[^\w\s-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

// Examples are there to be copied: nobody else can import what is internal.
func TestExamplesCanBeCopied(t *testing.T) {
	found := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "internal" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "example_test.go") && (!strings.Contains(path, "/examples/") || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go")):
			return nil
		}
		found++
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), `"github.com/coordsvc/coordsvc/internal/`) {
			t.Errorf("%s imports an internal package", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 15 {
		t.Errorf("%d files of examples were found", found)
	}
}
