package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// SentinelName is what the sentinels of a [RedisSentinel] call their master.
const SentinelName = "m"

// groupReady is how long a group of nodes may take to agree.
const groupReady = 30 * time.Second

// A RedisSentinel is a master with replicas and three sentinels that one test
// owns. They take a master for dead after a second.
type RedisSentinel struct {
	Addrs     []string // of the sentinels
	master    *process
	replica   *process
	more      []*process // replicas
	sentinels []*process
}

// StartSentinel starts a trio of sentinels with a master and a replica, and returns
// once the replica follows and the sentinels know each other.
func StartSentinel(t testing.TB) *RedisSentinel {
	t.Helper()
	return StartSentinelOf(t, 1)
}

// StartSentinelOf is StartSentinel with so many replicas.
func StartSentinelOf(t testing.TB, replicas int) *RedisSentinel {
	t.Helper()
	s, err := startSentinel(t, replicas)
	reportGroup(t, "sentinel", err)
	return s
}

// URL returns the address as in COORD_REDIS_URL.
func (s *RedisSentinel) URL() string {
	return "redis://" + s.Addrs[0] + "?master_name=" + SentinelName + "&addr=" + strings.Join(s.Addrs[1:], "&addr=")
}

func reportGroup(t testing.TB, kind string, err error) {
	t.Helper()
	if err != nil {
		report("redis", "not run: "+err.Error())
	}
	demand(t, "redis", err)
	report("redis", kind)
	t.Logf("redis: %s", kind)
}

func startSentinel(t testing.TB, replicas int) (*RedisSentinel, error) {
	master, path, err := startRedis(t.TempDir(), "--repl-diskless-sync-delay", "0")
	if err != nil {
		return nil, err
	}
	t.Cleanup(master.kill)
	s := &RedisSentinel{master: master}
	for range replicas {
		replica, _, err := startRedis(t.TempDir(), "--replicaof", "127.0.0.1", strconv.Itoa(master.port), "--repl-diskless-sync-delay", "0")
		if err != nil {
			return nil, err
		}
		t.Cleanup(replica.kill)
		s.more = append(s.more, replica)
	}
	for range 3 {
		dir := t.TempDir()
		p, err := startProcess(path, func(port int) []string { return sentinelArgs(dir, port, master.port) }, redisAnswers)
		if err != nil {
			return nil, err
		}
		t.Cleanup(p.kill)
		s.sentinels = append(s.sentinels, p)
		s.Addrs = append(s.Addrs, p.addr())
	}
	for _, p := range s.more {
		if err := awaitInfo(p.addr(), "replication", "master_link_status:up"); err != nil {
			return nil, err
		}
	}
	for _, p := range s.sentinels {
		if err := awaitInfo(p.addr(), "sentinel", fmt.Sprintf("slaves=%d,sentinels=3", replicas)); err != nil {
			return nil, err
		}
	}
	s.replica, s.more = s.more[0], s.more[1:]
	return s, nil
}

// current is the node that the sentinels call the master.
func (s *RedisSentinel) current(t testing.TB) *process {
	t.Helper()
	text, err := redisText(s.sentinels[0].addr(), "INFO sentinel")
	if err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	for _, p := range append([]*process{s.master, s.replica}, s.more...) {
		if strings.Contains(text, "address="+p.addr()) {
			return p
		}
	}
	t.Fatalf("sentinel: no node of ours is the master: %s", text)
	return nil
}

// KillCurrent ends whichever node is the master, and does not wait for what comes of
// that. The function that it returns starts the node again.
func (s *RedisSentinel) KillCurrent(t testing.TB) (restart func()) {
	t.Helper()
	p := s.current(t)
	p.kill()
	return func() {
		if err := p.start(); err != nil {
			t.Fatalf("sentinel: restart: %v", err)
		}
	}
}

// PauseCurrent stops whichever node is the master in its tracks, and does not wait for
// what comes of that. The function that it returns lets it go on.
func (s *RedisSentinel) PauseCurrent(t testing.TB) (resume func()) {
	t.Helper()
	p := s.current(t)
	if err := p.pause(); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	return func() {
		if err := p.resume(); err != nil {
			t.Fatalf("sentinel: %v", err)
		}
	}
}

// sentinelArgs writes the settings, which a sentinel wants in a file that it may rewrite.
func sentinelArgs(dir string, port, master int) []string {
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf(`bind 127.0.0.1
port %d
dir %s
sentinel monitor %s 127.0.0.1 %d 2
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 3000
`, port, dir, SentinelName, master)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		file = err.Error() // the program says that it cannot read it
	}
	return []string{file, "--sentinel"}
}

// Fail makes the replica miss what is written while behind runs, then kills the
// master, and returns once the sentinels made the replica the master.
func (s *RedisSentinel) Fail(t testing.TB, behind func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("sentinel: %v", err)
		}
	}
	must(s.replica.pause())
	behind()
	s.master.kill()
	must(s.replica.resume())
	must(awaitInfo(s.replica.addr(), "replication", "role:master"))
}

// Hang stops the master in its tracks, and returns once the sentinels made the replica
// the master. Resume lets the old one go on.
func (s *RedisSentinel) Hang(t testing.TB) {
	t.Helper()
	if err := s.master.pause(); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	if err := awaitInfo(s.replica.addr(), "replication", "role:master"); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
}

// Resume lets a master that was made to [RedisSentinel.Hang] go on, and returns once the
// sentinels made it the replica of the other.
func (s *RedisSentinel) Resume(t testing.TB) {
	t.Helper()
	if err := s.master.resume(); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	if err := awaitInfo(s.master.addr(), "replication", "master_link_status:up"); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	s.master, s.replica = s.replica, s.master
}

// AwaitAgreement returns once every sentinel names the new master, which is the end of
// a failover: clients ask them.
func (s *RedisSentinel) AwaitAgreement(t testing.TB) {
	t.Helper()
	for _, p := range s.sentinels {
		if err := awaitInfo(p.addr(), "sentinel", "address="+s.replica.addr()); err != nil {
			t.Fatalf("sentinel: %v", err)
		}
	}
}

// Rejoin starts the master that [RedisSentinel.Fail] killed again, and returns once
// the sentinels made it the replica of the other.
func (s *RedisSentinel) Rejoin(t testing.TB) {
	t.Helper()
	if err := s.master.start(); err != nil {
		t.Fatalf("sentinel: restart: %v", err)
	}
	if err := awaitInfo(s.master.addr(), "replication", "master_link_status:up"); err != nil {
		t.Fatalf("sentinel: %v", err)
	}
	s.master, s.replica = s.replica, s.master
}

// A RedisCluster is three masters, each with a replica, that one test owns.
type RedisCluster struct {
	Addrs []string
	nodes []*process
}

// StartCluster starts six nodes and returns once all slots are served and every
// replica follows its master.
func StartCluster(t testing.TB) *RedisCluster {
	t.Helper()
	c, err := startCluster(t)
	reportGroup(t, "cluster", err)
	return c
}

func startCluster(t testing.TB) (*RedisCluster, error) {
	path, err := findBinary("redis-server")
	if err != nil {
		return nil, err
	}
	cli, err := findBinary("redis-cli")
	if err != nil {
		return nil, err
	}
	c := &RedisCluster{}
	for range 6 {
		dir := t.TempDir()
		p, err := startProcess(path, func(port int) []string {
			return []string{
				"--port", strconv.Itoa(port), "--cluster-port", strconv.Itoa(port + 100), "--bind", "127.0.0.1", "--cluster-enabled", "yes",
				"--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0", "--save", "", "--dir", dir,
			}
		}, redisAnswers)
		if err != nil {
			return nil, err
		}
		t.Cleanup(p.kill)
		c.nodes = append(c.nodes, p)
		c.Addrs = append(c.Addrs, p.addr())
	}
	args := append([]string{"--cluster", "create"}, c.Addrs...)
	args = append(args, "--cluster-replicas", "1", "--cluster-yes")
	if out, err := exec.CommandContext(t.Context(), cli, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s %v: %w: %s", cli, args, err, out)
	}
	for _, p := range c.nodes {
		if err := awaitInfo(p.addr(), "replication", "master_link_status:up", "connected_slaves:1"); err != nil {
			return nil, err
		}
		if err := awaitCluster(p.addr()); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// KillMaster ends the master at the address and returns once another node serves its slots.
func (c *RedisCluster) KillMaster(t testing.TB, addr string) {
	t.Helper()
	var others []string
	for _, p := range c.nodes {
		if p.addr() == addr {
			p.kill()
		} else {
			others = append(others, p.addr())
		}
	}
	deadline := time.Now().Add(groupReady)
	for masters := 0; masters != 3; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("cluster: nobody took over")
		}
		masters = 0
		for _, a := range others {
			if text, err := redisText(a, "INFO replication"); err == nil && strings.Contains(text, "role:master") {
				masters++
			}
		}
	}
	for _, a := range others {
		if err := awaitCluster(a); err != nil {
			t.Fatalf("cluster: %v", err)
		}
	}
}

func awaitCluster(addr string) error {
	return awaitText(addr, "CLUSTER INFO", "cluster_state:ok")
}

func awaitInfo(addr, section string, anyOf ...string) error {
	return awaitText(addr, "INFO "+section, anyOf...)
}

// awaitText asks until the node's answer contains one of the texts.
func awaitText(addr, command string, anyOf ...string) error {
	deadline := time.Now().Add(groupReady)
	for {
		text, err := redisText(addr, command)
		for _, want := range anyOf {
			if err == nil && strings.Contains(text, want) {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s at %s: no %v: %w: %s", command, addr, anyOf, errors.Join(err, context.DeadlineExceeded), text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// redisText sends one inline command and returns the text that it is answered with.
func redisText(addr, command string) (text string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	var n int
	if _, err := fmt.Fscanf(r, "$%d\r\n", &n); err != nil {
		return "", err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return string(b), err
}
