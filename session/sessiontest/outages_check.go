package sessiontest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// A view is what was known when a verify began.
type view struct {
	start     time.Time
	token     string
	current   bool // and live as far as is known
	wideBegun int
	usedBy    time.Time
	usedAt    time.Time
}

func (h *outage) verify(rng *rand.Rand, m *session.Manager, s *login) {
	h.ask(m, s, session.VerifyRequest{NoTouch: s.quiet || rng.IntN(5) == 0}, rng.IntN(8) == 0)
}

// ask verifies by the latest token, or by any.
func (h *outage) ask(m *session.Manager, s *login, req session.VerifyRequest, anyToken bool) {
	h.mu.Lock()
	was := view{
		token: s.token, wideBegun: s.wideBegun, usedBy: s.usedBy, usedAt: s.usedAt,
		current: !s.rotating && s.end == nil && !s.ending && s.wide == 0,
	}
	if anyToken {
		for was.token = range s.levels { // any of them
			break
		}
		was.current = was.current && was.token == s.token
	}
	if !req.NoTouch {
		s.usedBy = h.now()
	}
	was.start = h.now()
	h.mu.Unlock()

	v, err := m.Verify(h.t.Context(), s.tenant, was.token, req)

	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !req.NoTouch {
		s.usedBy = now
	}
	h.counts["verify"]++
	if err != nil {
		h.refused("verify", err)
		return
	}
	h.checkEnd(s, was, v)
	h.checkLive(s, was, v, now)
	if !v.Active {
		return
	}
	h.counts["active from "+string(v.Source)]++
	h.checkActive(s, was, v)
	if !req.NoTouch && was.start.After(s.usedAt) {
		s.usedAt = was.start
	}
}

// checkEnd is I2 and I2p.
func (h *outage) checkEnd(s *login, was view, v session.Verdict) {
	if s.end == nil || !was.start.After(s.end.at) {
		return
	}
	late := was.start.Sub(s.end.at)
	if v.Active {
		h.worst = max(h.worst, late)
	}
	if late > h.bound {
		h.counts["I2"]++
		if v.Active {
			h.violate("I2: active %s after the acknowledgement, bound %s: %+v", late, h.bound, v)
		}
	}
	if intact := s.end.losses == h.losses && h.losses%2 == 0; s.end.propagated && intact && !v.Degraded {
		h.counts["I2p"]++
		if v.Active {
			h.violate("I2p: active %s after a propagated acknowledgement: %+v", late, v)
		}
	}
}

// checkLive is A.
func (h *outage) checkLive(s *login, was view, v session.Verdict, now time.Time) {
	if !was.current || s.token != was.token || s.rotating || s.end != nil || s.ending || s.wide > 0 || s.wideBegun != was.wideBegun {
		return
	}
	if was.usedAt.Before(h.stopped) { // the durable store may not know of that use
		return
	}
	if !h.within(s, was.usedAt, now) {
		return
	}
	h.counts["A"]++
	if !v.Active {
		h.violate("A: a live session is %q from %s: used %s ago, idle %s, quiet %v", v.Reason, v.Source, now.Sub(was.usedAt), s.idle, s.quiet)
	}
}

// within says that neither life of the session is over. A use that is to be written
// down may be late, or get lost, and the cache may lose it, too: that costs D.
func (h *outage) within(s *login, usedAt, now time.Time) bool {
	lost := min(5*time.Minute, s.idle/5)
	if s.quiet {
		lost = 0
	}
	return now.Before(s.expires.Add(-h.Skew)) && now.Before(usedAt.Add(s.idle-lost-h.Skew))
}

// checkLimit is I5.
func (h *outage) checkLimit(u *person) {
	if u.limit == 0 || u.wide > 0 {
		return
	}
	live, now := 0, h.now()
	for _, s := range u.logins {
		if s.end == nil && !s.ending && !s.usedAt.Before(h.stopped) && h.within(s, s.usedAt, now) {
			live++
		}
	}
	h.counts["I5"]++
	if live > u.limit {
		h.violate("I5: %d live sessions of at most %d", live, u.limit)
	}
}

// checkActive is I1, I6 and what I2 says of permissions.
func (h *outage) checkActive(s *login, was view, v session.Verdict) {
	h.counts["I1"]++
	d := min(5*time.Minute, s.idle/5)
	if !v.Session.ExpiresAt.Equal(s.expires) {
		h.violate("I1: the end moved from %s to %s", s.expires, v.Session.ExpiresAt)
	}
	if was.start.After(s.expires.Add(h.Skew)) || was.start.After(was.usedBy.Add(s.idle+d+2*h.Skew)) {
		h.violate("I1: active past its end: %+v, last used %s", v, was.usedBy)
	}
	h.counts["I6"]++
	if level := s.levels[was.token]; v.Session.AAL > level {
		h.violate("I6: level %d by a token of level %d", v.Session.AAL, level)
	}
	for _, e := range s.epochs {
		if v.Session.PermissionEpoch < e.number && was.start.After(e.at.Add(h.bound)) {
			h.counts["I2 permissions"]++
			if !v.PermissionsStale {
				h.violate("I2: permissions of epoch %d after %d", v.Session.PermissionEpoch, e.number)
			}
			break
		}
	}
}

// unchecked are the invariants and faults of which nothing has come up yet.
func (h *outage) unchecked() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []string{"I1", "I2", "I2p", "I3", "I4", "I5", "at the limit", "I6", "T", "A", "I2 permissions", "active from cache", "active from store", "propagated", "keep", "rotate", "disable", "data", "D", "data across an end", "R"}
	for _, f := range h.Faults {
		all = append(all, "fault "+f.Name)
	}
	for _, name := range all {
		if h.counts[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

func (h *outage) report(took time.Duration) {
	if names := h.unchecked(); len(names) > 0 {
		h.t.Errorf("nothing was checked of %q", names)
	}
	if n := h.verifies(); n < h.Verifies {
		h.t.Errorf("%d verifies, not %d", n, h.Verifies)
	}
	var lines []string
	for name, n := range h.counts {
		lines = append(lines, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(lines)
	h.t.Logf("%s, worst staleness %s of F + 2σ = %s: %s", took.Round(time.Millisecond), h.worst.Round(time.Millisecond), h.bound, strings.Join(lines, ", "))
}
