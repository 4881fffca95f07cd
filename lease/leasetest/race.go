package leasetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// Contest has racers ask for the resource at the same moment and returns the one
// grant that comes of it. It is an error if there are two or none, or another
// refusal than a *lease.HeldError.
func Contest(ctx context.Context, m *lease.Manager, resource string, racers int) (lease.Grant, error) {
	var (
		ready, done sync.WaitGroup
		begin       = make(chan struct{})
		grants      = make([]lease.Grant, racers)
		errs        = make([]error, racers)
	)
	for i := range racers {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			grants[i], errs[i] = m.Acquire(ctx, "t", resource, lease.AcquireRequest{Owner: fmt.Sprintf("racer-%d", i), TTL: time.Minute})
		})
	}
	ready.Wait()
	close(begin)
	done.Wait()
	var won []lease.Grant
	for i, err := range errs {
		if _, held := errors.AsType[*lease.HeldError](err); err == nil {
			won = append(won, grants[i])
		} else if !held {
			return lease.Grant{}, err
		}
	}
	if len(won) != 1 {
		return lease.Grant{}, fmt.Errorf("%d of %d racers were granted the resource: %v", len(won), racers, won)
	}
	return won[0], nil
}

// A Series is what a run of contests has made known so far.
type Series struct {
	Granted  fencing.Token // the latest token that was acknowledged
	Released fencing.Token // the latest release that was acknowledged
}

// Race lets 64 racers meet, again and again: each time one of them gets a token
// larger than all before, which is released. It calls known after every
// acknowledgement, and ends after that many rounds, or with an error.
func Race(ctx context.Context, m *lease.Manager, resource string, rounds int, known func(Series)) error {
	var s Series
	for range rounds {
		g, err := Contest(ctx, m, resource, 64)
		if err != nil {
			return err
		}
		if g.Token <= s.Granted {
			return fmt.Errorf("token %d after token %d", g.Token, s.Granted)
		}
		s.Granted = g.Token
		known(s)
		if err := m.Release(ctx, "t", resource, lease.Holder{ID: g.ID, Token: g.Token}); err != nil {
			return fmt.Errorf("release token %d: %w", g.Token, err)
		}
		s.Released = g.Token
		known(s)
	}
	return nil
}

// CheckAfterCrash compares what is stored after a crash with what was acknowledged
// before: all of that is there, and at most one more step, whose answer was lost.
func (s Series) CheckAfterCrash(stored lease.State) error {
	sameGrant := stored.Token == s.Granted && (stored.Released || s.Released < s.Granted)
	nextGrant := stored.Token == s.Granted+1 && s.Released == s.Granted && !stored.Released
	if !sameGrant && !nextGrant {
		return fmt.Errorf("stored token %d, released %t, after %+v was acknowledged", stored.Token, stored.Released, s)
	}
	return nil
}

func race(t *testing.T, s Stores) {
	const rounds = 50
	var last Series
	if err := Race(t.Context(), lease.New(s.Leases, lease.Options{}), "r", rounds, func(s Series) { last = s }); err != nil {
		t.Fatalf("after %+v: %v", last, err)
	}
	if last.Granted != rounds {
		t.Errorf("%d grants took %d tokens", rounds, last.Granted)
	}
}
