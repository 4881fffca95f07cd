// Package quotatest decides whether a quota.Store keeps its contract.
package quotatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/quota"
)

// Run checks the stores that open returns, which must be empty; it is called once
// for each case.
func Run(t *testing.T, open func(t *testing.T) quota.Store) {
	Cases(t, open)
	t.Run("race of workers and a sweeper", func(t *testing.T) { race(t, open(t)) })
	t.Run("race of a commit and the sweeper", func(t *testing.T) { raceOneReservation(t, open(t)) })
	t.Run("race of one request with itself", func(t *testing.T) { raceOneRequest(t, open(t)) })
}

// Cases is Run without the races.
func Cases(t *testing.T, open func(t *testing.T) quota.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{t: t, store: open(t), id: quota.ID{Tenant: "t", Name: "n", Subject: "s"}, reservations: map[string]string{}}
			for _, s := range c.steps {
				if got := s.do(b, start.Add(time.Duration(s.at)*time.Millisecond)); got != s.want {
					t.Errorf("at %d, %s:\n got %s\nwant %s", s.at, s.why, got, s.want)
				}
			}
		})
	}
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

// A bench runs steps on one quota. Steps name a reservation by its request id.
type bench struct {
	t            *testing.T
	store        quota.Store
	id           quota.ID
	calls        int
	reservations map[string]string // ids by request id
}

func set(limit int64, w quota.Window, zone string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return b.describe(b.store.Set(b.t.Context(), b.id, quota.Definition{Limit: limit, Window: w, Zone: zone}, now))
	}
}

func get(b *bench, now time.Time) string {
	return b.describe(b.store.Get(b.t.Context(), b.id, now))
}

func consume(amount int64, requestID string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return b.describe(b.store.Use(b.t.Context(), b.id, quota.Use{Amount: amount, RequestID: requestID, Now: now}))
	}
}

func reserve(amount int64, requestID string, ttl int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		b.calls++
		out, err := b.store.Use(b.t.Context(), b.id, quota.Use{
			Amount: amount, RequestID: requestID, Now: now,
			Reservation: fmt.Sprintf("rsv_%d", b.calls), TTL: time.Duration(ttl) * time.Millisecond,
		})
		if known := b.reservations[requestID]; known == "" {
			b.reservations[requestID] = out.Reservation
		} else if out.Verdict == quota.Done && known != out.Reservation {
			b.t.Errorf("request %s got reservation %s, before it got %s", requestID, out.Reservation, known)
		}
		return b.describe(out, err)
	}
}

func commit(requestID string, amount int64) func(*bench, time.Time) string {
	return settle(requestID, quota.Commit, amount)
}

func cancel(requestID string) func(*bench, time.Time) string {
	return settle(requestID, quota.Cancel, 0)
}

func lapse(requestID string) func(*bench, time.Time) string {
	return settle(requestID, quota.Lapse, 0)
}

func settle(requestID string, action quota.Action, amount int64) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return b.describe(b.store.Settle(b.t.Context(), b.id, quota.Settle{Reservation: b.reservations[requestID], Action: action, Amount: amount, Now: now}))
	}
}

// due shows the request ids whose reservations are due, in the order of their expiry
// where the index is one list.
func due(limit int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		found, err := b.store.Due(b.t.Context(), now, limit)
		if err != nil {
			return err.Error()
		}
		for _, d := range found {
			if d.ID != b.id {
				b.t.Errorf("due is %+v, want one of %+v", d, b.id)
			}
		}
		return fmt.Sprintf("%d due", len(found))
	}
}

// at takes the step at another quota.
func at(id quota.ID, do func(*bench, time.Time) string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		elsewhere := *b
		elsewhere.id = id
		return do(&elsewhere, now)
	}
}

var verdicts = map[quota.Verdict]string{
	quota.Done: "done", quota.Unset: "unset", quota.Exceeded: "exceeded", quota.Mismatch: "mismatch",
	quota.NoReservation: "no reservation", quota.Expired: "expired", quota.TooMuch: "too much", quota.Spared: "spared",
}

// describe shows the verdict and the account that the store answered with, as
// limit = available + reserved + used.
func (b *bench) describe(out quota.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	a := out.Account
	if a.Available+a.Reserved+a.Used != a.Limit {
		b.t.Errorf("the sum does not hold: %+v", a)
	}
	text := verdicts[out.Verdict]
	if a.ID != "" {
		text += fmt.Sprintf(", %d = %d + %d + %d", a.Limit, a.Available, a.Reserved, a.Used)
	}
	if !a.Ends.IsZero() {
		text += " until " + a.Ends.Format("2006-01-02T15:04Z07:00")
	}
	if !out.Until.IsZero() {
		text += fmt.Sprintf(", reserved to %d", out.Until.Sub(start).Milliseconds())
	}
	return text
}
