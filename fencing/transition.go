package fencing

import (
	"bytes"
	"cmp"
	"crypto/subtle"
)

// State is what is remembered of a resource's tokens.
type State struct {
	Granted Token    `json:"granted,omitempty"` // the newest token that a lease handed out, 0 = never leased here
	Holder  string   `json:"holder,omitempty"`  // lease id of that newest grant, empty once it was released or forced
	Mark    Position `json:"mark,omitzero"`     // the largest position admitted
	Floor   Token    `json:"-"`                 // of the whole store, for grants: no token up to it is handed out
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
	NotHolder              // the writer's grant is not the latest, or was released
	Absent                 // there is nothing to reset
)

// An Admission is a store's answer to Admit.
type Admission struct {
	Verdict Verdict
	Mark    Position // as it stands now
}

// A Write is what the manager hands its store.
type Write struct {
	Position
	Mode    Mode
	LeaseID string // in mode Leased, never empty there
	Value   []byte // compact JSON
	ID      string // of this call, unique: a store that repeats requests knows its own earlier try by it
}

// A Reset is what the manager hands its store.
type Reset struct {
	Token Token
	ID    string // of this call, as a Write's
}

// Written is a store's answer to Write and ResetRecord.
type Written struct {
	Verdict Verdict
	Record  Record // as it stands now
	Granted Token  // with NotHolder: the newest token handed out
}

// Next returns the token of the next grant: larger than all handed out and all
// admitted so far, and larger than the floor. It reports false where no token is left.
func (s State) Next() (Token, bool) {
	next := max(s.Granted, s.Mark.Token, s.Floor) + 1
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

// Reset sets the mark to the token, which must be one that writers can reach.
func (s State) Reset(to Token) (State, Admission) {
	switch {
	case s.Mark == Position{}:
		return s, Admission{Absent, s.Mark}
	case s.Granted > 0 && to > s.Granted:
		return s, Admission{NotGranted, s.Mark}
	}
	s.Mark = Position{Token: to}
	return s, Admission{Accepted, s.Mark}
}

// holds says whether the lease id is the latest grant's, and that still stands.
func (s State) holds(leaseID string) bool {
	return s.Holder != "" && subtle.ConstantTimeCompare([]byte(leaseID), []byte(s.Holder)) == 1
}

// Write decides whether the record's value is replaced, and what it is then. What
// the lease has to say comes last: a repetition of a write that was accepted is
// answered again, whoever holds the resource since.
func (r Record) Write(fence State, w Write) (Record, Written) {
	at := r.position(w.Position)
	order := at.compare(r.Position)
	switch {
	case r.Version > 0 && r.Mode != w.Mode:
		return r, Written{Verdict: ModeFixed, Record: r}
	case order < 0 || at.Sequence > MaxSequence:
		return r, Written{Verdict: Stale, Record: r}
	case order == 0 && !bytes.Equal(r.Value, w.Value):
		return r, Written{Verdict: SequenceReused, Record: r}
	case order == 0:
		return r, Written{Verdict: Replayed, Record: r}
	case w.Mode == Leased && w.Token > fence.Granted:
		return r, Written{Verdict: NotGranted, Record: r}
	case w.Mode == Leased && (w.Token < fence.Granted || !fence.holds(w.LeaseID)):
		return r, Written{Verdict: NotHolder, Record: r, Granted: fence.Granted}
	}
	r = Record{Position: at, Value: w.Value, Version: r.Version + 1, Mode: w.Mode}
	return r, Written{Verdict: Accepted, Record: r}
}

// Reset sets the record's position to the token, and leaves the rest.
func (r Record) Reset(to Token) (Record, Written) {
	if r.Version == 0 {
		return r, Written{Verdict: Absent, Record: r}
	}
	r.Position = Position{Token: to}
	return r, Written{Verdict: Accepted, Record: r}
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

// answer turns what a store said into what the manager's caller gets.
func (w Written) answer(err error) (Record, error) {
	if err != nil {
		return Record{}, err
	}
	at := w.Record.Position
	if w.Verdict == NotHolder {
		at = Position{Token: w.Granted}
	}
	if err := w.Verdict.refusal(at); err != nil {
		return Record{}, err
	}
	return w.Record, nil
}

func (v Verdict) refusal(at Position) error {
	switch v {
	case Accepted, Replayed:
		return nil
	case Stale, NotHolder:
		return &StaleError{at}
	case NotGranted:
		return ErrNotGranted
	case SequenceReused:
		return ErrSequenceReused
	case ModeFixed:
		return ErrModeFixed
	case Absent:
		return ErrNotFound
	}
	panic("fencing: a store returned no verdict")
}
