package redissession_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// The test binary runs as a node when its environment says so: the cached store in a
// process of its own, which a test can kill.
const (
	nodeDynamo = "REDISSESSION_TEST_DYNAMODB"
	nodePrefix = "REDISSESSION_TEST_TABLES"
	nodeRedis  = "REDISSESSION_TEST_REDIS"
)

// runNode prints its address, and serves until it is killed or nobody needs it any more.
func runNode() error {
	endpoint := os.Getenv(nodeDynamo)
	tables := dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("AKIDLOCAL", "secret", ""),
		HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}, Timeout: 10 * time.Second},
	})
	cache := redissession.New(redis.NewClient(short(os.Getenv(nodeRedis))), redissession.Options{Prefix: "x:", Budget: 100 * time.Millisecond})
	through := session.NewReadThrough(dynamosession.New(tables, os.Getenv(nodePrefix)), cache, session.ReadThroughOptions{Fresh: fast, Skew: fastSkew})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.RegisterName("Store", &served{through}); err != nil {
		return err
	}
	go server.Accept(l)
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// served are the store's operations that the histories use.
type served struct{ store session.Store }

// A Reply is what an operation returned. Package rpc wants its name exported.
type Reply[T any] struct {
	Value       T
	Propagation session.Propagation
	Outcome     session.Outcome
	Fault       fault
	Text        string
}

type fault int

const (
	noFault fault = iota
	unavailable
	unknown
	other
)

func (r *Reply[T]) set(v T, p session.Propagation, o session.Outcome, err error) error {
	*r = Reply[T]{Value: v, Propagation: p, Outcome: o}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, keytype.ErrOutcomeUnknown):
		r.Fault = unknown
	case errors.Is(err, keytype.ErrUnavailable):
		r.Fault = unavailable
	default:
		r.Fault = other
	}
	r.Text = err.Error()
	return nil
}

func (r *Reply[T]) err() error {
	switch r.Fault {
	case noFault:
	case unavailable:
		return fmt.Errorf("%s: %w", r.Text, keytype.ErrUnavailable)
	case unknown:
		return fmt.Errorf("%s: %w", r.Text, keytype.ErrOutcomeUnknown)
	case other:
		return errors.New(r.Text)
	}
	return nil
}

var none session.Propagation

func (s *served) Create(op session.CreateOp, r *Reply[session.Session]) error {
	v, o, err := s.store.Create(context.Background(), op)
	return r.set(v, none, o, err)
}

func (s *served) Verify(op session.VerifyOp, r *Reply[session.Verdict]) error {
	v, err := s.store.Verify(context.Background(), op)
	return r.set(v, none, 0, err)
}

func (s *served) Rotate(op session.RotateOp, r *Reply[session.Session]) error {
	v, p, o, err := s.store.Rotate(context.Background(), op)
	return r.set(v, p, o, err)
}

func (s *served) Revoke(op session.RevokeOp, r *Reply[bool]) error {
	p, o, err := s.store.Revoke(context.Background(), op)
	return r.set(true, p, o, err)
}

func (s *served) Change(op session.ChangeOp, r *Reply[session.Changed]) error {
	v, o, err := s.store.Change(context.Background(), op)
	return r.set(v, none, o, err)
}

func (s *served) ReadData(op session.GetOp, r *Reply[session.Data]) error {
	v, o, err := s.store.ReadData(context.Background(), op)
	return r.set(v, none, o, err)
}

func (s *served) WriteData(op session.WriteDataOp, r *Reply[int64]) error {
	v, o, err := s.store.WriteData(context.Background(), op)
	return r.set(v, none, o, err)
}

// A nodeProcess is such a node, and the store that it serves.
type nodeProcess struct {
	session.Store // nil: what the histories do not use
	env           []string

	mu     sync.Mutex
	cmd    *exec.Cmd   // guarded by mu
	client *rpc.Client // guarded by mu
}

func startNode(t *testing.T, endpoint, tables, redisAddr string) *nodeProcess {
	t.Helper()
	n := &nodeProcess{env: append(os.Environ(), nodeDynamo+"="+endpoint, nodePrefix+"="+tables, nodeRedis+"="+redisAddr)}
	must(t, n.start())
	t.Cleanup(n.kill)
	return n
}

func (n *nodeProcess) start() error {
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env, cmd.Stderr = n.env, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process, which holds the pipe
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	client, err := rpc.Dial("tcp", strings.TrimSpace(addr))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cmd, n.client = cmd, client
	return err
}

// kill ends the process with what it has under way.
func (n *nodeProcess) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	_ = n.client.Close()
}

// askNode asks the node. An answer that does not come leaves the outcome open.
func askNode[Op, T any](n *nodeProcess, method string, op Op) (Reply[T], error) {
	n.mu.Lock()
	client := n.client
	n.mu.Unlock()
	var r Reply[T]
	if err := client.Call("Store."+method, op, &r); err != nil {
		return Reply[T]{}, fmt.Errorf("%w: %w", err, keytype.ErrOutcomeUnknown)
	}
	return r, r.err()
}

func (n *nodeProcess) Create(_ context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	r, err := askNode[session.CreateOp, session.Session](n, "Create", op)
	return r.Value, r.Outcome, err
}

func (n *nodeProcess) Verify(_ context.Context, op session.VerifyOp) (session.Verdict, error) {
	r, err := askNode[session.VerifyOp, session.Verdict](n, "Verify", op)
	return r.Value, err
}

func (n *nodeProcess) Rotate(_ context.Context, op session.RotateOp) (session.Session, session.Propagation, session.Outcome, error) {
	r, err := askNode[session.RotateOp, session.Session](n, "Rotate", op)
	return r.Value, r.Propagation, r.Outcome, err
}

func (n *nodeProcess) Revoke(_ context.Context, op session.RevokeOp) (session.Propagation, session.Outcome, error) {
	r, err := askNode[session.RevokeOp, bool](n, "Revoke", op)
	return r.Propagation, r.Outcome, err
}

func (n *nodeProcess) Change(_ context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	r, err := askNode[session.ChangeOp, session.Changed](n, "Change", op)
	return r.Value, r.Outcome, err
}

func (n *nodeProcess) ReadData(_ context.Context, op session.GetOp) (session.Data, session.Outcome, error) {
	r, err := askNode[session.GetOp, session.Data](n, "ReadData", op)
	return r.Value, r.Outcome, err
}

func (n *nodeProcess) WriteData(_ context.Context, op session.WriteDataOp) (int64, session.Outcome, error) {
	r, err := askNode[session.WriteDataOp, int64](n, "WriteData", op)
	return r.Value, r.Outcome, err
}
