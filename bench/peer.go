package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// peerName is how the table calls the other library.
const peerName = "peer"

// A peer is a program that does the same with another library. It finds the engine in
// DYNAMODB_ENDPOINT and the AWS variables, and how long a lock lasts in LOCK_TTL. It
// writes "ready", then reads lines and answers each with one:
//
//	acquire <key> <owner> once|wait
//	renew <key> <owner>
//	release <key> <owner>
//
// with "done", "refused", or anything else for what should not happen.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPeer(command, endpoint string) (*peer, error) {
	fields := strings.Fields(command)
	p := &peer{cmd: exec.Command(fields[0], fields[1:]...)} //nolint:gosec,noctx // the program that the caller named
	p.cmd.Env = append(os.Environ(), environment(endpoint)...)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command, err)
	}
	if line, err := p.out.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		p.stop()
		return nil, fmt.Errorf("%s said %q, not that it is ready: %w", command, line, err)
	}
	return p, nil
}

func (p *peer) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *peer) ask(words ...string) (bool, error) {
	if _, err := fmt.Fprintln(p.in, strings.Join(words, " ")); err != nil {
		return false, err
	}
	line, err := p.out.ReadString('\n')
	switch answer := strings.TrimSpace(line); {
	case answer == "done" || answer == "refused":
		return answer == "done", nil
	case err != nil:
		return false, err
	default:
		return false, fmt.Errorf("%s: %s", strings.Join(words, " "), answer)
	}
}

func (p *peer) acquire(_ context.Context, key, owner string, wait bool) (bool, error) {
	return p.ask("acquire", key, owner, map[bool]string{false: "once", true: "wait"}[wait])
}

func (p *peer) renew(_ context.Context, key, owner string) (bool, error) {
	return p.ask("renew", key, owner)
}

func (p *peer) release(_ context.Context, key, owner string) (bool, error) {
	return p.ask("release", key, owner)
}
