package sessiontest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/coordsvc/coordsvc/session"
)

// write replaces the data twice at once, each as one does who read the latest
// version, or the one before.
func (h *outage) write(rng *rand.Rand, m *session.Manager, s *login) {
	var writers sync.WaitGroup
	for range 2 {
		behind, data := int64(rng.IntN(4)/3), fmt.Append(nil, rng.Int64())
		writers.Go(func() { h.writeOnce(m, s, behind, data) })
	}
	writers.Wait()
}

// endAcrossWrites revokes the session among writes, which may come before or after.
// Those that begin now are too late.
func (h *outage) endAcrossWrites(rng *rand.Rand, m *session.Manager, s *login) {
	byToken := rng.IntN(2) == 0
	var ending sync.WaitGroup
	ending.Go(func() { h.end(m, s, byToken) })
	h.write(rng, m, s)
	ending.Wait()
	h.write(rng, m, s)
	h.durably(s)
}

func (h *outage) writeOnce(m *session.Manager, s *login, behind int64, data []byte) {
	h.mu.Lock()
	known, end, before := s.data, s.end, s.ending
	h.mu.Unlock()
	version := max(0, known-behind)
	next, err := m.SetData(h.t.Context(), s.tenant, s.handle, version, data)
	if errors.Is(err, session.ErrDataVersion) {
		h.read(m, s, known)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	answered := err == nil || errors.Is(err, session.ErrNotFound)
	if end != nil && answered {
		h.counts["D"]++
	}
	if end == nil && answered && (before || s.ending) {
		h.counts["data across an end"]++
	}
	if err != nil {
		h.refused("data", err, session.ErrNotFound, session.ErrDataVersion)
		return
	}
	h.counts["data"]++
	if end != nil {
		h.violate("D: version %d was written %s after the end", next, h.now().Sub(end.at))
	}
	if next != version+1 || version < known || s.written[next] {
		h.violate("D: version %d was written over %d when %d was known, written before: %v", next, version, known, s.written[next])
	}
	s.written[next] = true
	s.data = max(s.data, next)
}

// read learns the version, which is no lower than it was.
func (h *outage) read(m *session.Manager, s *login, known int64) {
	d, err := m.Data(h.t.Context(), s.tenant, s.handle)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused("read data", err, session.ErrNotFound)
		return
	}
	h.counts["read data"]++
	if d.Version < known {
		h.violate("D: version %d is read after %d", d.Version, known)
	}
	s.data = max(s.data, d.Version)
}

// rotateByOld tries a token that was replaced.
func (h *outage) rotateByOld(m *session.Manager, s *login) {
	h.mu.Lock()
	old := ""
	for token := range s.levels {
		if token != s.token {
			old = token
		}
	}
	h.mu.Unlock()
	if old == "" {
		return
	}
	_, err := m.Rotate(h.t.Context(), s.tenant, old, session.RotateRequest{})
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.counts["R"]++
		h.violate("R: rotated by a token that was replaced")
	case errors.Is(err, session.ErrNotActive):
		h.counts["R"]++
	default:
		h.refused("rotate", err)
	}
}
