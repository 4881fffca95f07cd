package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// A faulty store fails renewals while told to: at once, or by never answering.
type faulty struct {
	Store
	fail, hang, lose, hangOnce, hangRelease, skewOnce atomic.Bool
	renewals                                          atomic.Int64
}

func (s *faulty) Acquire(ctx context.Context, tenant, resource string, req Acquire) (Outcome, error) {
	if s.skewOnce.CompareAndSwap(true, false) {
		return Outcome{Verdict: Skewed}, nil
	}
	return s.Store.Acquire(ctx, tenant, resource, req)
}

func (s *faulty) Release(ctx context.Context, tenant, resource string, holder Holder) (Outcome, error) {
	if s.hangRelease.Load() {
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}
	return s.Store.Release(ctx, tenant, resource, holder)
}

func (s *faulty) Renew(ctx context.Context, tenant, resource string, req Renew) (Outcome, error) {
	s.renewals.Add(1)
	switch {
	case s.fail.Load():
		return Outcome{}, keytype.ErrUnavailable
	case s.hang.Load() || s.hangOnce.CompareAndSwap(true, false):
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}
	out, err := s.Store.Renew(ctx, tenant, resource, req)
	if s.lose.Load() && err == nil {
		return Outcome{}, keytype.ErrOutcomeUnknown
	}
	return out, err
}

// A keeper keeps leases of 10 s in a bubble of its own time.
type keeper struct {
	*testing.T
	store *faulty
	m     *Manager
	start time.Time
}

func inBubble(t *testing.T, test func(*keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{T: t, store: &faulty{Store: NewLocal(kv.NewMemory(kv.MemoryOptions{}))}, start: time.Now()}
		k.m = New(k.store, Options{})
		test(k)
	})
}

func (k *keeper) keep() *Kept {
	k.Helper()
	kept, err := Keep(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second})
	if err != nil {
		k.Fatal(err)
	}
	return kept
}

// ends waits for the end of the work's context and returns when that was, and why.
func (k *keeper) ends(kept *Kept) (time.Duration, error) {
	<-kept.Context().Done()
	return time.Since(k.start), context.Cause(kept.Context())
}

func (k *keeper) steal(ctx context.Context) {
	k.Helper()
	l, err := k.m.Get(ctx, "t", "r")
	if err != nil {
		k.Fatal(err)
	}
	if _, err := k.m.ForceRelease(ctx, "t", "r", l.Token, ""); err != nil {
		k.Fatal(err)
	}
}

func TestKeepRenews(t *testing.T) {
	inBubble(t, func(k *keeper) {
		kept := k.keep()
		time.Sleep(time.Hour)
		if err := kept.Context().Err(); err != nil {
			k.Errorf("after an hour: %v", err)
		}
		if n := k.store.renewals.Load(); n < 1000 || n > 1100 {
			k.Errorf("%d renewals in an hour of 10 s leases", n)
		}
		for range 2 {
			if err := kept.Release(k.Context()); err != nil {
				k.Error(err)
			}
		}
		if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || l.Held || kept.Context().Err() == nil {
			k.Errorf("released: %+v, %v", l, err)
		}
	})
}

// L43: a renewal that fails is tried again until it succeeds.
func TestL43KeepGoesOnThroughErrors(t *testing.T) {
	for name, fault := range map[string]func(*faulty) *atomic.Bool{
		"a store that fails":    func(s *faulty) *atomic.Bool { return &s.fail },
		"answers that are lost": func(s *faulty) *atomic.Bool { return &s.lose },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(k *keeper) {
				kept := k.keep()
				for range 5 {
					fault(k.store).Store(true)
					time.Sleep(5 * time.Second) // less than what is left after any renewal
					fault(k.store).Store(false)
					time.Sleep(4 * time.Second)
				}
				if err := context.Cause(kept.Context()); err != nil {
					k.Errorf("the lease was given up: %v", err)
				}
				if err := kept.Release(k.Context()); err != nil {
					k.Error(err)
				}
			})
		})
	}
}

// L43: a renewal that is never answered does not use up the time for others.
func TestL43KeepOutlivesARenewalThatHangs(t *testing.T) {
	inBubble(t, func(k *keeper) {
		kept := k.keep()
		for range 10 {
			k.store.hangOnce.Store(true)
			time.Sleep(20 * time.Second)
		}
		if err := context.Cause(kept.Context()); err != nil || k.store.hangOnce.Load() {
			k.Errorf("the lease was given up: %v", err)
		}
		_ = kept.Release(k.Context())
	})
}

// L43: so also with the renewal that follows a wait, whose grant is given back.
func TestL43KeepAfterAWaitGivesUpARenewalThatHangs(t *testing.T) {
	inBubble(t, func(k *keeper) {
		if _, err := k.m.Acquire(k.Context(), "t", "r", AcquireRequest{Owner: "z", TTL: 20 * time.Second}); err != nil {
			k.Fatal(err)
		}
		k.store.hang.Store(true)
		k.store.hangRelease.Store(true)
		kept, err := Keep(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second, Wait: MaxWait})
		if !errors.Is(err, context.DeadlineExceeded) || kept != nil || k.elapsed() > 31*time.Second {
			k.Errorf("at %v: %v", k.elapsed(), err)
		}
	})
}

// A release that is never answered is given up when the lease is over.
func TestRunOneGivesUpAReleaseThatHangs(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"a lease of seconds": 10 * time.Second, "a lease of a day": MaxTTL} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(k *keeper) {
				k.store.hangRelease.Store(true)
				err := RunOne(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: ttl}, func(context.Context, fencing.Token) error { return nil })
				if !errors.Is(err, context.DeadlineExceeded) || k.elapsed() > min(ttl, time.Minute) {
					k.Errorf("at %v: %v", k.elapsed(), err)
				}
			})
		})
	}
}

// A deaf client answers no renewal at all, whatever its context says.
type deaf struct {
	leaser
	hear <-chan struct{}
}

func (d deaf) Renew(context.Context, string, string, Holder, time.Duration) (Grant, error) {
	<-d.hear
	return Grant{}, ErrLost
}

func TestReleaseDoesNotWaitForARenewalBeyondItsContext(t *testing.T) {
	inBubble(t, func(k *keeper) {
		hear := make(chan struct{})
		kept, err := Keep(k.Context(), deaf{k.m, hear}, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second})
		if err != nil {
			k.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ctx, stop := context.WithTimeout(k.Context(), time.Second)
		defer stop()
		if err := kept.Release(ctx); k.elapsed() > 6*time.Second {
			k.Errorf("at %v: %v", k.elapsed(), err)
		}
		close(hear)
	})
}

// The own deadline comes before the lease ends: then there is still something to release.
func TestReleaseAfterTheOwnDeadline(t *testing.T) {
	for name, end := range map[string]func(*keeper) error{
		"Release": func(k *keeper) error {
			kept := k.keep()
			_, _ = k.ends(kept)
			return kept.Release(k.Context())
		},
		"RunOne": func(k *keeper) error {
			err := RunOne(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second}, func(ctx context.Context, _ fencing.Token) error {
				<-ctx.Done()
				return nil
			})
			if !errors.Is(err, ErrExpired) {
				return fmt.Errorf("it was not told: %w", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(k *keeper) {
				k.store.fail.Store(true)
				if err := end(k); err != nil {
					k.Error(err)
				}
				if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || l.Held || k.elapsed() >= 10*time.Second {
					k.Errorf("at %v it is still held: %+v, %v", k.elapsed(), l, err)
				}
			})
		})
	}
}

// So also where the work stopped so late that the lease has ended meanwhile: until the
// guard is over nobody else could have it.
func TestRunOneReleasesWhatHasExpired(t *testing.T) {
	inBubble(t, func(k *keeper) {
		k.store.fail.Store(true)
		err := RunOne(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second}, func(context.Context, fencing.Token) error {
			time.Sleep(11 * time.Second)
			return nil
		})
		if s, stored := k.store.Get(k.Context(), "t", "r"); !errors.Is(err, ErrExpired) || errors.Is(err, context.DeadlineExceeded) || !s.Released || stored != nil {
			k.Errorf("%v; %+v, %v", err, s, stored)
		}
	})
}

