package docker

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFigures prints the image's size, and how soon the image's binary is ready and how much
// memory it then takes, run on the machine itself. It judges none of them: `make figures` keeps
// them. The other tests do not run beside it.
func TestFigures(t *testing.T) {
	s := newStack(t, "coordsvc", "tables", "dynamodb", "valkey")
	s.publish = map[string]string{"dynamodb": "8000", "valkey": "6379"}
	s.up("tables", "valkey")
	s.await("tables", "service_completed_successfully")
	healthy(t, s.running["valkey"], "healthy")

	runs, idle := 3, time.Second
	if os.Getenv("COORD_TEST_DEPTH") == "proof" {
		runs, idle = 11, 10*time.Second
	}
	image := s.project.Services["coordsvc"].Image
	info, err := daemon(t).ImageInspect(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("image: %.1f MB, all of it the binary but for certificates", float64(info.Size)/1e6)
	binary := s.extract()
	t.Logf("%d runs each, least, median and most; memory after %s without a request", runs, idle)
	for _, mode := range []struct {
		name string
		env  []string
	}{
		{"embedded, new data folder", nil},
		{"with DynamoDB and Redis", []string{
			"COORD_DYNAMODB=http://" + address(t, s.running["dynamodb"], "8000"), "COORD_REDIS_URL=redis://" + address(t, s.running["valkey"], "6379"),
			"COORD_KEYS_FILE=" + filepath.Join(s.secrets, "keys"), "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local",
		}},
	} {
		var starts, memory []float64
		for range runs {
			ready, kb := serveIdle(t, binary, idle, mode.env...)
			starts = append(starts, float64(ready.Microseconds())/1e3)
			memory = append(memory, float64(kb)*1024/1e6)
		}
		t.Logf("%s: from exec to ready %s ms, resident %s MB", mode.name, spread(starts), spread(memory))
	}
}

// extract takes the binary out of the image.
func (s *stack) extract() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "coordsvc")
	r, err := s.running["tables"].CopyFileFromContainer(s.t.Context(), "/coordsvc")
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := f.ReadFrom(r); err != nil {
		s.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// serveIdle runs the service until it has been idle for the time, and tells how long it took to be ready
// and how many KiB are then resident.
func serveIdle(t *testing.T, binary string, idle time.Duration, env ...string) (ready time.Duration, kb int64) {
	t.Helper()
	cmd := exec.Command(binary, "serve")
	cmd.Env = append([]string{"COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0", "COORD_DATA_DIR=" + filepath.Join(t.TempDir(), "data")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	ready = time.Since(begun)
	if err != nil || !strings.HasPrefix(line, "ready ") {
		t.Fatalf("serve: %q, %v", line, err)
	}
	time.Sleep(idle)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS: %s", status)
	}
	kb, err = strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return ready, kb
}

// spread is the least, the median and the most.
func spread(values []float64) string {
	slices.Sort(values)
	return fmt.Sprintf("%.1f / %.1f / %.1f", values[0], values[len(values)/2], values[len(values)-1])
}
