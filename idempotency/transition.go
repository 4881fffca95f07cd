package idempotency

import (
	"crypto/subtle"
	"time"
)

// State is what is remembered of a key. The zero State stands for one that never came.
type State struct {
	Fingerprint string    `json:"fingerprint"`
	Attempt     int64     `json:"attempt"` // of the latest claim, also of a record that has ended
	ClaimID     string    `json:"claim_id"`
	RequestID   string    `json:"request_id,omitempty"` // of the latest claim
	LockedUntil time.Time `json:"locked_until"`
	ExpiresAt   time.Time `json:"expires_at"` // when the record ends: not before the lock does
	Abandoned   bool      `json:"abandoned,omitempty"`
	Response    string    `json:"response,omitempty"` // compact JSON, empty until the key is completed
}

// A Claim is what the manager hands its store. Times are in whole milliseconds.
type Claim struct {
	ID          string // of the claim to be made, new with every call: a store that repeats requests knows its own earlier try by it
	RequestID   string // empty where the caller gave none
	Fingerprint string
	Now         time.Time
	LockTTL     time.Duration
	TTL         time.Duration // not below LockTTL
	Guard       time.Duration
	NoSteal     bool // Now is too unsure to follow a lock or a record that is over
}

// An Extend is what the manager hands its store.
type Extend struct {
	ID      string
	Now     time.Time
	LockTTL time.Duration
}

// A Complete is what the manager hands its store.
type Complete struct {
	ID       string
	Now      time.Time
	Response string // compact JSON, never empty
}

// An Abandon is what the manager hands its store.
type Abandon struct {
	ID  string
	Now time.Time
}

// A Verdict is how a store decided.
type Verdict int

// The verdicts.
const (
	Done      Verdict = iota + 1
	Completed         // the key has a response
	InFlight          // an executor may be at work
	Mismatch          // the key came with another fingerprint, or the claim with another response
	Lost              // the claim is not the latest, or has ended
	Skewed            // the lock or the record may be over, which the request's clock cannot tell
)

// An Outcome is a store's answer.
type Outcome struct {
	Verdict Verdict
	State   State // as it stands now, whoever's it is
}

// Claim decides whether the caller executes. A key is compared with its fingerprint
// before anything else, and counts its attempts on when its record has ended.
func (s State) Claim(req Claim) (State, Outcome) {
	switch over := s.over(req.Now, req.Guard); {
	case s.free(req.Fingerprint):
	case over && req.NoSteal:
		return s, Outcome{Skewed, s}
	case over:
	case s.Fingerprint != req.Fingerprint:
		return s, Outcome{Mismatch, s}
	case s.Response != "":
		return s, Outcome{Completed, s}
	case s.repeats(req):
		return s, Outcome{Done, s}
	case s.locked(req.Now, req.Guard):
		return s, Outcome{InFlight, s}
	case req.NoSteal:
		return s, Outcome{Skewed, s}
	}
	s = State{
		Fingerprint: req.Fingerprint, Attempt: s.Attempt + 1, ClaimID: req.ID, RequestID: req.RequestID,
		LockedUntil: req.Now.Add(req.LockTTL), ExpiresAt: req.Now.Add(req.TTL),
	}
	return s, Outcome{Done, s}
}

// Extend decides until when the claim's lock lasts, and the record with it.
func (s State) Extend(req Extend) (State, Outcome) {
	if !s.held(req.ID, req.Now) || s.Response != "" {
		return s, Outcome{Lost, s}
	}
	to := req.Now.Add(req.LockTTL)
	if to.After(s.LockedUntil) {
		s.LockedUntil = to
	}
	if s.LockedUntil.After(s.ExpiresAt) {
		s.ExpiresAt = s.LockedUntil
	}
	return s, Outcome{Done, s}
}

// Complete decides whether the response is the key's.
func (s State) Complete(req Complete) (State, Outcome) {
	switch {
	case !s.held(req.ID, req.Now):
		return s, Outcome{Lost, s}
	case s.Response != "" && s.Response != req.Response:
		return s, Outcome{Mismatch, s}
	}
	s.Response = req.Response
	return s, Outcome{Done, s}
}

// Abandon decides whether the claim is the caller's to end.
func (s State) Abandon(req Abandon) (State, Outcome) {
	if !s.latest(req.ID) || s.Response != "" || !s.ExpiresAt.After(req.Now) {
		return s, Outcome{Lost, s}
	}
	s.Abandoned = true
	return s, Outcome{Done, s}
}

// free: the request may claim the key whatever the time is.
func (s State) free(fingerprint string) bool {
	return s.Attempt == 0 || s.Abandoned && s.Fingerprint == fingerprint
}

// over: there is no record, or it has ended by any clock that differs by at most guard.
func (s State) over(now time.Time, guard time.Duration) bool {
	return s.Attempt == 0 || s.ExpiresAt.Before(now.Add(-guard))
}

// locked: the executor may be at work, its clock being behind by up to guard.
func (s State) locked(now time.Time, guard time.Duration) bool {
	return !s.Abandoned && !s.LockedUntil.Before(now.Add(-guard))
}

// repeats: the request asks for the claim that is the latest, while its lock lasts. The
// request id is the caller's, the claim id is that of this very call.
func (s State) repeats(req Claim) bool {
	same := s.ClaimID == req.ID || (req.RequestID != "" && s.RequestID == req.RequestID)
	return same && !s.Abandoned && s.LockedUntil.After(req.Now)
}

// held: the claim is the latest, not abandoned, and its record has not ended. Its lock
// may be over: nobody else has claimed.
func (s State) held(claimID string, now time.Time) bool {
	return s.latest(claimID) && !s.Abandoned && s.ExpiresAt.After(now)
}

func (s State) latest(claimID string) bool {
	return s.Attempt > 0 && subtle.ConstantTimeCompare([]byte(claimID), []byte(s.ClaimID)) == 1
}
