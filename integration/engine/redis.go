package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A RedisNode is a single Redis or Valkey. Tests share it with others, whose data
// may lie beside theirs: nobody flushes it, and every key begins with the test's
// FreshPrefix.
type RedisNode struct {
	// Addr is host:port.
	Addr string
	// Source says what it is, for people.
	Source string
}

// URL returns the address as in COORD_REDIS_URL.
func (r *RedisNode) URL() string { return "redis://" + r.Addr }

var sharedRedis = sync.OnceValues(findRedis)

// Redis returns the node that this test binary shares. It ends the test where
// there is none or where the node fails the self-check.
func Redis(t testing.TB) *RedisNode {
	t.Helper()
	r, err := sharedRedis()
	if err != nil {
		report("redis", "not run: "+err.Error())
	}
	demand(t, "redis", err)
	report("redis", r.Source)
	t.Logf("redis: %s", r.Source)
	return r
}

func findRedis() (*RedisNode, error) {
	if addr, ok := os.LookupEnv("COORD_TEST_REDIS"); ok && addr != "" {
		addr = strings.TrimSuffix(strings.TrimPrefix(addr, "redis://"), "/")
		return &RedisNode{Addr: addr, Source: addr + " (COORD_TEST_REDIS)"}, checkRedis(addr)
	}
	p, source, err := startRedis(os.TempDir()) // where nothing is saved
	if err != nil {
		return nil, err
	}
	return &RedisNode{Addr: p.addr(), Source: source}, checkRedis(p.addr())
}

func checkRedis(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return selfCheck(ctx, redisClaimer(addr))
}

// startRedis starts a redis-server that saves nothing unless the extra arguments
// say so.
func startRedis(dir string, extra ...string) (*process, string, error) {
	path, err := findBinary("redis-server")
	if err != nil {
		return nil, "", err
	}
	args := func(port int) []string {
		return append([]string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(port),
			"--save", "", "--appendonly", "no", "--dir", dir,
		}, extra...)
	}
	p, err := startProcess(path, args, redisAnswers)
	return p, path, err
}

func redisAnswers(ctx context.Context, addr string) error {
	reply, err := redisDo(ctx, addr, "PING")
	if err != nil {
		return err
	}
	if reply != "+PONG" {
		return fmt.Errorf("PING answers %q", reply)
	}
	return nil
}

// A redisClaimer claims keys by SET NX at its address.
type redisClaimer string

func (c redisClaimer) claim(ctx context.Context, key string) (bool, error) {
	reply, err := redisDo(ctx, string(c), "SET "+key+" 1 NX PX 60000")
	switch {
	case err != nil:
		return false, err
	case reply == "+OK":
		return true, nil
	case reply == "$-1":
		return false, nil
	default:
		return false, fmt.Errorf("SET NX answers %q", reply)
	}
}

// redisDo sends one inline command over a connection of its own and returns the
// reply's first line. The harness needs no more of a client than that.
func redisDo(ctx context.Context, addr, command string) (reply string, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("redis at %s: %w", addr, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", fmt.Errorf("redis at %s: %w", addr, err)
		}
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", fmt.Errorf("redis at %s: %w", addr, err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("redis at %s: %w", addr, err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// A RedisServer is a node that one test owns and may kill or pause.
type RedisServer struct {
	*RedisNode
	process *process
}

// StartRedis starts a node for this test alone, with further arguments for
// redis-server such as "--appendonly", "yes". It needs a local binary and ends
// with the test.
func StartRedis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	p, source, err := startRedis(t.TempDir(), args...)
	if err != nil {
		report("redis", "not run: "+err.Error())
	}
	demand(t, "redis", err)
	t.Cleanup(p.kill)
	demand(t, "redis", checkRedis(p.addr()))
	report("redis", source)
	t.Logf("redis: %s", source)
	return &RedisServer{RedisNode: &RedisNode{Addr: p.addr(), Source: source}, process: p}
}

// Kill ends the node with SIGKILL and returns once it is gone.
func (s *RedisServer) Kill() { s.process.kill() }

// Restart starts the killed node again on the same port and folder, and returns
// once it serves.
func (s *RedisServer) Restart(t testing.TB) {
	t.Helper()
	if err := s.process.start(); err != nil {
		t.Fatalf("redis: restart: %v", err)
	}
}

// Pause stops the node in its tracks (SIGSTOP): connections stay open and nothing
// answers.
func (s *RedisServer) Pause(t testing.TB) {
	t.Helper()
	if err := s.process.pause(); err != nil {
		t.Fatalf("redis: %v", err)
	}
}

// Resume lets a paused node go on.
func (s *RedisServer) Resume(t testing.TB) {
	t.Helper()
	if err := s.process.resume(); err != nil {
		t.Fatalf("redis: %v", err)
	}
}
