// Package idempotencytest decides whether an idempotency.Store keeps its contract.
package idempotencytest

import (
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
)

// Run checks the store that open returns, which must be empty; it is called once
// for each case.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, open(t))
			for _, s := range c.steps {
				if got := s.do(b, start.Add(millis(s.at))); got != s.want {
					t.Errorf("at %d, %s:\n got %s\nwant %s", s.at, s.why, got, s.want)
				}
			}
		})
	}
	t.Run("race for one key", func(t *testing.T) { race(t, open(t)) })
}

// start is when the cases begin; their steps count milliseconds from it.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A step says what is done, when, what must come of it and why.
type step struct {
	why  string
	at   int // milliseconds
	do   func(*bench, time.Time) string
	want string
}

type testCase struct {
	name  string
	steps []step
}

// A bench runs steps on one key. Steps name a claim by its attempt.
type bench struct {
	t     *testing.T
	store idempotency.Store
	id    idempotency.ID
	calls int
	ids   map[int64]string // claim ids by attempt
}

func newBench(t *testing.T, s idempotency.Store) *bench {
	return &bench{t: t, store: s, id: idempotency.ID{Tenant: "t", Space: "s", Key: "k"}, ids: map[int64]string{}}
}

// claim asks with a fingerprint, a request id, which may be empty, and lifetimes in milliseconds.
func claim(fingerprint, requestID string, lock, ttl int) func(*bench, time.Time) string {
	return claimGuarded(fingerprint, requestID, lock, ttl, 0)
}

func claimGuarded(fingerprint, requestID string, lock, ttl, guard int) func(*bench, time.Time) string {
	return claimBy(false, fingerprint, requestID, lock, ttl, guard)
}

// claimSkewed asks by a clock that may be far off, for a lock of 1 s and a record of 5 s.
func claimSkewed(fingerprint, requestID string) func(*bench, time.Time) string {
	return claimBy(true, fingerprint, requestID, 1000, 5000, 0)
}

func claimBy(skewed bool, fingerprint, requestID string, lock, ttl, guard int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		b.calls++
		out, err := b.store.Claim(b.t.Context(), b.id, idempotency.Claim{
			ID: fmt.Sprintf("clm_%d", b.calls), RequestID: requestID, Fingerprint: fingerprint,
			Now: now, LockTTL: millis(lock), TTL: millis(ttl), Guard: millis(guard), NoSteal: skewed,
		})
		if out.Verdict == idempotency.Done {
			b.note(out.State)
		}
		return describe(out, err)
	}
}

func extend(attempt int64, lock int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return describe(b.store.Extend(b.t.Context(), b.id, idempotency.Extend{ID: b.claimOf(attempt), Now: now, LockTTL: millis(lock)}))
	}
}

func complete(attempt int64, response string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return describe(b.store.Complete(b.t.Context(), b.id, idempotency.Complete{ID: b.claimOf(attempt), Now: now, Response: response}))
	}
}

func abandon(attempt int64) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return describe(b.store.Abandon(b.t.Context(), b.id, idempotency.Abandon{ID: b.claimOf(attempt), Now: now}))
	}
}

// at takes the step with another key.
func at(tenant, space, key string, do func(*bench, time.Time) string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		elsewhere := newBench(b.t, b.store)
		elsewhere.id, elsewhere.calls = idempotency.ID{Tenant: tenant, Space: space, Key: key}, b.calls
		got := do(elsewhere, now)
		b.calls = elsewhere.calls // claim ids are never used twice
		return got
	}
}

// claimOf is the id of the claim with the attempt, that of nobody where there was none.
func (b *bench) claimOf(attempt int64) string {
	if id, known := b.ids[attempt]; known {
		return id
	}
	return "clm_none"
}

// note remembers a claim's id, which must never change.
func (b *bench) note(s idempotency.State) {
	if id, known := b.ids[s.Attempt]; known && id != s.ClaimID {
		b.t.Errorf("attempt %d has the claim id %s, before it had %s", s.Attempt, s.ClaimID, id)
	}
	b.ids[s.Attempt] = s.ClaimID
}

var verdicts = map[idempotency.Verdict]string{
	idempotency.Done: "done", idempotency.Completed: "completed", idempotency.InFlight: "in flight",
	idempotency.Mismatch: "mismatch", idempotency.Lost: "lost", idempotency.Skewed: "skewed",
}

// describe shows the verdict and the state that the store answered with.
func describe(out idempotency.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	s := out.State
	if s.Attempt == 0 {
		return verdicts[out.Verdict]
	}
	text := fmt.Sprintf("%s, %d of %s", verdicts[out.Verdict], s.Attempt, s.Fingerprint)
	if s.RequestID != "" {
		text += " by " + s.RequestID
	}
	text += fmt.Sprintf(", locked to %s, kept to %s", since(s.LockedUntil), since(s.ExpiresAt))
	if s.Abandoned {
		text += ", abandoned"
	}
	if s.Response != "" {
		text += ", " + s.Response
	}
	return text
}

func since(t time.Time) string { return fmt.Sprint(t.Sub(start).Milliseconds()) }

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }
