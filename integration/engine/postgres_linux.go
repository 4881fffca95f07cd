package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// stopWithin is how long a server may take to stop in order.
const stopWithin = 10 * time.Second

// startPostgres makes a cluster in a folder of its own and serves it.
func startPostgres() (_ postgres, err error) {
	initdb, err := findInitdb()
	if err != nil {
		return postgres{}, err
	}
	dir, err := os.MkdirTemp("", "coordsvc-postgres-")
	if err != nil {
		return postgres{}, fmt.Errorf("make a folder: %w", err)
	}
	remove := func() { _ = os.RemoveAll(dir) } // what is left lies in the system's own temporary folder
	defer func() {
		if err != nil {
			remove()
		}
	}()
	as, err := unprivileged(dir)
	if err != nil {
		return postgres{}, err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.CommandContext(context.Background(), initdb, "-D", data, "-U", "coordsvc", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		return postgres{}, fmt.Errorf("initdb: %w: %s", err, out)
	}
	path := filepath.Join(filepath.Dir(initdb), "postgres")
	p, err := startProcessAs(as, path, func(port int) []string {
		return []string{"-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"}
	}, func(ctx context.Context, addr string) error { return postgresAnswers(ctx, initdb, addr) })
	if err != nil {
		return postgres{}, err
	}
	return postgres{
		url:    "postgres://coordsvc@" + p.addr() + "/postgres?sslmode=disable",
		source: path,
		end:    func() { p.stop(); remove() },
	}, nil
}

// findInitdb looks on PATH, and where Debian keeps the programs of each version.
func findInitdb() (string, error) {
	path, err := findBinary("initdb")
	if err == nil {
		return filepath.EvalSymlinks(path) // postgres lies beside the program itself
	}
	found, globErr := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if globErr != nil || len(found) == 0 {
		return "", errors.Join(err, globErr)
	}
	return found[len(found)-1], nil
}

// unprivileged is whom PostgreSQL runs as, which refuses root: nobody, then, who gets the
// folder; else whoever runs the tests.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no other than now
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("find whom PostgreSQL can run as: %w", err)
	}
	uid, uidErr := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(nobody.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("ids of nobody: %w", err)
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, fmt.Errorf("give the folder away: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func postgresAnswers(ctx context.Context, initdb, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(initdb), "pg_isready"), "-q", "-h", host, "-p", port).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pg_isready: %w: %s", err, out)
	}
	return nil
}

// stop ends the program in order, by SIGINT: killed, a PostgreSQL leaves shared memory behind.
func (p *process) stop() {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if err := p.signal(syscall.SIGINT); err == nil {
		select {
		case <-done:
			return
		case <-time.After(stopWithin):
		}
	}
	p.kill()
}
