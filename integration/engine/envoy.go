package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// An EnvoyProxy is an Envoy that one test owns.
type EnvoyProxy struct {
	URL   string // of its listener
	Admin string // of its administration
}

// StartEnvoy starts an Envoy on the configuration that config makes for two ports of
// the loopback address. The binary is COORD_TEST_ENVOY, else envoy from PATH or
// .tools/bin. It has this process's environment and ends with the test.
func StartEnvoy(t testing.TB, config func(admin, listener int) string) *EnvoyProxy {
	t.Helper()
	p, listener, source, err := startEnvoy(t.TempDir(), config)
	if err != nil {
		report("envoy", "not run: "+err.Error())
	}
	demand(t, "envoy", err)
	t.Cleanup(p.kill)
	report("envoy", source)
	t.Logf("envoy: %s", source)
	return &EnvoyProxy{URL: "http://127.0.0.1:" + strconv.Itoa(listener), Admin: "http://" + p.addr()}
}

func startEnvoy(dir string, config func(admin, listener int) string) (p *process, listener int, source string, err error) {
	path, ok := os.LookupEnv("COORD_TEST_ENVOY")
	if !ok || path == "" {
		if path, err = findBinary("envoy"); err != nil {
			return nil, 0, "", err
		}
	}
	file := filepath.Join(dir, "envoy.yaml")
	args := func(admin int) []string {
		if listener, err = freePort(); err == nil {
			err = os.WriteFile(file, []byte(config(admin, listener)), 0o600)
		}
		return []string{"-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"}
	}
	p, startErr := startProcess(path, args, envoyIsReady)
	if err == nil {
		err = startErr
	}
	return p, listener, path, err
}

func envoyIsReady(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/ready", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 100))
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/ready answers %d %s: %w", resp.StatusCode, body, err)
	}
	return nil
}

// FreePort is a port of the loopback address on which nobody listens, for a process
// that is told its port and may be down in between.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
