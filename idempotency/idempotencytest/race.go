package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
)

// race lets many callers retry one request each until they have a response. Executors
// crash between claim and completion, or come late: all callers get one response,
// which one executor alone was told that it is, and attempts are handed out once.
func race(t *testing.T, store idempotency.Store) {
	const callers, crashes = 16, 3
	r := &racing{now: start, attempts: map[int64]bool{}, crashes: crashes}
	m := idempotency.New(store, idempotency.Options{Now: r.clock})
	responses := make([]string, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			response, err := r.call(t.Context(), m, fmt.Sprintf(`"of %d"`, i))
			if err != nil {
				t.Error(err)
			}
			responses[i] = response
		})
	}
	group.Wait()
	for i, response := range responses {
		if response != responses[0] || response == "" {
			t.Errorf("caller %d got %s, caller 0 got %s", i, response, responses[0])
		}
	}
	if len(r.completed) != 1 || r.completed[0] != responses[0] || len(r.attempts) < crashes+1 {
		t.Errorf("completed: %q, after %d attempts", r.completed, len(r.attempts))
	}
}

// racing is what the callers share.
type racing struct {
	mu        sync.Mutex // guards the rest
	now       time.Time
	attempts  map[int64]bool
	completed []string
	crashes   int // executors that are still to crash
}

func (r *racing) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// call repeats the request until it has a response.
func (r *racing) call(ctx context.Context, m *idempotency.Manager, mine string) (string, error) {
	for ctx.Err() == nil {
		c, err := m.Claim(ctx, "t", "k", idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Hour})
		if inFlight, ok := errors.AsType[*idempotency.InFlightError](err); ok {
			r.wait(inFlight.RetryAfter)
			continue
		}
		if err != nil {
			return "", err
		}
		if c.Completed {
			return c.Response, nil
		}
		crash, err := r.execute(c.Attempt)
		if err != nil {
			return "", err
		}
		if crash {
			continue
		}
		err = m.Complete(ctx, "t", "k", c.ID, mine)
		if err == nil {
			r.done(mine)
		}
		if err != nil && !errors.Is(err, idempotency.ErrLost) {
			return "", err
		}
	}
	return "", ctx.Err()
}

// wait lets time pass for everybody: now and then an executor is late by it.
func (r *racing) wait(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d / 4)
}

// execute tells whether the executor crashes.
func (r *racing) execute(attempt int64) (crash bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attempts[attempt] {
		return false, fmt.Errorf("attempt %d was handed out twice", attempt)
	}
	r.attempts[attempt] = true
	r.crashes--
	return r.crashes >= 0, nil
}

func (r *racing) done(response string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.completed = append(r.completed, response)
}
