package checker

import (
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// sightings are what the clients of a history saw, and no more: what is judged by them
// needs no model.
type sightings struct {
	h      *history
	epoch  int // how often items were lost
	grants []granted
	admits []admitted
	writes []wrote
	forces []forced
	holds  []hold
	over   map[fencing.Token]bool // somebody asked for its end
	tried  map[string]int64       // when a write, with its position and value, was first sent
}

func newSightings(h *history) *sightings {
	return &sightings{h: h, over: map[fencing.Token]bool{}, tried: map[string]int64{}}
}

// A sighting is a call that was answered.
type sighting struct {
	begun, ended int64
	sent         time.Duration // when it began
	epoch        int
}

func (s sighting) before(t sighting) bool { return s.ended < t.begun }

type granted struct {
	sighting
	token         fencing.Token
	id, requestID string
}

type admitted struct {
	sighting
	asked, mark fencing.Position
}

type wrote struct {
	sighting
	key   string
	asked fencing.WriteRequest
	got   fencing.Record
}

type forced struct {
	sighting
	from, to fencing.Token
}

// A hold is a time during which somebody may think to be alone.
type hold struct {
	token    fencing.Token
	from, to time.Duration
}

func (s *sightings) begin(what string) sighting {
	s.h.note(what)
	return sighting{begun: s.h.tick(), sent: s.h.now, epoch: s.epoch}
}

func (s *sightings) end(at sighting) sighting {
	at.ended = s.h.tick()
	return at
}

func (s *sightings) granted(at sighting, g lease.Grant, requestID string) {
	s.grants = append(s.grants, granted{s.end(at), g.Token, g.ID, requestID})
	s.hold(at, g)
}

func (s *sightings) renewed(at sighting, g lease.Grant) { s.hold(at, g) }

func (s *sightings) hold(at sighting, g lease.Grant) {
	if to := at.sent + g.ValidFor; to > s.h.now && !s.over[g.Token] {
		s.holds = append(s.holds, hold{g.Token, s.h.now, to})
	}
}

// ended is called before a grant's end is asked for: from then on nobody relies on it.
func (s *sightings) ended(token fencing.Token) {
	s.over[token] = true
	for i := range s.holds {
		if s.holds[i].token == token {
			s.holds[i].to = min(s.holds[i].to, s.h.now)
		}
	}
}

// lost is called when the items are lost: nobody can rely on what is not stored.
func (s *sightings) lost() {
	s.epoch++
	for _, h := range s.holds {
		s.ended(h.token)
	}
}

func (s *sightings) admitted(at sighting, asked, mark fencing.Position) {
	s.admits = append(s.admits, admitted{s.end(at), asked, mark})
}

func (s *sightings) wrote(at sighting, key string, asked fencing.WriteRequest, got fencing.Record) {
	s.writes = append(s.writes, wrote{s.end(at), key, asked, got})
}

func (s *sightings) forced(at sighting, from, to fencing.Token) {
	s.h.note("forced releases")
	s.forces = append(s.forces, forced{s.end(at), from, to})
}

func (s *sightings) judge() {
	s.judgeTokens()
	s.judgeForces()
	s.judgeMarks()
	s.judgeWrites()
	s.judgeExclusion()
	s.countTakeovers()
}

// judgeTokens: later grants have larger tokens, no two the same, and a request gets one.
func (s *sightings) judgeTokens() {
	for i, a := range s.grants {
		for _, b := range s.grants[i+1:] { // answered after a
			switch {
			case a.token == b.token && a.id != b.id:
				s.h.violate("tokens are never equal", "two grants, %s and %s, have token %d", a.id, b.id, a.token)
			case a.before(b.sighting) && b.token < a.token:
				s.h.violate("tokens grow", "token %d was granted after token %d", b.token, a.token)
			case a.requestID != "" && a.requestID == b.requestID && next(a.token, b.token):
				s.h.violate("a request gets one token", "request %s got token %d and, though nobody got one between, token %d", a.requestID, a.token, b.token)
			}
		}
	}
}

// next says that one token follows on the other.
func next(a, b fencing.Token) bool { return a+1 == b || b+1 == a }

// judgeForces: a forced release takes a token that is larger than all before.
func (s *sightings) judgeForces() {
	for _, f := range s.forces {
		if f.to <= f.from {
			s.h.violate("a forced release bumps", "it left token %d at %d", f.from, f.to)
		}
		for _, g := range s.grants {
			if f.before(g.sighting) && g.token <= f.to {
				s.h.violate("tokens grow", "token %d was granted after %d was taken by a forced release", g.token, f.to)
			}
		}
	}
}

// judgeMarks: no token passes that is below one that passed before, since the last loss.
func (s *sightings) judgeMarks() {
	for i, a := range s.admits {
		for _, b := range s.admits[i+1:] {
			if !a.before(b.sighting) || a.epoch != b.epoch {
				continue
			}
			if b.mark.Token < a.mark.Token || b.mark.Token == a.mark.Token && b.mark.Sequence < a.mark.Sequence {
				s.h.violate("no token below the highest admitted", "%+v was admitted, the mark being %+v, after %+v", b.asked, b.mark, a.mark)
			}
		}
	}
}

// judgeWrites: positions grow, and in mode lease nobody writes after a later grant.
func (s *sightings) judgeWrites() {
	for i, a := range s.writes {
		for _, b := range s.writes[i+1:] {
			if a.key == b.key && a.before(b.sighting) && !follows(a.got, b.got) {
				s.h.violate("accepted writes have growing positions", "%s of %s at %+v, version %d, after %s at %+v, version %d",
					b.got.Value, b.key, b.got.Position, b.got.Version, a.got.Value, a.got.Position, a.got.Version)
			}
		}
		for _, g := range s.grants {
			if a.asked.Mode == fencing.Leased && g.token > a.asked.Token && g.ended < s.tried[name(a.key, a.asked)] {
				s.h.violate("in mode lease nobody writes after a later grant", "token %d wrote %s after token %d was granted", a.asked.Token, a.got.Value, g.token)
			}
		}
	}
}

// follows: b is a later write than a, or the same one, answered again.
func follows(a, b fencing.Record) bool {
	if a.Position == b.Position {
		return a.Version == b.Version && string(a.Value) == string(b.Value)
	}
	later := b.Token > a.Token || b.Token == a.Token && b.Sequence > a.Sequence
	return later && b.Version > a.Version
}

// name tells writes apart. One that names a sequence may be sent several times, and is
// answered again if it was accepted once.
func name(key string, w fencing.WriteRequest) string {
	return fmt.Sprintf("%s %+v %s", key, w.Position, w.Value)
}

func (s *sightings) beginWrite(key string, w fencing.WriteRequest) sighting {
	at := s.begin("write")
	if _, again := s.tried[name(key, w)]; !again {
		s.tried[name(key, w)] = at.begun
	}
	return at
}

// judgeExclusion: nobody holds what somebody else thinks to hold, as far as clocks can be
// trusted. Where they cannot, it is counted.
func (s *sightings) judgeExclusion() {
	for i, a := range s.holds {
		for _, b := range s.holds[i+1:] {
			if a.token == b.token || a.to <= b.from || b.to <= a.from {
				continue
			}
			if s.h.beyond {
				s.h.note("overlapping holds, clocks beyond G")
				continue
			}
			s.h.violate("one holder at a time", "token %d was valid from %v to %v, and token %d from %v to %v, clocks within G", a.token, a.from, a.to, b.token, b.from, b.to)
		}
	}
}

// countTakeovers counts the grants before whose beginning nobody had ended the one before.
func (s *sightings) countTakeovers() {
	known := map[fencing.Token]bool{}
	for _, g := range s.grants {
		known[g.token] = true
	}
	for token := range known {
		if known[token-1] && !s.over[token-1] {
			s.h.note("takeovers")
		}
	}
}
