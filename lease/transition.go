package lease

import (
	"crypto/subtle"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
)

// State is what is remembered of a resource's latest grant, also after its end.
// The zero State stands for a resource that was never granted.
type State struct {
	Token        fencing.Token `json:"token"`
	ID           string        `json:"id"`
	Owner        string        `json:"owner"`
	RequestID    string        `json:"request_id,omitempty"`
	AcquiredAt   time.Time     `json:"acquired_at"`
	ExpiresAt    time.Time     `json:"expires_at"`
	MaxExpiresAt time.Time     `json:"max_expires_at"` // no renewal reaches beyond
	Released     bool          `json:"released,omitempty"`
	Forced       string        `json:"forced,omitempty"` // request id of the forced release that ended it, and raised Token
	Data         string        `json:"data,omitempty"`   // compact JSON
	Set          string        `json:"set,omitempty"`    // which resources it was granted together with, empty for a grant by itself
}

// An Acquire is what the manager hands its store. Times are in whole milliseconds.
type Acquire struct {
	Owner     string
	RequestID string // empty where the caller gave none
	ID        string // of the grant to be made, new with every call: a store that repeats requests knows its own earlier try by it
	Now       time.Time
	TTL       time.Duration
	MaxHold   time.Duration
	Guard     time.Duration
	NotAfter  time.Time // zero = never past
	Data      string    // compact JSON, may be empty
	NoSteal   bool      // Now is too unsure to take over what has expired
	Set       string    // what stands for the resources of the set that this one is asked for with, empty where by itself
}

// A Renew is what the manager hands its store.
type Renew struct {
	Holder
	Now time.Time
	TTL time.Duration
}

// A Force is what the manager hands its store.
type Force struct {
	Token     fencing.Token // that the caller saw
	RequestID string        // never empty
}

// A Verdict is how a store decided.
type Verdict int

// The verdicts.
const (
	Done           Verdict = iota + 1
	Held                   // somebody holds it, or did less than the guard ago
	RequestExpired         // the request was granted, and that grant has ended; or it came too late
	Lost                   // the holder's grant is not the latest, or was released
	Expired                // the holder's grant is the latest, but too old
	Exhausted              // no token is left
	Skewed                 // it may have expired, which the request's clock cannot tell
	Mismatch               // the request id was granted another set, or not a set
)

// An Outcome is a store's answer.
type Outcome struct {
	Verdict Verdict
	State   State // as it stands now, whoever's it is
}

// Acquire decides whether the resource is granted anew, and what its state is then.
func (s State) Acquire(fence fencing.State, req Acquire) (State, Outcome) {
	switch {
	case s.repeats(req) && req.Set != "" && req.Set != s.Set:
		return s, Outcome{Mismatch, s}
	case s.repeats(req) && s.live(req.Now):
		return s, Outcome{Done, s}
	case s.repeats(req):
		return s, Outcome{RequestExpired, s}
	case !req.NotAfter.IsZero() && req.Now.After(req.NotAfter):
		return s, Outcome{RequestExpired, s}
	case s.guarded(req.Now, req.Guard):
		return s, Outcome{Held, s}
	case s.Token > 0 && !s.Released && req.NoSteal:
		return s, Outcome{Skewed, s}
	}
	token, ok := fence.Next()
	if !ok {
		return s, Outcome{Exhausted, s}
	}
	s = State{
		Token: token, ID: req.ID, Owner: req.Owner, RequestID: req.RequestID,
		AcquiredAt: req.Now, ExpiresAt: req.Now.Add(req.TTL), MaxExpiresAt: req.Now.Add(req.MaxHold),
		Data: req.Data, Set: req.Set,
	}
	return s, Outcome{Done, s}
}

// Renew decides whether the holder's grant goes on, and until when.
func (s State) Renew(req Renew) (State, Outcome) {
	switch {
	case !s.latest(req.Holder) || s.Released:
		return s, Outcome{Lost, s}
	case !s.live(req.Now):
		return s, Outcome{Expired, s}
	}
	to := req.Now.Add(req.TTL)
	if to.After(s.MaxExpiresAt) {
		to = s.MaxExpiresAt
	}
	if to.After(s.ExpiresAt) {
		s.ExpiresAt = to
	}
	return s, Outcome{Done, s}
}

// Release decides whether the grant is the holder's to end.
func (s State) Release(h Holder) (State, Outcome) {
	if !s.latest(h) {
		return s, Outcome{Lost, s}
	}
	s.Released = true
	return s, Outcome{Done, s}
}

// Force decides whether the grant that the caller saw is ended, and what the token is
// then. It is one that no holder has: the latest grant's own is below it.
func (s State) Force(fence fencing.State, req Force) (State, Outcome) {
	switch {
	case s.Forced == req.RequestID && s.Token > req.Token:
		return s, Outcome{Done, s}
	case s.Token == 0 || s.Token != req.Token:
		return s, Outcome{Lost, s}
	}
	token, ok := fence.Next()
	if !ok {
		return s, Outcome{Exhausted, s}
	}
	s.Token, s.Released, s.Forced = token, true, req.RequestID
	return s, Outcome{Done, s}
}

// tell is what the fence knows of the latest grant.
func (s State) tell(fence fencing.State) fencing.State {
	fence.Granted, fence.Holder = s.Token, s.ID
	if s.Released {
		fence.Holder = ""
	}
	return fence
}

// repeats: the request asks for the grant that is the latest. The request id is
// the caller's, the lease id is that of this very call.
func (s State) repeats(req Acquire) bool {
	if s.Token == 0 {
		return false
	}
	return s.ID == req.ID || (req.RequestID != "" && s.RequestID == req.RequestID && s.Owner == req.Owner)
}

// live is the holder's own view, by one clock and without a guard.
func (s State) live(now time.Time) bool {
	return s.Token > 0 && !s.Released && s.ExpiresAt.After(now)
}

// guarded is everybody else's view: their clock may be ahead of the holder's by up to guard.
func (s State) guarded(now time.Time, guard time.Duration) bool {
	return s.Token > 0 && !s.Released && !s.ExpiresAt.Before(now.Add(-guard))
}

// latest: a holder knows both the token, which others may see, and the id, which only they do.
func (s State) latest(h Holder) bool {
	return s.Token > 0 && h.Token == s.Token && subtle.ConstantTimeCompare([]byte(h.ID), []byte(s.ID)) == 1
}

func (s State) lease(resource string, now time.Time) Lease {
	return Lease{
		Resource: resource, Held: s.live(now), Owner: s.Owner, Token: s.Token,
		AcquiredAt: s.AcquiredAt, ExpiresAt: s.ExpiresAt, Data: s.Data,
	}
}
