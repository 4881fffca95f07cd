package sessiontest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// A Fault is something that happens to the stores while they are used.
type Fault struct {
	Name  string
	Loses bool // the cache forgets something, or goes back to an older state
	Stops bool // the durable store answers nothing meanwhile, or is not told of uses that were
	Once  bool // it is not repeated
	Do    func(testing.TB)
}

// Outages is a run of many clients at once over several processes, with faults. It
// checks, of each answer, what must hold whatever the cache loses:
//
//	I1   active => it started before the absolute end, and within idle + D + 2σ of the last use; the end never moves
//	I2   an acknowledged revoke, logout-all or disable at r => nothing that starts after r + F + 2σ is active,
//	     or hides that permissions changed
//	I2p  the same, at once, where it was propagated and the cache lost nothing since
//	I3   what has ended is never active in the durable store again
//	I4   a login is before or after each logout-all
//	I5   a user with a limit has no more live sessions than that
//	I6   a replaced token never stands for more than it did
//	T    a token is nobody's in another tenant
//	A    a session that is live all through a verify is not refused
//	D    data is not written to a session that has ended, and each version of it once, by one more than the last
//	R    a session is not rotated by a token that was replaced
type Outages struct {
	Nodes   []*session.Manager // processes over the same stores, with real clocks
	Durable *session.Manager   // over the durable store alone
	Fresh   time.Duration
	Skew    time.Duration
	// Unavailable is what a store says that did not take an operation.
	Unavailable error
	// Unknown is what it says where it does not know whether it did.
	Unknown  error
	Faults   []Fault
	Verifies int           // to make at least
	AtLeast  time.Duration // to run
}

// Run runs and fails the test for every violation.
func (o Outages) Run(t *testing.T) {
	h := o.start(t, time.Now, t.Errorf)
	for i := range 8 {
		u := &person{tenant: []string{"acme", "bolt"}[i%2], id: fmt.Sprint("user", i/2), minVersion: 1}
		if i >= 6 {
			u.limit = 3
		}
		h.users = append(h.users, u)
	}
	began := time.Now()
	done := make(chan struct{})
	var workers, faults sync.WaitGroup
	for worker := range 12 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), uint64(began.UnixNano()))) //nolint:gosec // a history, not a secret
			for {
				select {
				case <-done:
					return
				default:
					h.step(rng)
				}
			}
		})
	}
	faults.Go(func() { h.disturb(done) })
	for time.Since(began) < o.AtLeast || h.verifies() < o.Verifies || len(h.unchecked()) > 0 {
		time.Sleep(10 * time.Millisecond)
		if t.Failed() || time.Since(began) > max(3*time.Minute, 20*o.AtLeast) {
			break
		}
	}
	close(done)
	workers.Wait()
	faults.Wait()
	h.report(time.Since(began))
}

// An outage is what is known of a run. Its facts come from answers alone.
type outage struct {
	Outages
	t       testing.TB
	now     func() time.Time
	violate func(format string, args ...any)
	bound   time.Duration
	users   []*person

	mu      sync.Mutex // guards the rest, and the facts of users and sessions
	counts  map[string]int
	losses  int       // odd while the cache is losing something
	stopped time.Time // the durable store answers again since
	worst   time.Duration
}

func (o Outages) start(t testing.TB, now func() time.Time, violate func(string, ...any)) *outage {
	return &outage{Outages: o, t: t, now: now, violate: violate, bound: o.Fresh + 2*o.Skew, counts: map[string]int{}}
}

type person struct {
	tenant, id string
	limit      int      // of live sessions, 0 = any number
	logins     []*login // the latest last
	wide       int      // changes under way that may end all sessions
	wideBegun  int
	minVersion int64     // sessions of a lower one have ended
	minAt      time.Time // when that was acknowledged
	epochs     []epoch   // acknowledged permission epochs
	doubted    time.Time // a change was given up whose outcome is unknown
	// Sessions of a lower version had ended when a login under way was written, as a schedule knows.
	writesAfter int64
}

type epoch struct {
	number int64
	at     time.Time
}

type login struct {
	*person
	handle   string
	version  int64
	expires  time.Time
	idle     time.Duration
	quiet    bool // is only looked at
	token    string
	rotating bool
	levels   map[string]int // of each token
	ending   bool           // a change of its own that ends it has begun
	end      *ending
	usedBy   time.Time // no use was later than this
	usedAt   time.Time // this use was acknowledged
	data     int64     // the largest version that was acknowledged or read
	written  map[int64]bool
}

type ending struct {
	at         time.Time
	propagated bool
	losses     int // when the change began
}

func (h *outage) verifies() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts["verify"]
}

// disturb makes the faults happen in turn.
func (h *outage) disturb(done <-chan struct{}) {
	lose := func(f Fault) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if f.Loses {
			h.losses++
		}
	}
	for i := 0; len(h.Faults) > 0; i++ {
		select {
		case <-done:
			return
		case <-time.After(h.Fresh / 2):
		}
		f := h.Faults[i%len(h.Faults)]
		if f.Once && i >= len(h.Faults) {
			continue
		}
		lose(f)
		f.Do(h.t)
		lose(f)
		h.mu.Lock()
		h.counts["fault "+f.Name]++
		if f.Stops {
			h.stopped = h.now()
		}
		h.mu.Unlock()
	}
}

func (h *outage) step(rng *rand.Rand) {
	u := h.users[rng.IntN(len(h.users))]
	m := h.Nodes[rng.IntN(len(h.Nodes))]
	h.mu.Lock()
	var s *login
	if n := len(u.logins); n > 0 {
		s = u.logins[n-1-rng.IntN(min(n, 12))]
	}
	h.mu.Unlock()
	switch n := rng.IntN(1_000); {
	case s == nil || n < 25:
		h.create(rng, m, u)
	case n < 30:
		h.end(m, s, rng.IntN(2) == 0)
	case n < 32:
		h.endAcrossWrites(rng, m, s)
	case n < 34:
		h.endAll(u, "logout-all", func() (session.Changed, error) { return m.LogoutAll(h.t.Context(), u.tenant, u.id, "") }, 0)
	case n < 37:
		h.keep(m, s)
	case n < 39:
		h.endAll(u, "disable", func() (session.Changed, error) { return m.Disable(h.t.Context(), u.tenant, u.id) }, 1)
		h.endAll(u, "enable", func() (session.Changed, error) { return m.Enable(h.t.Context(), u.tenant, u.id) }, 0)
	case n < 48:
		h.permissions(m, u)
	case n < 58:
		h.rotate(m, s, session.RotateRequest{AAL: rng.IntN(3)})
		h.rotateByOld(m, s)
	case n < 75:
		h.durably(s)
	case n < 85:
		h.stranger(m, s)
	case n < 115:
		h.write(rng, m, s)
	default:
		h.verify(rng, m, s)
	}
}

// create logs in, twice at once where there is a limit.
func (h *outage) create(rng *rand.Rand, m *session.Manager, u *person) {
	var logins sync.WaitGroup
	for range 1 + min(1, u.limit) {
		req, quiet := h.draw(rng, u)
		logins.Go(func() { h.login(m, u, req, quiet) })
	}
	logins.Wait()
}

func (h *outage) draw(rng *rand.Rand, u *person) (req session.CreateRequest, quiet bool) {
	req = session.CreateRequest{UserID: u.id, AbsoluteTTL: time.Minute, IdleTTL: 20 * time.Second, MaxSessions: u.limit}
	if quiet = rng.IntN(4) == 0; quiet {
		req.IdleTTL = 2 * h.Fresh
	} else if rng.IntN(4) == 0 {
		req.AbsoluteTTL, req.IdleTTL = 4*h.Fresh, 4*h.Fresh
	}
	return req, quiet
}

func (h *outage) login(m *session.Manager, u *person, req session.CreateRequest, quiet bool) *login {
	h.mu.Lock()
	least := u.minVersion
	h.mu.Unlock()
	began := h.now()
	token, made, err := m.Create(h.t.Context(), u.tenant, req)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		if errors.Is(err, session.ErrLimit) {
			h.counts["at the limit"]++
		}
		h.refused("create", err, session.ErrUserDisabled, session.ErrLimit)
		return nil
	}
	h.counts["create"]++
	h.counts["I4"]++
	if least = max(least, u.writesAfter); made.SessionVersion < least {
		h.violate("I4: a login of version %d was written after the end of all below %d", made.SessionVersion, least)
	}
	s := &login{
		person: u, handle: made.Handle, version: made.SessionVersion, expires: made.ExpiresAt, idle: req.IdleTTL, quiet: quiet,
		token: token.Reveal(), levels: map[string]int{token.Reveal(): 1}, usedBy: h.now(), usedAt: began,
		ending: began.Before(u.doubted), written: map[int64]bool{},
	}
	if s.version < u.minVersion { // a logout-all was acknowledged before this login was
		s.end = &ending{at: u.minAt}
	}
	u.logins = append(u.logins, s)
	h.checkLimit(u)
	if len(u.logins) > 100 {
		u.logins = slices.Clone(u.logins[50:])
	}
	return s
}

// refused counts an error that may be, and fails for any other.
func (h *outage) refused(what string, err error, expected ...error) {
	for _, e := range append(expected, h.Unavailable, h.Unknown) {
		if errors.Is(err, e) {
			h.counts[what+" refused"]++
			return
		}
	}
	h.violate("%s: %v", what, err)
}

// doubt counts no session of the user as live any more where a change may have ended it.
func (h *outage) doubt(u *person, err error) {
	if h.Unknown == nil || !errors.Is(err, h.Unknown) {
		return
	}
	u.doubted = h.now()
	for _, s := range u.logins {
		s.ending = true
	}
}

// end revokes the session, by its token or by its handle.
func (h *outage) end(m *session.Manager, s *login, byToken bool) {
	h.mu.Lock()
	s.ending = true
	token, losses := s.token, h.losses
	h.mu.Unlock()
	var p session.Propagation
	var err error
	if byToken {
		var r session.Revocation
		r, err = m.Revoke(h.t.Context(), s.tenant, token)
		p = r.Propagation
	} else {
		p, err = m.RevokeHandle(h.t.Context(), s.tenant, s.handle)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused("revoke", err)
		return
	}
	h.counts["revoke"]++
	h.ended(s, ending{at: h.now(), propagated: p.Propagated, losses: losses})
}

func (h *outage) ended(s *login, e ending) {
	if e.propagated {
		h.counts["propagated"]++
	}
	if s.end == nil {
		s.end = &e
	}
}

// endAll makes a change after which every session below its session version, plus more, has ended.
func (h *outage) endAll(u *person, what string, change func() (session.Changed, error), more int64) {
	h.mu.Lock()
	u.wide++
	u.wideBegun++
	losses := h.losses
	h.mu.Unlock()
	c, err := change()
	h.mu.Lock()
	defer h.mu.Unlock()
	u.wide--
	if err != nil {
		h.doubt(u, err)
		h.refused(what, err)
		return
	}
	h.counts[what]++
	h.endBelow(u, c.SessionVersion+more, ending{at: h.now(), propagated: c.Propagated, losses: losses})
}

func (h *outage) endBelow(u *person, version int64, e ending) {
	if version > u.minVersion {
		u.minVersion, u.minAt = version, e.at
	}
	for _, s := range u.logins {
		if s.version < version {
			h.ended(s, e)
		}
	}
}

// keep is a logout-all that keeps one session, or is refused.
func (h *outage) keep(m *session.Manager, s *login) {
	h.mu.Lock()
	s.wide++
	s.wideBegun++
	token, losses, end := s.token, h.losses, s.end
	h.mu.Unlock()
	c, err := m.LogoutAll(h.t.Context(), s.tenant, s.id, token)
	h.mu.Lock()
	defer h.mu.Unlock()
	s.wide--
	if err != nil {
		h.doubt(s.person, err)
		h.refused("keep", err, session.ErrNotActive)
		return
	}
	h.counts["keep"]++
	if end != nil {
		h.violate("I3: a session was kept that had ended at %s", end.at)
	}
	s.version = max(s.version, c.SessionVersion)
	h.endBelow(s.person, c.SessionVersion, ending{at: h.now(), propagated: c.Propagated, losses: losses})
}

func (h *outage) permissions(m *session.Manager, u *person) {
	c, err := m.BumpPermissions(h.t.Context(), u.tenant, u.id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused("permissions", err)
		return
	}
	h.counts["permissions"]++
	u.epochs = append(u.epochs, epoch{c.PermissionEpoch, h.now()})
}

func (h *outage) rotate(m *session.Manager, s *login, req session.RotateRequest) {
	h.mu.Lock()
	if s.rotating || s.quiet {
		h.mu.Unlock()
		return
	}
	s.rotating = true
	token, end := s.token, s.end
	h.mu.Unlock()
	began := h.now()
	r, err := m.Rotate(h.t.Context(), s.tenant, token, req)
	h.mu.Lock()
	defer h.mu.Unlock()
	s.rotating = false
	if err != nil {
		h.doubt(s.person, err)
		h.refused("rotate", err, session.ErrNotActive)
		return
	}
	h.counts["rotate"]++
	if end != nil {
		h.violate("I3: a session was rotated that had ended at %s", end.at)
	}
	s.token = r.Token.Reveal()
	s.levels[s.token] = r.AAL
	s.usedAt, s.usedBy = began, h.now()
}

// durably asks the durable store alone for a session that has ended.
func (h *outage) durably(s *login) {
	h.mu.Lock()
	token, end := s.token, s.end
	h.mu.Unlock()
	if end == nil {
		return
	}
	v, err := h.Durable.Verify(h.t.Context(), s.tenant, token, session.VerifyRequest{NoTouch: true})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused("durable verify", err)
		return
	}
	h.counts["I3"]++
	if v.Active {
		h.violate("I3: active in the durable store after its end at %s", end.at)
	}
}

func (h *outage) stranger(m *session.Manager, s *login) {
	h.mu.Lock()
	token := s.token
	h.mu.Unlock()
	other := map[string]string{"acme": "bolt", "bolt": "acme"}[s.tenant]
	v, err := m.Verify(h.t.Context(), other, token, session.VerifyRequest{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused("verify", err)
		return
	}
	h.counts["T"]++
	if v.Active || v.Reason != session.Unknown {
		h.violate("T: %+v in another tenant", v)
	}
}
