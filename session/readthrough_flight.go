package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// errBusy is met when more durable reads wait than the store is asked at once.
var errBusy = fmt.Errorf("session: too many durable reads at once: %w", keytype.ErrUnavailable)

// fillAttempts bounds the reads of a flight whose fills come too late.
const fillAttempts = 3

// A flight is one durable read that several verifies of a session wait for.
type flight struct {
	began time.Time
	done  chan struct{} // closed once the rest is set
	user  User
	// record has the use of whoever led the flight in it.
	record Record
	err    error
}

// flights are the durable reads under way.
type flights struct {
	mu    sync.Mutex
	under map[Key]*flight // guarded by mu; the latest of each session
	slots chan struct{}   // one for each read that the store is asked for at once
}

// fly joins the session's flight where that may be and it is young, else it starts
// one. A flight goes on without the call that started it, for those who joined.
func (t *ReadThrough) fly(ctx context.Context, op VerifyOp, at int64, mayJoin bool) (f *flight, joined bool) {
	t.flights.mu.Lock()
	defer t.flights.mu.Unlock()
	now := t.opts.Now() // from here on the flight of that time is not missed
	if f := t.flights.under[op.Key]; f != nil && mayJoin && now.Sub(f.began) < t.opts.Fresh/2 {
		return f, true
	}
	f = &flight{began: now, done: make(chan struct{})}
	t.flights.under[op.Key] = f
	t.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.ReadTimeout)
		defer cancel()
		u, r, err := t.read(ctx, op, at)
		f.user, f.record, f.err = u, r, faultOf(err)
		t.flights.mu.Lock()
		if t.flights.under[op.Key] == f {
			delete(t.flights.under, op.Key)
		}
		t.flights.mu.Unlock()
		close(f.done)
	})
	return f, false
}

// read reads both records and hands them to the cache, where that answered. A fill
// that came too late is worth another read, since the next verify would miss again;
// the answer is what was read last in any case.
func (t *ReadThrough) read(ctx context.Context, op VerifyOp, at int64) (u User, r Record, err error) {
	if err := t.flights.enter(ctx); err != nil {
		return User{}, Record{}, err
	}
	defer t.flights.leave()
	for range fillAttempts {
		if u, r, err = t.durable.Load(ctx, op.Key); err != nil {
			return User{}, Record{}, err
		}
		used, _ := Verify(u, r, op, DurableTracking(r.Idle))
		if used.Seen != r.Seen {
			t.touch(ctx, op.Key, used.Seen)
			r = used
		}
		if at == 0 || u.Version == 0 {
			break
		}
		kept, now, err := t.cache.Fill(ctx, Fill{Key: op.Key, User: u, Record: r, At: at, Now: op.Now.UnixMilli()}, t.terms)
		if kept || err != nil {
			break
		}
		at = now
	}
	return u, r, nil
}

// faultOf says of a read that failed, whatever way, that it had no effect: a
// flight's own time that ran out is not its callers'.
func faultOf(err error) error {
	if err == nil || errors.Is(err, keytype.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("read session: %w: %w", err, keytype.ErrUnavailable)
}

// enter waits a moment for a free read, so that a crowd after a loss of the cache is
// served in turn and a store that hangs is not buried.
func (f *flights) enter(ctx context.Context) error {
	select {
	case f.slots <- struct{}{}:
		return nil
	default:
	}
	patience := time.NewTimer(queueTime)
	defer patience.Stop()
	select {
	case f.slots <- struct{}{}:
		return nil
	case <-patience.C:
		return errBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *flights) leave() { <-f.slots }

// touches are the durable records of uses under way, which no verify waits for.
type touches struct {
	mu    sync.Mutex
	under map[Key]bool // guarded by mu
}

// touch tells the durable store of a use, unless it is being told already or too
// much is under way. What is skipped or fails is made good by a use D later.
func (t *ReadThrough) touch(ctx context.Context, key Key, seen int64) {
	t.touches.mu.Lock()
	defer t.touches.mu.Unlock()
	if t.touches.under[key] || len(t.touches.under) >= maxTouches {
		return
	}
	t.touches.under[key] = true
	t.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), touchTimeout)
		defer cancel()
		_ = t.durable.Touch(ctx, key, seen) // best effort
		t.touches.mu.Lock()
		defer t.touches.mu.Unlock()
		delete(t.touches.under, key)
	})
}

// A crew is what runs in the background. Unlike a sync.WaitGroup it may grow while
// somebody waits for it.
type crew struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	gone chan struct{} // guarded by mu; closed once n is 0 again, nil while it is
}

func (c *crew) Go(work func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n == 1 {
		c.gone = make(chan struct{})
	}
	go func() {
		defer c.leave()
		work()
	}()
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 {
		close(c.gone)
		c.gone = nil
	}
}

// Wait returns at a moment when nothing runs.
func (c *crew) Wait() {
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

// Flush waits for the reads under way, whose callers may have left, and for the uses
// that the durable store is being told of: the stores may be closed after it, where
// nobody verifies any more.
func (t *ReadThrough) Flush() { t.background.Wait() }
