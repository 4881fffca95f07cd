package redislimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A convoy sends the scripts of callers that ask at the same time in one pipeline: while
// one is on its way the next one fills. What a caller waits for is at most that which is
// under way, and its own.
//
// With its retries off the client of one node writes and reads a pipeline once, and a
// Cluster's sends none again that has a command without retries, but for what has moved.
type convoy struct {
	pipelined
	master error // what failures share of the master that it goes to, of a Cluster

	mu       sync.Mutex
	waiting  []*passenger    // guarded by mu
	leaders  map[like]*asked // of those that wait, by their first bucket: what others may join; guarded by mu
	underway bool            // guarded by mu: a goroutine sends what waits
}

// pipelined is a client that has pipelines.
type pipelined interface {
	client
	Pipeline() redis.Pipeliner
}

// Convoys are those of a Cluster, by the address of a master: no master is waited for
// because of another one.
type convoys struct {
	*redis.ClusterClient
	known  atomic.Bool // the client knows the layout, and so tells a key's master without asking
	byAddr sync.Map    // of *convoy
}

// of is the convoy to the key's master, nil where that is not known.
func (c *convoys) of(ctx context.Context, key string) *convoy {
	if !c.known.Load() {
		return nil
	}
	master, err := c.MasterForKey(ctx, key)
	if err != nil {
		return nil
	}
	addr := master.Options().Addr
	found, ok := c.byAddr.Load(addr)
	if !ok {
		found, _ = c.byAddr.LoadOrStore(addr, &convoy{pipelined: c.ClusterClient, master: &masterError{addr}})
	}
	return found.(*convoy) //nolint:forcetypeassert // nothing else is kept there
}

// answered says that the Cluster's client got an answer, for which it needs the layout.
func (c *convoys) answered() {
	if c != nil && !c.known.Load() {
		c.known.Store(true)
	}
}

// A passenger is a command, who sent it, and where to tell that its answer is there.
type passenger struct {
	redis.Cmder
	ctx    context.Context
	landed chan struct{} // closed then
	leads  *asked        // where others may join it: what it belongs to
}

// Context tells a hook of the client whose command of a pipeline it is.
func (p *passenger) Context() context.Context { return p.ctx }

// Process sends the command with others, and waits for its answer.
func (c *convoy) Process(ctx context.Context, cmd redis.Cmder) error {
	p := &passenger{Cmder: cmd, ctx: ctx, landed: make(chan struct{})}
	c.board(p) //nolint:contextcheck // what is sent is that of many callers
	<-p.landed
	return cmd.Err()
}

// board has the command sent. It must not be read before it has landed, which the
// client's own timeouts see to.
func (c *convoy) board(p *passenger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, p)
	if p.leads != nil {
		if c.leaders == nil {
			c.leaders = make(map[like]*asked)
		}
		c.leaders[p.leads.like()] = p.leads
	}
	if !c.underway {
		c.underway = true
		go c.run()
	}
}

// run sends until nobody waits.
func (c *convoy) run() {
	for {
		c.mu.Lock()
		all := c.waiting
		c.waiting = nil
		clear(c.leaders)
		c.underway = len(all) > 0
		c.mu.Unlock()
		if len(all) == 0 {
			return
		}
		c.send(all)
	}
}

func (c *convoy) send(all []*passenger) {
	pipe := c.Pipeline()
	for _, p := range all {
		if p.leads != nil {
			p.leads.gather()
		}
		_ = pipe.Process(context.Background(), p)
	}
	_, _ = pipe.Exec(context.Background()) // every command has its own error
	var lost *togetherError
	for _, p := range all {
		if err := p.Err(); err != nil && !answered(err) {
			if lost == nil {
				lost = &togetherError{err}
			}
			p.SetErr(lost)
		}
		close(p.landed)
	}
}

// answered tells what the server said from what became of the connection.
func answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// A togetherError is the failure of all commands of a pipeline that got no answer.
type togetherError struct{ error }

func (e *togetherError) Unwrap() error { return e.error }

// A masterError stands for all failures of a master.
type masterError struct{ addr string }

func (e *masterError) Error() string { return "of " + e.addr }
