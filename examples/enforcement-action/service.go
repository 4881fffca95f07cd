package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// startService builds the service and starts it, embedded, in a folder of its own
// and on free ports. stop ends it and removes the folder.
func startService(ctx context.Context, stderr io.Writer) (url, key string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "enforcement-action-")
	if err != nil {
		return "", "", nil, err
	}
	program, data := filepath.Join(dir, "coordsvc"), filepath.Join(dir, "data")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/coordsvc/coordsvc/cmd/coordsvc") //nolint:gosec // both paths are ours
	build.Stderr = stderr
	if err := build.Run(); err != nil {
		return "", "", nil, errors.Join(fmt.Errorf("build the service: %w", err), os.RemoveAll(dir))
	}
	ctx, end := context.WithCancel(ctx)
	serve := exec.CommandContext(ctx, program, "serve") //nolint:gosec // what was just built
	serve.Env = append(withoutSettings(os.Environ()), "COORD_DATA_DIR="+data, "COORD_HTTP_ADDR=127.0.0.1:0", "COORD_OPS_ADDR=127.0.0.1:0")
	serve.Stderr = stderr
	serve.Cancel = func() error { return serve.Process.Signal(os.Interrupt) }
	serve.WaitDelay = 30 * time.Second
	stdout, err := serve.StdoutPipe()
	if err == nil {
		err = serve.Start()
	}
	if err != nil {
		end()
		return "", "", nil, errors.Join(fmt.Errorf("start the service: %w", err), os.RemoveAll(dir))
	}
	stop = func() error {
		end()
		_ = serve.Wait() // it was interrupted
		return os.RemoveAll(dir)
	}
	url, key, err = awaitReady(stdout, filepath.Join(data, "first-key"))
	if err != nil {
		return "", "", nil, errors.Join(err, stop())
	}
	return url, key, stop, nil
}

// awaitReady reads the line that the service prints once it serves.
func awaitReady(stdout io.Reader, keyFile string) (url, key string, err error) {
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	if err != nil {
		return "", "", errors.New("the service ended before it was ready")
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	var api, ops string
	if _, err := fmt.Sscanf(line, "ready http=%s ops=%s", &api, &ops); err != nil {
		return "", "", fmt.Errorf("the service said %q", line)
	}
	key, err = readKey(keyFile)
	return "http://" + api, key, err
}

func readKey(path string) (string, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // the caller's own file
	return strings.TrimSpace(string(raw)), err
}

// withoutSettings leaves out what would have the service use another store.
func withoutSettings(env []string) []string {
	var kept []string
	for _, e := range env {
		if !strings.HasPrefix(e, "COORD_") {
			kept = append(kept, e)
		}
	}
	return kept
}
