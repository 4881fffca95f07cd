package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// A hall is one node with a resource that waiters wait for, in a bubble of its own time.
type hall struct {
	*testing.T
	store *tallied
	m     *Manager
	start time.Time
	done  chan struct{}

	mu    sync.Mutex // guards what follows
	order []string   // who was answered, and how, in order
	wg    sync.WaitGroup
}

// tallied counts the acquires that reach the store, and can hold one up.
type tallied struct {
	Store
	acquires atomic.Int64
	before   atomic.Pointer[func()]
	after    atomic.Pointer[func()] // it has decided, and its answer is on its way
}

func (s *tallied) Acquire(ctx context.Context, tenant, resource string, req Acquire) (Outcome, error) {
	s.acquires.Add(1)
	if before := s.before.Swap(nil); before != nil {
		(*before)()
	}
	out, err := s.Store.Acquire(ctx, tenant, resource, req)
	if after := s.after.Swap(nil); after != nil {
		(*after)()
	}
	return out, err
}

func inHall(t *testing.T, guard time.Duration, test func(*hall)) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{T: t, store: &tallied{Store: NewLocal(kv.NewMemory(kv.MemoryOptions{}))}, start: time.Now(), done: make(chan struct{})}
		h.m = New(h.store, Options{Guard: guard, Done: h.done})
		test(h)
		h.wg.Wait()
		if n := len(h.m.lines.at); n != 0 {
			t.Errorf("%d lines were left behind", n)
		}
	})
}

func (h *hall) acquire(owner string, ttl time.Duration) Grant {
	h.Helper()
	g, err := h.m.Acquire(h.Context(), "t", "r", AcquireRequest{Owner: owner, TTL: ttl})
	if err != nil {
		h.Fatal(err)
	}
	return g
}

func (h *hall) release(g Grant) {
	h.Helper()
	if err := h.m.Release(h.Context(), "t", "r", Holder{ID: g.ID, Token: g.Token}); err != nil {
		h.Error(err)
	}
}

// queue has the owner wait, notes how that ends, and calls then, where there is one, with its grant.
func (h *hall) queue(ctx context.Context, req AcquireRequest, then func(Grant)) {
	if req.TTL == 0 {
		req.TTL = time.Minute
	}
	h.wg.Go(func() {
		g, err := h.m.Acquire(ctx, "t", "r", req)
		_, held := errors.AsType[*HeldError](err)
		how := "granted"
		switch {
		case held:
			how = "held"
		case err != nil:
			how = err.Error()
		}
		h.mu.Lock()
		h.order = append(h.order, fmt.Sprintf("%s %s at %v", req.Owner, how, time.Since(h.start).Round(time.Millisecond)))
		h.mu.Unlock()
		if err == nil && then != nil {
			then(g)
		}
	})
	synctest.Wait() // it stands in line, or has its answer
}

// want compares who was answered, how and when. In one moment goroutines go in any order.
func (h *hall) want(why string, want ...string) {
	h.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := slices.Sorted(slices.Values(h.order))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.Errorf("%s:\n got %q\nwant %q", why, got, want)
	}
}

func TestWaitersAreServedInOrderAtOnce(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Minute)
		for _, owner := range []string{"a", "b", "c"} {
			h.queue(h.Context(), AcquireRequest{Owner: owner, Wait: MaxWait}, func(g Grant) {
				time.Sleep(50 * time.Millisecond)
				h.release(g)
			})
		}
		time.Sleep(time.Second)
		h.release(g)
		h.wg.Wait()
		h.want("each gets it when the one before gives it back", "a granted at 1s", "b granted at 1.05s", "c granted at 1.1s")
	})
}

// A release while the first of the line is being refused wakes it too.
func TestReleasedDuringATry(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Minute)
		released := func() { h.release(g) }
		h.store.after.Store(&released)
		h.queue(h.Context(), AcquireRequest{Owner: "a", Wait: MaxWait}, nil)
		h.wg.Wait()
		h.want("it asks again at once", "a granted at 0s")
	})
}

// The line also remembers a release during a try that fails.
func TestReleasedDuringATryThatFails(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Minute)
		ctx, leave := context.WithCancel(h.Context())
		arrived, resume := make(chan struct{}), make(chan struct{})
		slow := func() { close(arrived); <-resume }
		h.queue(ctx, AcquireRequest{Owner: "a", Wait: MaxWait}, nil)
		h.queue(h.Context(), AcquireRequest{Owner: "b", Wait: MaxWait}, nil)
		h.store.after.Store(&slow)
		<-arrived
		at := time.Since(h.start)
		h.release(g)
		leave()
		close(resume)
		h.wg.Wait()
		h.want("the next one asks at once", "a context canceled at "+at.Round(time.Millisecond).String(), "b granted at "+at.Round(time.Millisecond).String())
	})
}

func TestOnePollerPerResource(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		h.acquire("holder", time.Hour)
		h.store.acquires.Store(0)
		for i := range 200 {
			h.queue(h.Context(), AcquireRequest{Owner: fmt.Sprint("w", i), Wait: MaxWait}, nil)
		}
		time.Sleep(20 * time.Second)
		if n := h.store.acquires.Load(); n < 33 || n > 50 {
			h.Errorf("200 waiters asked %d times in 20 s", n)
		}
		h.wg.Wait()
		for _, how := range h.order {
			if how[len(how)-len("held at 1m0s"):] != "held at 1m0s" {
				h.Fatalf("a wait ended so: %s", how)
			}
		}
	})
}

// A resource that nobody gives back is free when its time, and the guard, is over:
// then no poll is waited for.
func TestWaitForAHolderThatDied(t *testing.T) {
	inHall(t, 2*time.Second, func(h *hall) {
		h.acquire("holder", 3*time.Second)
		time.Sleep(100 * time.Millisecond)
		h.queue(h.Context(), AcquireRequest{Owner: "a", Wait: MaxWait}, nil)
		h.wg.Wait()
		if took := time.Since(h.start); took <= 5*time.Second || took > 5*time.Second+3*time.Millisecond {
			h.Errorf("granted after %v, not after ttl and guard", took)
		}
	})
}

func TestWaitInVain(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Minute)
		wait := func(d time.Duration) *HeldError {
			_, err := h.m.Acquire(h.Context(), "t", "r", AcquireRequest{Owner: "a", TTL: time.Second, Wait: d})
			held, _ := errors.AsType[*HeldError](err)
			return held
		}
		for _, d := range []time.Duration{time.Millisecond, time.Second} {
			h.queue(h.Context(), AcquireRequest{Owner: "first", Wait: 2 * time.Second}, nil)
			begin := time.Now()
			held := wait(d) // behind the other
			if waited := time.Since(begin); held == nil || waited != d || !held.HeldUntil.Equal(g.ExpiresAt) || held.RetryAfter != time.Until(g.ExpiresAt)+time.Millisecond {
				h.Errorf("after %v: %+v", waited, held)
			}
			h.wg.Wait()
		}
	})
}

// L26, L28: a waiter that goes away is told so, holds nothing and blocks nobody.
func TestL26L28CanceledWaiters(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Hour)
		first, leave := context.WithCancel(h.Context())
		second, leaveToo := context.WithCancel(h.Context())
		h.queue(first, AcquireRequest{Owner: "a", Wait: MaxWait}, nil)
		h.queue(second, AcquireRequest{Owner: "b", Wait: MaxWait}, nil)
		h.queue(h.Context(), AcquireRequest{Owner: "c", Wait: MaxWait}, nil)
		leaveToo()
		synctest.Wait()
		leave()
		synctest.Wait()
		h.want("they are told", "b context canceled at 0s", "a context canceled at 0s")
		h.store.acquires.Store(0)
		time.Sleep(2 * time.Second)
		if n := h.store.acquires.Load(); n < 3 {
			h.Errorf("whoever is first now asked %d times in 2 s", n)
		}
		h.release(g)
		h.wg.Wait()
		h.want("and the third is next", "b context canceled at 0s", "a context canceled at 0s", "c granted at 2s")
	})
}

// L26: whoever goes away while the grant is on its way gives it back, unless it can
// ask for it again.
func TestL26CanceledInTheMomentOfTheGrant(t *testing.T) {
	for requestID, want := range map[string]bool{"": false, "q": true} {
		inHall(t, 0, func(h *hall) {
			ctx, leave := context.WithCancel(h.Context())
			before := func() { leave() }
			h.store.before.Store(&before)
			h.queue(ctx, AcquireRequest{Owner: "a", RequestID: requestID, Wait: MaxWait}, nil)
			h.wg.Wait()
			if l, err := h.m.Get(h.Context(), "t", "r"); err != nil || l.Held != want {
				h.Errorf("request id %q: %+v, %v", requestID, l, err)
			}
		})
	}
}

// L5: a caller that lost the answer, and asks again while others wait, gets its grant.
func TestL5RepeatedRequestDoesNotWaitForItself(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Hour)
		mine := AcquireRequest{Owner: "a", RequestID: "q", Wait: MaxWait}
		h.queue(h.Context(), mine, nil)
		h.queue(h.Context(), AcquireRequest{Owner: "b", Wait: 5 * time.Second}, nil)
		h.queue(h.Context(), mine, nil) // while the first still waits
		h.release(g)
		synctest.Wait()
		h.want("both in one moment", "a granted at 0s", "a granted at 0s")
		h.queue(h.Context(), mine, nil) // after it was granted
		h.want("and once more", "a granted at 0s", "a granted at 0s", "a granted at 0s")
		h.wg.Wait()
		h.want("the other waited", "a granted at 0s", "a granted at 0s", "a granted at 0s", "b held at 5s")
	})
}

