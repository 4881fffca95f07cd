package fencing_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/fencing"
)

func larger(p, q fencing.Position) bool {
	return p.Token > q.Token || p.Token == q.Token && p.Sequence > q.Sequence
}

func position(t *rapid.T) fencing.Position {
	return fencing.Position{
		Token:    fencing.Token(rapid.IntRange(1, 8).Draw(t, "token")),
		Sequence: int64(rapid.IntRange(0, 4).Draw(t, "sequence")),
	}
}

// Accepted writes have strictly increasing positions, and only they change the record.
func TestRecordInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var r fencing.Record
		for range rapid.IntRange(1, 40).Draw(rt, "length") {
			w := fencing.Write{
				Position: position(rt), Mode: fencing.HighWater,
				Value: []byte(rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "value")),
			}
			next, out := r.Write(fencing.State{}, w)
			if out.Verdict == fencing.Accepted {
				if !larger(next.Position, r.Position) || next.Version != r.Version+1 || string(next.Value) != string(w.Value) || next.Token != w.Token {
					rt.Fatalf("%+v changed %+v to %+v", w, r, next)
				}
			} else if fmt.Sprint(next) != fmt.Sprint(r) {
				rt.Fatalf("%+v was not accepted and changed %+v to %+v", w, r, next)
			}
			if w.Token < r.Token && out.Verdict != fencing.Stale || w.Token >= r.Token && w.Sequence == 0 && out.Verdict != fencing.Accepted {
				rt.Fatalf("%+v on %+v: verdict %d", w, r, out.Verdict)
			}
			r = next
		}
	})
}

// In mode Leased nothing is accepted under a token below the newest grant's, and
// nothing after that grant was released.
func TestLeasedInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var r fencing.Record
		var fence fencing.State
		for range rapid.IntRange(1, 40).Draw(rt, "length") {
			switch rapid.SampledFrom([]string{"grant", "release", "write", "write", "write"}).Draw(rt, "step") {
			case "grant":
				fence.Granted++
				fence.Holder = fmt.Sprint("lse_", fence.Granted)
			case "release":
				fence.Holder = ""
			default:
				w := fencing.Write{Position: position(rt), Mode: fencing.Leased, Value: []byte("1")}
				w.LeaseID = rapid.SampledFrom([]string{"", "lse_1", "lse_2", "lse_3", fmt.Sprint("lse_", w.Token)}).Draw(rt, "lease id")
				next, out := r.Write(fence, w)
				mine := w.Token == fence.Granted && w.LeaseID == fence.Holder && fence.Holder != ""
				if out.Verdict == fencing.Accepted && !mine {
					rt.Fatalf("%+v was accepted with %+v", w, fence)
				}
				if mine && w.Sequence == 0 && out.Verdict != fencing.Accepted {
					rt.Fatalf("the holder's %+v met %+v", w, out)
				}
				if out.Verdict != fencing.Accepted && fmt.Sprint(next) != fmt.Sprint(r) {
					rt.Fatalf("%+v was not accepted and changed %+v to %+v", w, r, next)
				}
				r = next
			}
		}
	})
}

// The mark never falls, never passes what was granted, and the next token exceeds both.
func TestMarkInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s fencing.State
		for range rapid.IntRange(1, 40).Draw(rt, "length") {
			if rapid.IntRange(0, 5).Draw(rt, "grant") == 0 {
				token, ok := s.Next()
				if !ok || token <= s.Granted || token <= s.Mark.Token {
					rt.Fatalf("next of %+v is %d, %v", s, token, ok)
				}
				s.Granted = token
			}
			at := position(rt)
			next, a := s.Admit(at)
			if larger(s.Mark, next.Mark) || a.Mark != next.Mark || next.Granted != s.Granted {
				rt.Fatalf("%+v moved %+v to %+v, %+v", at, s, next, a)
			}
			if a.Verdict != fencing.Accepted && next != s {
				rt.Fatalf("%+v was not accepted and changed %+v to %+v", at, s, next)
			}
			if a.Verdict == fencing.Accepted && at.Token < s.Mark.Token {
				rt.Fatalf("%+v passed the mark %+v", at, s.Mark)
			}
			if s.Granted > 0 && next.Mark.Token > s.Granted {
				rt.Fatalf("%+v raised the mark above what was granted: %+v", at, next)
			}
			s = next
		}
	})
}
