package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// binary builds the service once for all tests of this package.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "coordsvc-integration-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "coordsvc")
	out, err := exec.Command("go", "build", "-o", path, "github.com/coordsvc/coordsvc/cmd/coordsvc").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	engine.Listen(overhear)
	code := m.Run()
	if !policyOfTheRun(code == 0 && wholeRun()) {
		code = max(code, 1)
	}
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// wholeRun reports whether no test was left out by a flag, and every store could be had.
func wholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return engine.Found("dynamodb") && engine.Found("redis")
}

// command prepares the binary with nothing of this process's environment but PATH.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	if args[0] == "serve" {
		cmd.Env = append(cmd.Env, "AWS_SDK_UA_APP_ID="+nodeAgent)
	}
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// output runs the binary to its end.
func output(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := command(t, env, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// A service is one running process.
type service struct {
	t       *testing.T
	env     []string
	cmd     *exec.Cmd
	program string // another binary than the one for production
	url     string // of the API
	ops     string
	key     string // the first key, where there is one
	pasted  string // the line that a newcomer pastes
	started time.Duration
	stdout  *bytes.Buffer // once it has ended
	stderr  *bytes.Buffer
	ended   chan struct{}
	exit    error
}

// start runs serve and waits until it says that it is ready. Without settings
// it is embedded in a data folder of its own.
func start(t *testing.T, env ...string) *service {
	t.Helper()
	s := spawn(t, env...)
	s.awaitReady()
	return s
}

func spawn(t *testing.T, env ...string) *service {
	t.Helper()
	env = append([]string{"COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0", "COORD_DATA_DIR=" + filepath.Join(t.TempDir(), "data")}, env...)
	s := &service{t: t, env: env}
	s.run()
	t.Cleanup(s.kill)
	return s
}

func (s *service) run() {
	s.t.Helper()
	s.cmd = command(s.t, s.env, "serve")
	if s.program != "" {
		s.cmd.Path = s.program
	}
	s.stdout, s.stderr, s.ended = &bytes.Buffer{}, &bytes.Buffer{}, make(chan struct{})
	s.cmd.Stderr = s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	begun := time.Now()
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewReader(io.TeeReader(stdout, s.stdout))
	ready, _ := lines.ReadString('\n') // "" when the process ended
	s.started = time.Since(begun)
	if s.setting("COORD_DYNAMODB") == "" {
		s.pasted, _ = lines.ReadString('\n')
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		s.exit = s.cmd.Wait()
		close(s.ended)
	}()
	var api, ops string
	if _, err := fmt.Sscanf(ready, "ready http=%s ops=%s", &api, &ops); err == nil {
		s.url, s.ops = "http://"+api, "http://"+ops
	}
	if raw, err := os.ReadFile(filepath.Join(s.setting("COORD_DATA_DIR"), "first-key")); err == nil {
		s.key = strings.TrimSpace(string(raw))
	}
}

func (s *service) awaitReady() {
	s.t.Helper()
	if s.url == "" {
		<-s.ended
		s.t.Fatalf("serve ended before it was ready: %v\n%s", s.exit, s.stderr)
	}
}

// setting returns the last value given to a setting.
func (s *service) setting(name string) string {
	value := ""
	for _, e := range s.env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// kill ends the process as a power cut would.
func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// restart starts it again with the same settings.
func (s *service) restart() {
	s.t.Helper()
	s.run()
	s.awaitReady()
}

// An answer is a response, read whole.
type answer struct {
	status int
	header http.Header
	raw    string
	body   map[string]any
}

// try sends a request and returns an error only where no answer came.
func (s *service) try(method, path, key, body string) (answer, error) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		err = json.Unmarshal(raw, &a.body)
	}
	return a, err
}

// call sends a request with the first key and demands the status.
func (s *service) call(want int, method, path, body string) answer {
	s.t.Helper()
	a, err := s.try(method, path, s.key, body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.status != want {
		s.t.Fatalf("%s %s: got %d, want %d: %s", method, path, a.status, want, a.raw)
	}
	return a
}

// number reads an integer of the answer.
func (a answer) number(field string) int64 {
	f, _ := a.body[field].(float64)
	return int64(f)
}

func (a answer) text(field string) string {
	s, _ := a.body[field].(string)
	return s
}
