package fencing

import (
	"bytes"
	"cmp"
)

// State is what is remembered of a resource's tokens.
type State struct {
	Granted Token    `json:"granted,omitempty"` // the newest token that a lease handed out, 0 = never leased here
	Mark    Position `json:"mark,omitzero"`     // the largest position admitted
}

// A Verdict is how a store decided.
type Verdict int

// The verdicts.
const (
	Accepted       Verdict = iota + 1
	Replayed               // the same write was accepted before; nothing changed
	Stale                  // below the position reached
	NotGranted             // the token was never handed out
	SequenceReused         // the same position wrote another value
	ModeFixed              // the record has another mode
)

// An Admission is a store's answer to Admit.
type Admission struct {
	Verdict Verdict
	Mark    Position // as it stands now
}

// A Write is what the manager hands its store.
type Write struct {
	Position
	Mode  Mode
	Value []byte // compact JSON
	ID    string // of this call: a store that repeats requests knows its own earlier try by it
}

// Written is a store's answer to Write.
type Written struct {
	Verdict Verdict
	Record  Record // as it stands now
}

// Next returns the token of the next grant: larger than all handed out and all
// admitted so far. It reports false where no token is left.
func (s State) Next() (Token, bool) {
	next := max(s.Granted, s.Mark.Token) + 1
	return next, next <= MaxToken
}

// Admit decides whether the position passes, and where the mark stands then.
func (s State) Admit(at Position) (State, Admission) {
	if s.Granted > 0 && at.Token > s.Granted {
		return s, Admission{NotGranted, s.Mark}
	}
	if at.Sequence == 0 && at.Token == s.Mark.Token {
		at = s.Mark
	}
	if at.compare(s.Mark) < 0 {
		return s, Admission{Stale, s.Mark}
	}
	s.Mark = at
	return s, Admission{Accepted, s.Mark}
}

// Write decides whether the record's value is replaced, and what it is then.
func (r Record) Write(w Write) (Record, Written) {
	at := r.position(w.Position)
	order := at.compare(r.Position)
	switch {
	case r.Version > 0 && r.Mode != w.Mode:
		return r, Written{ModeFixed, r}
	case order < 0 || at.Sequence > MaxSequence:
		return r, Written{Stale, r}
	case order == 0 && !bytes.Equal(r.Value, w.Value):
		return r, Written{SequenceReused, r}
	case order == 0:
		return r, Written{Replayed, r}
	}
	r = Record{Position: at, Value: w.Value, Version: r.Version + 1, Mode: w.Mode}
	return r, Written{Accepted, r}
}

// position gives a write that names no sequence the one after the record's.
func (r Record) position(at Position) Position {
	switch {
	case at.Sequence > 0:
	case at.Token == r.Token:
		at.Sequence = r.Sequence + 1
	default:
		at.Sequence = 1
	}
	return at
}

func (p Position) compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Token, q.Token), cmp.Compare(p.Sequence, q.Sequence))
}

func (v Verdict) refusal(at Position) error {
	switch v {
	case Accepted, Replayed:
		return nil
	case Stale:
		return &StaleError{at}
	case NotGranted:
		return ErrNotGranted
	case SequenceReused:
		return ErrSequenceReused
	case ModeFixed:
		return ErrModeFixed
	}
	panic("fencing: a store returned no verdict")
}
