// Package leasetest decides whether a lease.Store keeps its contract.
package leasetest

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// Stores are a lease store and the fencing store over the same data.
type Stores struct {
	Leases lease.Store
	Fences fencing.Store
}

// Run checks the stores that open returns, which must be empty; it is called once
// for each case.
func Run(t *testing.T, open func(t *testing.T) Stores) {
	Cases(t, open)
	t.Run("race for one free lease", func(t *testing.T) { race(t, open(t)) })
	t.Run("race for overlapping sets", func(t *testing.T) { raceSets(t, open(t)) })
}

// Cases is Run without the race.
func Cases(t *testing.T, open func(t *testing.T) Stores) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, open(t))
			for _, s := range c.steps {
				if got := s.do(b, start.Add(time.Duration(s.at)*time.Millisecond)); got != s.want {
					t.Errorf("at %d, %s:\n got %s\nwant %s", s.at, s.why, got, s.want)
				}
			}
		})
	}
	t.Run("sets", func(t *testing.T) { sets(t, open(t)) })
	t.Run("list by owner", func(t *testing.T) { list(t, open(t)) })
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

// A bench runs steps on one resource. Steps name a grant by its token.
type bench struct {
	t        *testing.T
	stores   Stores
	tenant   string
	resource string
	calls    int
	ids      map[fencing.Token]string // lease ids by token
}

func newBench(t *testing.T, s Stores) *bench {
	return &bench{t: t, stores: s, tenant: "t", resource: "r", ids: map[fencing.Token]string{}}
}

const (
	hold  = 10_000 // milliseconds that grants of the cases can be kept
	guard = 0
)

// acquire asks with a lifetime in milliseconds and a request id, which may be empty.
func acquire(owner string, ttl int, requestID string) func(*bench, time.Time) string {
	return acquireGuarded(owner, ttl, requestID, guard)
}

func acquireGuarded(owner string, ttl int, requestID string, guard int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		b.calls++
		out, err := b.stores.Leases.Acquire(b.t.Context(), b.tenant, b.resource, lease.Acquire{
			Owner: owner, RequestID: requestID, ID: fmt.Sprintf("lse_%d", b.calls),
			Now: now, TTL: millis(ttl), MaxHold: millis(hold), Guard: millis(guard),
		})
		if out.Verdict == lease.Done {
			b.note(out.State)
		}
		return describe(out, err)
	}
}

// acquireUntil asks with a moment after which the request is void, and with data.
func acquireUntil(owner, requestID string, notAfter int, data string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		b.calls++
		out, err := b.stores.Leases.Acquire(b.t.Context(), b.tenant, b.resource, lease.Acquire{
			Owner: owner, RequestID: requestID, ID: fmt.Sprintf("lse_%d", b.calls), Now: now, TTL: millis(1000), MaxHold: millis(hold),
			NotAfter: start.Add(millis(notAfter)), Data: data,
		})
		if out.Verdict == lease.Done {
			b.note(out.State)
		}
		return describe(out, err)
	}
}

// acquireSkewed asks at a node whose clock is not to be trusted.
func acquireSkewed(owner string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		b.calls++
		out, err := b.stores.Leases.Acquire(b.t.Context(), b.tenant, b.resource, lease.Acquire{
			Owner: owner, RequestID: "skewed", ID: fmt.Sprintf("lse_%d", b.calls), Now: now, TTL: millis(1000), MaxHold: millis(hold), NoSteal: true,
		})
		if out.Verdict == lease.Done {
			b.note(out.State)
		}
		return describe(out, err)
	}
}

func force(token fencing.Token, requestID string) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		return describe(b.stores.Leases.Force(b.t.Context(), b.tenant, b.resource, lease.Force{Token: token, RequestID: requestID}))
	}
}

func raiseFloor(to fencing.Token) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		floor, err := b.stores.Leases.RaiseFloor(b.t.Context(), to)
		return fmt.Sprintf("floor %d, %v", floor, err)
	}
}

func renew(token fencing.Token, ttl int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string { return renewAs(token, b.ids[token], ttl)(b, now) }
}

func renewAs(token fencing.Token, id string, ttl int) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		return describe(b.stores.Leases.Renew(b.t.Context(), b.tenant, b.resource,
			lease.Renew{Holder: lease.Holder{ID: id, Token: token}, Now: now, TTL: millis(ttl)}))
	}
}

func release(token fencing.Token) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string { return releaseAs(token, b.ids[token])(b, now) }
}

func releaseAs(token fencing.Token, id string) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		return describe(b.stores.Leases.Release(b.t.Context(), b.tenant, b.resource, lease.Holder{ID: id, Token: token}))
	}
}

// get shows what is stored, the lease id too.
func get(b *bench, _ time.Time) string {
	s, err := b.stores.Leases.Get(b.t.Context(), b.tenant, b.resource)
	if err != nil || s == (lease.State{}) {
		return fmt.Sprintf("nothing, %v", err)
	}
	text := fmt.Sprintf("%d of %s by %q from %s to %s, at most %s", s.Token, s.Owner, s.RequestID, since(s.AcquiredAt), since(s.ExpiresAt), since(s.MaxExpiresAt))
	if s.Released {
		text += ", released"
	}
	if s.Forced != "" {
		return text + fmt.Sprintf(", forced by %q", s.Forced)
	}
	if s.Data != "" {
		text += ", data " + s.Data
	}
	if s.ID != b.ids[s.Token] {
		b.t.Errorf("stored lease id is %s, the grant's is %s", s.ID, b.ids[s.Token])
	}
	return text
}

// admit shows the verdict and the mark.
func admit(token fencing.Token, sequence int64) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		a, err := b.stores.Fences.Admit(b.t.Context(), b.tenant, b.resource, fencing.Position{Token: token, Sequence: sequence})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, mark %d/%d", admitVerdicts[a.Verdict], a.Mark.Token, a.Mark.Sequence)
	}
}

// write writes a record in mode Leased, as the holder of the token, and shows what came of it.
func write(token fencing.Token, sequence int64, value string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string { return writeAs(token, b.ids[token], sequence, value)(b, now) }
}

func writeAs(token fencing.Token, id string, sequence int64, value string) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		w, err := b.stores.Fences.Write(b.t.Context(), b.tenant, b.resource, "k", fencing.Write{
			Position: fencing.Position{Token: token, Sequence: sequence}, Mode: fencing.Leased, LeaseID: id,
			Value: []byte(value), ID: rand.Text(),
		})
		if err != nil {
			return err.Error()
		}
		text := fmt.Sprintf("%s, v%d at %d/%d %s", writeVerdicts[w.Verdict], w.Record.Version, w.Record.Token, w.Record.Sequence, w.Record.Value)
		if w.Verdict == fencing.NotHolder {
			text += fmt.Sprintf(", granted %d", w.Granted)
		}
		return text
	}
}

// resetMark shows the verdict and the mark.
func resetMark(to fencing.Token) func(*bench, time.Time) string {
	return func(b *bench, _ time.Time) string {
		a, err := b.stores.Fences.ResetMark(b.t.Context(), b.tenant, b.resource, to)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, mark %d/%d", admitVerdicts[a.Verdict], a.Mark.Token, a.Mark.Sequence)
	}
}

// at takes the step at another place.
func at(tenant, resource string, do func(*bench, time.Time) string) func(*bench, time.Time) string {
	return func(b *bench, now time.Time) string {
		elsewhere := newBench(b.t, b.stores)
		elsewhere.tenant, elsewhere.resource, elsewhere.calls = tenant, resource, b.calls
		got := do(elsewhere, now)
		b.calls = elsewhere.calls // lease ids are never used twice
		return got
	}
}

// note remembers a grant's lease id, which must never change.
func (b *bench) note(s lease.State) {
	if id, known := b.ids[s.Token]; known && id != s.ID {
		b.t.Errorf("token %d has lease id %s, before it had %s", s.Token, s.ID, id)
	}
	b.ids[s.Token] = s.ID
}

var verdicts = map[lease.Verdict]string{
	lease.Done: "done", lease.Held: "held", lease.RequestExpired: "request expired",
	lease.Lost: "lost", lease.Expired: "expired", lease.Exhausted: "exhausted", lease.Skewed: "skewed",
}

var writeVerdicts = map[fencing.Verdict]string{
	fencing.Accepted: "accepted", fencing.Replayed: "replayed", fencing.Stale: "stale", fencing.NotGranted: "not granted",
	fencing.SequenceReused: "sequence reused", fencing.NotHolder: "not holder",
}

var admitVerdicts = map[fencing.Verdict]string{
	fencing.Accepted: "accepted", fencing.Stale: "stale", fencing.NotGranted: "not granted",
}

// describe shows the verdict and the state that the store answered with.
func describe(out lease.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	if out.State.Token == 0 {
		return verdicts[out.Verdict]
	}
	text := fmt.Sprintf("%s, %d to %s", verdicts[out.Verdict], out.State.Token, since(out.State.ExpiresAt))
	if out.State.Released {
		text += ", released"
	}
	return text
}

func since(t time.Time) string { return fmt.Sprint(t.Sub(start).Milliseconds()) }

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }
