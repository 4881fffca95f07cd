package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// How long a started engine may take to answer, and how often it is asked.
const (
	answerWithin = 15 * time.Second
	askEvery     = 10 * time.Millisecond
)

// A process is one local engine on one port of the loopback address. The kernel
// kills it when this process ends, however that happens.
type process struct {
	path  string
	args  func(port int) []string
	ready func(ctx context.Context, addr string) error // nil error: it serves
	as    *syscall.Credential                          // nil: whoever this process runs as
	port  int

	mu   sync.Mutex // guards cmd, done and out across kill and restart
	cmd  *exec.Cmd
	done chan struct{} // closed once cmd has ended
	out  *tail
}

// startProcess starts the program on a free port and waits until it serves. A
// port that somebody else took in between is given up for another one.
func startProcess(path string, args func(port int) []string, ready func(ctx context.Context, addr string) error) (*process, error) {
	return startProcessAs(nil, path, args, ready)
}

func startProcessAs(as *syscall.Credential, path string, args func(port int) []string, ready func(ctx context.Context, addr string) error) (*process, error) {
	p := &process{path: path, args: args, ready: ready, as: as}
	var err error
	for range 5 {
		if p.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = p.start(); err == nil {
			return p, nil
		}
	}
	return nil, err
}

func (p *process) addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
}

// start runs the program on p.port and returns once it serves.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = &tail{}
	p.done = make(chan struct{})
	p.cmd = exec.CommandContext(context.Background(), p.path, p.args(p.port)...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: p.as}
	if err := onStarter(p.cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", p.path, err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // it ends by a signal, ours or the kernel's
		close(done)
	}(p.cmd, p.done)
	if err := p.awaitReady(); err != nil {
		p.end()
		return fmt.Errorf("%s on port %d: %w; it wrote: %s", p.path, p.port, err, p.out)
	}
	return nil
}

// awaitReady asks until the program serves, has ended or is out of time.
func (p *process) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	ask := time.NewTicker(askEvery)
	defer ask.Stop()
	for {
		err := p.ready(ctx, p.addr())
		select {
		case <-p.done:
			return errors.New("ended at once")
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("does not serve after %s: %w", answerWithin, err)
		case <-p.done:
		case <-ask.C:
		}
	}
}

// kill ends the program with SIGKILL and returns once it is gone.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// end is kill for callers that hold p.mu.
func (p *process) end() {
	_ = p.cmd.Process.Kill() // an error means that it has ended already
	<-p.done
}

// signal sends sig to the running program.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %s to %s: %w", sig, p.path, err)
	}
	return nil
}

// pause stops the program in its tracks (SIGSTOP): connections stay open and
// nothing answers. It returns once the program has stopped, a moment after the
// signal is sent.
func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(answerWithin); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return fmt.Errorf("pause %s: %w", p.path, err)
		}
		if bytes.Contains(stat, []byte(") T ")) { // proc(5): stopped
			return nil
		}
	}
	return fmt.Errorf("pause %s: it still runs", p.path)
}

// resume lets a paused program go on.
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

// starter is the one goroutine that starts processes. It holds its thread for
// ever, because the kernel sends Pdeathsig when the thread that created the child
// ends, and the Go runtime ends threads as it sees fit.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func onStarter(start func() error) error {
	result := make(chan error, 1)
	starter() <- func() { result <- start() }
	return <-result
}

// freePort picks a port below the range that the kernel uses for outgoing
// connections, so that it stays free while its engine is down between a kill and
// a restart. It picks at random, for test binaries that start at the same time.
func freePort() (int, error) {
	var lastErr error
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		lastErr = err
	}
	return 0, fmt.Errorf("find a free port: %w", lastErr)
}

// A tail keeps the last bytes that a program wrote.
type tail struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	t.buf = t.buf[max(0, len(t.buf)-tailBytes):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
