package lock

import (
	"crypto/subtle"
	"time"
)

// State is a lock that somebody holds, or held until it ended. The zero State is a free one.
type State struct {
	ID        string        `json:"id"`
	Owner     string        `json:"owner"`
	TTL       time.Duration `json:"ttl"` // that it was acquired with
	ExpiresAt time.Time     `json:"expires_at"`
}

// An Acquire is what the manager hands its store. Times are in whole milliseconds.
type Acquire struct {
	ID    string // of the holder to be
	Owner string
	Now   time.Time
	TTL   time.Duration
}

// A Renew is what the manager hands its store.
type Renew struct {
	ID  string
	Now time.Time
	TTL time.Duration // 0 = as it was acquired with
}

// A Release is what the manager hands its store.
type Release struct {
	ID  string
	Now time.Time
}

// A Verdict is how a store decided.
type Verdict int

// The verdicts.
const (
	Done Verdict = iota + 1
	Held         // somebody holds it
	Lost         // the id does not hold it
)

// An Outcome is a store's answer.
type Outcome struct {
	Verdict Verdict
	Left    time.Duration // until the lock ends, whoever holds it
}

// Acquire decides whether the lock is free.
func (s State) Acquire(req Acquire) (State, Outcome) {
	if s.live(req.Now) {
		return s, Outcome{Held, s.ExpiresAt.Sub(req.Now)}
	}
	return State{ID: req.ID, Owner: req.Owner, TTL: req.TTL, ExpiresAt: req.Now.Add(req.TTL)}, Outcome{Done, req.TTL}
}

// Renew decides whether the id holds the lock, and until when then.
func (s State) Renew(req Renew) (State, Outcome) {
	if !s.heldBy(req.ID, req.Now) {
		return s, Outcome{Verdict: Lost}
	}
	ttl := req.TTL
	if ttl == 0 {
		ttl = s.TTL
	}
	s.ExpiresAt = req.Now.Add(ttl)
	return s, Outcome{Done, ttl}
}

// Release decides whether the lock is the id's to end, or free already.
func (s State) Release(req Release) (State, Outcome) {
	if s.live(req.Now) && !s.heldBy(req.ID, req.Now) {
		return s, Outcome{Lost, s.ExpiresAt.Sub(req.Now)}
	}
	return State{}, Outcome{Verdict: Done}
}

func (s State) live(now time.Time) bool { return s.ID != "" && s.ExpiresAt.After(now) }

func (s State) heldBy(id string, now time.Time) bool {
	return s.live(now) && subtle.ConstantTimeCompare([]byte(id), []byte(s.ID)) == 1
}
