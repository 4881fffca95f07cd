package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process is a program under measurement.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// start runs the program until stop, or until this process ends.
func start(env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...)} //nolint:gosec,noctx // the programs of this benchmark
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// cpu is the time that the process has used, user and system, as its clock has it:
// that of /proc/<pid>/stat, which counts hundredths of a second.
func (p *process) cpu() (time.Duration, error) {
	const scheduler = 2 // the kind of a process's clock that counts nanoseconds on a CPU; see clock_getcpuclockid(3)
	var t unix.Timespec
	err := unix.ClockGettime(int32((^p.cmd.Process.Pid)<<3|scheduler), &t) //nolint:gosec // a process id has 22 bits
	return time.Duration(t.Nano()), err
}

// freeAddr finds an address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // bound at once
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// await asks until the address accepts connections and, where path is not "", answers 200.
func await(ctx context.Context, addr, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		if last = answers(ctx, addr, path); last == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer: %w", addr, last)
}

func answers(ctx context.Context, addr, path string) error {
	if path == "" {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
