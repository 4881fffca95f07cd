package redislimit

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A convoy sends the scripts of callers that ask at the same time in one pipeline: while
// one is on its way the next one fills. What a caller waits for is at most that which is
// under way, and its own.
//
// It is for a client of one node, whose pipeline is written and read once: with its
// retries off nothing is sent again. A Cluster's client repeats what it got no answer to
// also in pipelines, so that there every script goes by itself.
type convoy struct {
	*redis.Client

	mu       sync.Mutex
	waiting  []*passenger    // guarded by mu
	leaders  map[like]*asked // of those that wait, by their first bucket: what others may join; guarded by mu
	underway bool            // guarded by mu: a goroutine sends what waits
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