// L26: a caller whose rights end while it waits is told so at the next try, and gets nothing;
// whoever is behind it is next at once.
func TestL26WaiterWhoMayNoMore(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Hour)
		var revoked atomic.Bool
		h.queue(h.Context(), AcquireRequest{Owner: "a", Wait: MaxWait, StillMay: func(context.Context) error {
			if revoked.Load() {
				return errors.New("revoked")
			}
			return nil
		}}, nil)
		h.queue(h.Context(), AcquireRequest{Owner: "b", Wait: MaxWait}, nil)
		time.Sleep(2 * time.Second)
		revoked.Store(true)
		h.release(g)
		h.wg.Wait()
		h.want("in the moment of the release", "a revoked at 2s", "b granted at 2s")
	})
	inHall(t, 0, func(h *hall) {
		g := h.acquire("holder", time.Hour)
		var revoked atomic.Bool
		h.queue(h.Context(), AcquireRequest{Owner: "a", Wait: MaxWait, StillMay: func(context.Context) error {
			if revoked.Load() {
				return errors.New("revoked")
			}
			return nil
		}}, nil)
		h.queue(h.Context(), AcquireRequest{Owner: "b", Wait: MaxWait}, nil)
		revoke := func() { revoked.Store(true) }
		time.Sleep(10 * time.Second)
		h.store.after.Store(&revoke)
		h.release(g)
		h.wg.Wait()
		h.want("while its grant was made", "a revoked at 10s", "b granted at 10s")
		if l, err := h.m.Get(h.Context(), "t", "r"); err != nil || l.Owner != "b" || l.Token != g.Token+2 {
			h.Errorf("afterwards: %+v, %v", l, err)
		}
	})
	inHall(t, 0, func(h *hall) {
		h.acquire("holder", time.Hour)
		tries := 0
		h.queue(h.Context(), AcquireRequest{Owner: "a", Wait: MaxWait, StillMay: func(context.Context) error {
			if tries++; tries > 3 {
				return errors.New("revoked")
			}
			return nil
		}}, nil)
		h.wg.Wait()
		if took := time.Since(h.start); took < 1200*time.Millisecond || took > 1800*time.Millisecond {
			h.Errorf("while it is held, told after %v: not at the fourth try", took)
		}
	})
}

func TestNobodyWaitsForANodeThatEnds(t *testing.T) {
	inHall(t, 0, func(h *hall) {
		h.acquire("holder", time.Hour)
		for _, owner := range []string{"a", "b"} {
			h.queue(h.Context(), AcquireRequest{Owner: owner, Wait: MaxWait}, nil)
		}
		close(h.done)
		h.wg.Wait()
		if len(h.order) != 2 || h.order[0][2:] != "held at 0s" || h.order[1][2:] != "held at 0s" {
			h.Errorf("got %q", h.order)
		}
		h.queue(h.Context(), AcquireRequest{Owner: "c", Wait: MaxWait}, nil)
		h.wg.Wait()
		if h.order[2] != "c held at 0s" {
			h.Errorf("after that: %q", h.order)
		}
	})
}

// A store that fails is not pressed by those who wait: one try each poll.
func TestWaitersMeetAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := kv.NewMemory(kv.MemoryOptions{})
		h := &hall{T: t, store: &tallied{Store: NewLocal(memory)}, start: time.Now()}
		h.m = New(h.store, Options{})
		h.acquire("holder", time.Hour)
		for _, owner := range []string{"a", "b", "c"} {
			h.queue(t.Context(), AcquireRequest{Owner: owner, Wait: 2 * time.Second}, nil)
		}
		if err := memory.Close(); err != nil {
			t.Fatal(err)
		}
		h.wg.Wait()
		last := time.Duration(0)
		for range h.order {
			last = time.Since(h.start)
		}
		if len(h.order) != 3 || last < 1200*time.Millisecond || last > 1800*time.Millisecond {
			t.Errorf("three faults within %v: %q", last, h.order)
		}
		if _, err := h.m.Acquire(t.Context(), "t", "r", AcquireRequest{Owner: "d", TTL: time.Second, Wait: time.Second}); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestL34Waits(t *testing.T) {
	m := New(NewLocal(kv.NewMemory(kv.MemoryOptions{})), Options{})
	for _, d := range []time.Duration{-time.Millisecond, MaxWait + time.Millisecond, 1<<63 - 1, -1 << 63} {
		_, err := m.Acquire(t.Context(), "t", "r", AcquireRequest{Owner: "a", TTL: time.Second, Wait: d})
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != "wait_ms" {
			t.Errorf("%v: %v", d, err)
		}
	}
}
