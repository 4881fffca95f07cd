package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A lab is the folder and the programs of one run.
type lab struct {
	dir       string
	coordsvc  string // the program
	processes []*process
}

// asReleased compiles coordsvc with its profile; the first such build compiles all modules anew.
const asReleased = "-pgo=cmd/coordsvc/serve.pgo"

// openLab builds coordsvc with the flags, where no program is given.
func openLab(ctx context.Context, program string, flags ...string) (*lab, error) {
	dir, err := os.MkdirTemp("", "coordsvc-bench-")
	if err != nil {
		return nil, err
	}
	if program != "" {
		return &lab{dir: dir, coordsvc: program}, nil
	}
	l := &lab{dir: dir, coordsvc: filepath.Join(dir, "coordsvc")}
	build := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-o", l.coordsvc}, flags, []string{"./cmd/coordsvc"})...) //nolint:gosec // a folder made above
	build.Dir = ".."                                                                                                                  // the module of coordsvc
	if out, err := build.CombinedOutput(); err != nil {
		l.close()
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return l, nil
}

func (l *lab) close() {
	for _, p := range l.processes {
		p.stop()
	}
	_ = os.RemoveAll(l.dir)
}

// launch starts a program and waits until the address answers there; see await.
func (l *lab) launch(ctx context.Context, addr, path string, env []string, program string, args ...string) (*process, error) {
	p, err := start(env, program, args...)
	if err != nil {
		return nil, err
	}
	l.processes = append(l.processes, p)
	if err := await(ctx, addr, path); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	return p, nil
}

// engine starts a store on a free port.
func (l *lab) engine(ctx context.Context, name string, args func(host, port string) []string) (string, *process, error) {
	addr, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	host, port, _ := strings.Cut(addr, ":")
	p, err := l.launch(ctx, addr, "", nil, name, args(host, port)...)
	return addr, p, err
}

func (l *lab) redis(ctx context.Context) (string, *process, error) {
	return l.engine(ctx, "redis-server", func(host, port string) []string {
		return []string{"--bind", host, "--port", port, "--save", "", "--dir", l.dir}
	})
}

// write makes a file in the lab's folder and returns its path.
func (l *lab) write(name, text string) (string, error) {
	path := filepath.Join(l.dir, name)
	return path, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
}

// freeAddrs finds n addresses that nobody listens on.
func freeAddrs(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		var err error
		if addrs[i], err = freeAddr(); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}
