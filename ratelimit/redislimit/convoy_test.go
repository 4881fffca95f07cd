package redislimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A pipelines hook keeps how many commands each pipeline had, and may hold one back.
type pipelines struct {
	mu    sync.Mutex
	sizes []int
	hold  chan struct{} // the next pipeline waits until it is closed
	held  chan struct{} // closed when it waits
}

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.mu.Lock()
		p.sizes = append(p.sizes, len(cmds))
		hold, held := p.hold, p.held
		p.hold = nil
		p.mu.Unlock()
		if hold != nil {
			close(held)
			<-hold
		}
		return next(ctx, cmds)
	}
}

// stall has the next pipeline wait.
func (p *pipelines) stall() (held, let chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes, p.hold, p.held = nil, make(chan struct{}), make(chan struct{})
	return p.held, p.hold
}

func newPipelines(t *testing.T) (*pipelines, *redislimit.Store, *engine.RedisServer) {
	t.Helper()
	server := engine.StartRedis(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	t.Cleanup(func() { _ = client.Close() })
	p := &pipelines{}
	client.AddHook(p)
	store := redislimit.New(client, redislimit.Options{})
	if err := store.Probe(t.Context()); err != nil { // the server has the script from here on
		t.Fatal(err)
	}
	return p, store, server
}

// crowd has so many callers take from a bucket each while a pipeline is held back, and
// calls then before that one goes on.
func crowd(t *testing.T, p *pipelines, store *redislimit.Store, callers int, then func()) (failures []error) {
	t.Helper()
	held, let := p.stall()
	var mu sync.Mutex
	var all sync.WaitGroup
	charge := func(key string) {
		all.Go(func() {
			_, err := store.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf(key, 1, time.Hour, 1)}, Cost: 1})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	charge("first")
	<-held
	for i := range callers {
		charge(fmt.Sprint("then ", i))
	}
	for begun := time.Now(); redislimit.Waiting(store) < callers; time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("%d of %d wait", redislimit.Waiting(store), callers)
		}
	}
	then()
	close(let)
	all.Wait()
	return failures
}

func TestWhoAsksAtTheSameTimeIsSentTogether(t *testing.T) {
	p, store, _ := newPipelines(t)
	if failures := crowd(t, p, store, 20, func() {}); failures != nil {
		t.Errorf("got %v", failures)
	}
	if fmt.Sprint(p.sizes) != "[1 20]" {
		t.Errorf("pipelines of %v, want one and then the twenty that waited", p.sizes)
	}
	for i := range 20 {
		out, err := store.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf(fmt.Sprint("then ", i), 1, time.Hour, 1)}, Cost: 1})
		if err != nil || out.Allowed {
			t.Errorf("caller %d was not charged: %+v, %v", i, out, err)
		}
	}
}

// Calls that lose one connection fail together, and nothing is sent again.
func TestR45ALostConnectionIsOneFailure(t *testing.T) {
	p, store, server := newPipelines(t)
	failures := crowd(t, p, store, 20, server.Kill)
	if len(failures) != 21 {
		t.Fatalf("%d of 21 failed", len(failures))
	}
	shared := map[error]int{}
	for _, err := range failures {
		e, ok := errors.AsType[*ratelimit.FaultError](err)
		if !ok || e.Together == nil || !errors.Is(err, keytype.ErrOutcomeUnknown) && !errors.Is(err, keytype.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		shared[e.Together]++
	}
	if len(shared) != 2 {
		t.Errorf("failures of %v", shared)
	}
	if fmt.Sprint(p.sizes) != "[1 20]" {
		t.Errorf("pipelines of %v: something was sent again", p.sizes)
	}
}

// A pipeline that hangs keeps nobody longer than the budget, whether in it or behind it.
func TestR28NobodyWaitsForAPipeline(t *testing.T) {
	p, store, _ := newPipelines(t)
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: 20 * time.Millisecond})
	t.Cleanup(func() { _ = guard.Close() })
	held, let := p.stall()
	t.Cleanup(func() { close(let) })
	var all sync.WaitGroup
	for i := range 15 { // fewer than open the breaker
		if i == 1 {
			<-held
		}
		all.Go(func() {
			begun := time.Now()
			_, err := guard.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf(fmt.Sprint(i), 1, time.Hour, 1)}, Cost: 1})
			if e, ok := errors.AsType[*ratelimit.FaultError](err); !ok || e.Reason != ratelimit.ReasonTimeout || !errors.Is(err, keytype.ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(begun); took > patience/2 {
				t.Errorf("caller %d waited %v", i, took)
			}
		})
	}
	all.Wait()
}

// A server that does not know the script has done nothing, and is told it.
func TestAServerLearnsTheScript(t *testing.T) {
	_, store, server := newPipelines(t)
	guard := ratelimit.NewGuard(store, ratelimit.GuardOptions{Budget: patience})
	t.Cleanup(func() { _ = guard.Close() })
	client := dial(t, server.Addr)
	for i := range int64(3) {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		out, err := guard.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 10)}, Cost: 1})
		if err != nil || out.Verdicts[0].Remaining != 9-i {
			t.Errorf("take %d: %+v, %v", i, out, err)
		}
	}
}
