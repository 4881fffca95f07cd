// Package fencingtest decides whether a fencing.Store keeps its contract, as far as
// it can be told without leases: package leasetest has the rest.
package fencingtest

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"

	"github.com/coordsvc/coordsvc/fencing"
)

// Run checks the store that open returns, which must be empty; it is called once
// for each case.
func Run(t *testing.T, open func(t *testing.T) fencing.Store) {
	Cases(t, open)
	t.Run("race for one record", func(t *testing.T) { race(t, open(t)) })
}

// Cases is Run without the race.
func Cases(t *testing.T, open func(t *testing.T) fencing.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{t: t, store: open(t), place: place{"t", "r", "k"}}
			for _, s := range c.steps {
				if got := s.do(b); got != s.want {
					t.Errorf("%s:\n got %s\nwant %s", s.why, got, s.want)
				}
			}
		})
	}
}

// A step says what is done, what must come of it and why.
type step struct {
	why  string
	do   func(*bench) string
	want string
}

type testCase struct {
	name  string
	steps []step
}

type place struct{ tenant, resource, key string }

type bench struct {
	t     *testing.T
	store fencing.Store
	place place
}

// admit shows the verdict and the mark.
func admit(token fencing.Token, sequence int64) func(*bench) string {
	return func(b *bench) string {
		a, err := b.store.Admit(b.t.Context(), b.place.tenant, b.place.resource, fencing.Position{Token: token, Sequence: sequence})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, mark %d/%d", verdicts[a.Verdict], a.Mark.Token, a.Mark.Sequence)
	}
}

func mark(b *bench) string {
	m, err := b.store.Mark(b.t.Context(), b.place.tenant, b.place.resource)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("mark %d/%d", m.Token, m.Sequence)
}

func write(token fencing.Token, sequence int64, value string) func(*bench) string {
	return writeMode(token, sequence, value, fencing.HighWater)
}

func writeMode(token fencing.Token, sequence int64, value string, mode fencing.Mode) func(*bench) string {
	return func(b *bench) string {
		w, err := b.store.Write(b.t.Context(), b.place.tenant, b.place.resource, b.place.key, fencing.Write{
			Position: fencing.Position{Token: token, Sequence: sequence}, Mode: mode, LeaseID: "lse_none", Value: []byte(value),
			ID: rand.Text(),
		})
		if err != nil {
			return err.Error()
		}
		return verdicts[w.Verdict] + ", " + describe(w.Record)
	}
}

// resetMark shows the verdict and the mark.
func resetMark(to fencing.Token) func(*bench) string {
	return func(b *bench) string {
		a, err := b.store.ResetMark(b.t.Context(), b.place.tenant, b.place.resource, to)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s, mark %d/%d", verdicts[a.Verdict], a.Mark.Token, a.Mark.Sequence)
	}
}

func resetRecord(to fencing.Token) func(*bench) string {
	return func(b *bench) string {
		w, err := b.store.ResetRecord(b.t.Context(), b.place.tenant, b.place.resource, b.place.key, fencing.Reset{Token: to, ID: rand.Text()})
		if err != nil {
			return err.Error()
		}
		return verdicts[w.Verdict] + ", " + describe(w.Record)
	}
}

func read(b *bench) string {
	r, err := b.store.Read(b.t.Context(), b.place.tenant, b.place.resource, b.place.key)
	if err != nil {
		return err.Error()
	}
	return describe(r)
}

// at takes the step at another place.
func at(p place, do func(*bench) string) func(*bench) string {
	return func(b *bench) string {
		here := b.place
		defer func() { b.place = here }()
		b.place = p
		return do(b)
	}
}

func describe(r fencing.Record) string {
	if r.Version == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("v%d at %d/%d %s", r.Version, r.Token, r.Sequence, r.Value)
	if r.Mode != fencing.HighWater {
		text += " in mode " + string(r.Mode)
	}
	return text
}

var verdicts = map[fencing.Verdict]string{
	fencing.Accepted: "accepted", fencing.Replayed: "replayed", fencing.Stale: "stale", fencing.NotGranted: "not granted",
	fencing.SequenceReused: "sequence reused", fencing.ModeFixed: "mode fixed",
	fencing.NotHolder: "not holder", fencing.Absent: "absent",
}

// race lets writers of two tokens write without sequences at once: whatever is
// accepted has a position of its own, and the record's last one is the largest.
func race(t *testing.T, store fencing.Store) {
	const writers, writes = 64, 4
	var (
		mu       sync.Mutex // guards accepted
		accepted = map[fencing.Position]int64{}
		done     sync.WaitGroup
	)
	for i := range writers {
		done.Go(func() {
			for n := range writes {
				w, err := store.Write(t.Context(), "t", "r", "k", fencing.Write{
					Position: fencing.Position{Token: fencing.Token(1 + (i+n)/writers)}, Mode: fencing.HighWater,
					Value: []byte("1"), ID: fmt.Sprintf("%d-%d", i, n),
				})
				if err != nil {
					t.Error(err)
				}
				if w.Verdict == fencing.Accepted {
					mu.Lock()
					if before, taken := accepted[w.Record.Position]; taken {
						t.Errorf("versions %d and %d both have position %v", before, w.Record.Version, w.Record.Position)
					}
					accepted[w.Record.Position] = w.Record.Version
					mu.Unlock()
				}
			}
		})
	}
	done.Wait()
	last, err := store.Read(t.Context(), "t", "r", "k")
	if err != nil || last.Version != int64(len(accepted)) {
		t.Errorf("%d writes were accepted, the record has version %d, %v", len(accepted), last.Version, err)
	}
	for p, version := range accepted {
		if (p.Token > last.Token || p.Token == last.Token && p.Sequence > last.Sequence) || (version == last.Version) != (p == last.Position) {
			t.Errorf("version %d at %v, the last is %d at %v", version, p, last.Version, last.Position)
		}
	}
}