// L22, L43: the work is told in time where no renewal succeeds.
func TestL22L43KeepEndsTheWorkBeforeTheLeaseCanBeTaken(t *testing.T) {
	for name, fault := range map[string]func(*faulty) *atomic.Bool{
		"a store that fails":         func(s *faulty) *atomic.Bool { return &s.fail },
		"a store that never answers": func(s *faulty) *atomic.Bool { return &s.hang },
		"answers that are lost":      func(s *faulty) *atomic.Bool { return &s.lose },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(k *keeper) {
				kept := k.keep()
				time.Sleep(time.Minute - k.elapsed()) // renewed last at most 3.4 s ago
				fault(k.store).Store(true)
				at, cause := k.ends(kept)
				if !errors.Is(cause, ErrExpired) {
					k.Errorf("the cause is %v", cause)
				}
				if at < 65*time.Second || at > 69*time.Second {
					k.Errorf("it ended %v after the store failed", at-time.Minute)
				}
				if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || !l.Held {
					k.Errorf("the lease can be taken already: %+v, %v", l, err)
				}
				fault(k.store).Store(false)
				time.Sleep(time.Hour)
				if n := k.store.renewals.Load(); n > 100 {
					k.Errorf("it went on with %d renewals", n)
				}
				if err := kept.Release(k.Context()); err != nil {
					k.Errorf("released when it was lost: %v", err)
				}
			})
		})
	}
}

func (k *keeper) elapsed() time.Duration { return time.Since(k.start) }

// L22: a holder that lost its lease to another is told at its next renewal, once.
func TestL22KeepTellsOfALoss(t *testing.T) {
	inBubble(t, func(k *keeper) {
		kept := k.keep()
		time.Sleep(time.Second)
		k.steal(k.Context())
		if at, cause := k.ends(kept); !errors.Is(cause, ErrLost) || at > 3400*time.Millisecond {
			k.Errorf("at %v: %v", at, cause)
		}
		time.Sleep(time.Hour)
		if n := k.store.renewals.Load(); n != 1 || !errors.Is(context.Cause(kept.Context()), ErrLost) {
			k.Errorf("%d renewals, then %v", n, context.Cause(kept.Context()))
		}
		next, err := k.m.Acquire(k.Context(), "t", "r", AcquireRequest{Owner: "b", TTL: time.Minute})
		if err != nil {
			k.Fatal(err)
		}
		if err := kept.Release(k.Context()); err != nil {
			k.Error(err)
		}
		if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || !l.Held || l.Token != next.Token {
			k.Errorf("the former holder's release ended the next one's grant: %+v, %v", l, err)
		}
	})
}

func TestKeepEndsWhereRenewalMayNotReach(t *testing.T) {
	inBubble(t, func(k *keeper) {
		kept, err := Keep(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second, MaxHold: 25 * time.Second})
		if err != nil {
			k.Fatal(err)
		}
		if at, cause := k.ends(kept); !errors.Is(cause, ErrExpired) || at < 20*time.Second || at >= 25*time.Second {
			k.Errorf("at %v: %v", at, cause)
		}
	})
}

// What was waited for has aged by an unknown part: its time counts from a renewal.
func TestKeepAfterAWait(t *testing.T) {
	inBubble(t, func(k *keeper) {
		if _, err := k.m.Acquire(k.Context(), "t", "r", AcquireRequest{Owner: "z", TTL: 30 * time.Second}); err != nil {
			k.Fatal(err)
		}
		kept, err := Keep(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second, Wait: MaxWait})
		if err != nil || k.elapsed() < 30*time.Second || k.store.renewals.Load() != 1 {
			k.Fatalf("at %v, with %d renewals: %v", k.elapsed(), k.store.renewals.Load(), err)
		}
		time.Sleep(time.Minute)
		if err := kept.Context().Err(); err != nil {
			k.Error(err)
		}
		_ = kept.Release(k.Context())
	})
}

func TestKeepEndsWithItsCaller(t *testing.T) {
	inBubble(t, func(k *keeper) {
		ctx, cancel := context.WithCancel(k.Context())
		kept, err := Keep(ctx, k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second})
		if err != nil {
			k.Fatal(err)
		}
		cancel()
		if _, cause := k.ends(kept); !errors.Is(cause, context.Canceled) {
			k.Error(cause)
		}
		if err := kept.Release(k.Context()); err != nil {
			k.Error(err)
		}
		if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || l.Held {
			k.Errorf("%+v, %v", l, err)
		}
	})
}

func TestRunOne(t *testing.T) {
	inBubble(t, func(k *keeper) {
		req := AcquireRequest{Owner: "a", TTL: 10 * time.Second}
		failed := errors.New("the work failed")
		err := RunOne(k.Context(), k.m, "t", "r", req, func(ctx context.Context, token fencing.Token) error {
			_, second := errors.AsType[*HeldError](RunOne(ctx, k.m, "t", "r", req, func(context.Context, fencing.Token) error {
				k.Error("two run at once")
				return nil
			}))
			if !second || token != 1 {
				k.Errorf("token %d, the second was refused: %t", token, second)
			}
			return failed
		})
		if !errors.Is(err, failed) || errors.Is(err, ErrLost) || errors.Is(err, ErrExpired) {
			k.Errorf("got %v", err)
		}
		err = RunOne(k.Context(), k.m, "t", "r", req, func(ctx context.Context, _ fencing.Token) error {
			k.steal(ctx)
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, ErrLost) {
			k.Errorf("lost while it ran: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = RunOne(k.Context(), k.m, "t", "r", req, func(context.Context, fencing.Token) error { panic("the work's own") })
		}()
		if l, err := k.m.Get(k.Context(), "t", "r"); err != nil || l.Held {
			k.Errorf("after a panic: %+v, %v", l, err)
		}
	})
}

// A node that ends refuses at once, however long it is to wait.
func TestLeadDoesNotPressANodeThatEnds(t *testing.T) {
	done := make(chan struct{})
	close(done)
	inHall(t, 0, func(h *hall) {
		h.m = New(h.store, Options{Done: done})
		h.acquire("holder", time.Minute)
		h.store.acquires.Store(0)
		ctx, stop := context.WithTimeout(h.Context(), 20*time.Second+time.Millisecond)
		defer stop()
		if err := Lead(ctx, h.m, "t", "r", AcquireRequest{Owner: "a", TTL: time.Minute}, nil); !errors.Is(err, context.DeadlineExceeded) {
			h.Errorf("ended with %v", err)
		}
		if n := h.store.acquires.Load(); n < 20 || n > 21 {
			h.Errorf("asked %d times in 20 s", n)
		}
	})
}

// A clock that is off at one moment ends no candidate.
func TestLeadOutlivesClockSkew(t *testing.T) {
	inBubble(t, func(k *keeper) {
		k.store.skewOnce.Store(true)
		led := errors.New("it led")
		err := Lead(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "a", TTL: 10 * time.Second}, func(context.Context, fencing.Token) error { return led })
		if !errors.Is(err, led) || k.store.skewOnce.Load() {
			k.Errorf("ended with %v", err)
		}
	})
}

func TestLead(t *testing.T) {
	inBubble(t, func(k *keeper) {
		ctx, stop := context.WithCancel(k.Context())
		var leading, most atomic.Int64
		var terms atomic.Int64
		done := make(chan error)
		for i := range 3 {
			go func() {
				done <- Lead(ctx, k.m, "t", "r", AcquireRequest{Owner: fmt.Sprint("c", i), TTL: 10 * time.Second}, func(ctx context.Context, _ fencing.Token) error {
					terms.Add(1)
					most.Store(max(most.Load(), leading.Add(1)))
					defer leading.Add(-1)
					<-ctx.Done()
					return ctx.Err()
				})
			}()
		}
		for range 5 {
			time.Sleep(20 * time.Second)
			if leading.Load() != 1 {
				k.Errorf("%d lead", leading.Load())
			}
			k.store.fail.Store(true) // whoever leads loses it
			time.Sleep(20 * time.Second)
			k.store.fail.Store(false)
		}
		if terms.Load() < 6 || most.Load() != 1 {
			k.Errorf("%d terms, at most %d at once", terms.Load(), most.Load())
		}
		stop()
		for range 3 {
			if err := <-done; !errors.Is(err, context.Canceled) {
				k.Errorf("a candidate ended with %v", err)
			}
		}
		if err := Lead(k.Context(), k.m, "t", "r", AcquireRequest{Owner: "c"}, nil); err == nil || !strings.Contains(err.Error(), "ttl_ms") {
			k.Errorf("a mistake is not tried for ever: %v", err)
		}
	})
}
