package sessiontest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// A Forced is one schedule, whose order the caller decides, judged as [Outages] judges
// its random ones. Faults are the caller's, too.
type Forced struct {
	h        *outage
	m        *session.Manager
	user     *person
	asked    atomic.Int64
	violated []string // guarded by h.mu
}

// A Login is a session of the schedule's one user.
type Login struct{ s *login }

// Token is the latest token of the session.
func (l *Login) Token() string { return l.s.token }

// NewForced makes a schedule over o.Nodes[0] and o.Durable, by the clock that these have.
func NewForced(t testing.TB, o Outages, clock func() time.Time) *Forced {
	f := &Forced{m: o.Nodes[0], user: &person{tenant: "acme", id: "ann", minVersion: 1}}
	// Nothing happens at the very instant of anything else.
	now := func() time.Time { return clock().Add(time.Duration(f.asked.Add(1))) }
	f.h = o.start(t, now, func(format string, args ...any) { f.violated = append(f.violated, fmt.Sprintf(format, args...)) })
	return f
}

// Violated are the violations so far; each begins with the name of its invariant.
func (f *Forced) Violated() []string {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return f.violated
}

// Login is a login that lives a minute and goes idle after 20 s.
func (f *Forced) Login() *Login {
	s := f.h.login(f.m, f.user, session.CreateRequest{UserID: f.user.id, AbsoluteTTL: time.Minute, IdleTTL: 20 * time.Second}, false)
	if s == nil {
		f.h.t.Fatal("the login is refused")
	}
	return &Login{s}
}

// LoginsWriteFromNowOn says that whatever login is under way has not been written yet.
func (f *Forced) LoginsWriteFromNowOn() {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.user.writesAfter = f.user.minVersion
}

// Verify uses the session, by its latest token.
func (f *Forced) Verify(l *Login) { f.h.ask(f.m, l.s, session.VerifyRequest{}, false) }

// Durably asks the durable store alone for a session that has ended.
func (f *Forced) Durably(l *Login) { f.h.durably(l.s) }

// Revoke ends the session.
func (f *Forced) Revoke(l *Login) { f.h.end(f.m, l.s, true) }

// LogoutAll ends all sessions.
func (f *Forced) LogoutAll() {
	f.h.endAll(f.user, "logout-all", func() (session.Changed, error) {
		return f.m.LogoutAll(f.h.t.Context(), f.user.tenant, f.user.id, "")
	}, 0)
}

// Keep ends all sessions but one, or is refused.
func (f *Forced) Keep(l *Login) { f.h.keep(f.m, l.s) }

// Disable ends all sessions, for good.
func (f *Forced) Disable() {
	f.h.endAll(f.user, "disable", func() (session.Changed, error) {
		return f.m.Disable(f.h.t.Context(), f.user.tenant, f.user.id)
	}, 1)
}

// Enable allows new logins. Unlike in [Outages] it is not taken to end anything: who was disabled had ended before.
func (f *Forced) Enable() {
	if _, err := f.m.Enable(f.h.t.Context(), f.user.tenant, f.user.id); err != nil {
		f.h.t.Fatal(err)
	}
}

// Permissions raises the permission epoch.
func (f *Forced) Permissions() { f.h.permissions(f.m, f.user) }

// Rotate replaces the token, at a higher level.
func (f *Forced) Rotate(l *Login) { f.h.rotate(f.m, l.s, session.RotateRequest{AAL: 2}) }

// RotateByOld tries that with a token that was replaced.
func (f *Forced) RotateByOld(l *Login) { f.h.rotateByOld(f.m, l.s) }

// Worst is how long after its acknowledged end a session was last active, of how long it may be.
func (f *Forced) Worst() (worst, bound time.Duration) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return f.h.worst, f.h.bound
}

// Invariant is the name that the violation begins with.
func Invariant(violation string) string {
	name, _, _ := strings.Cut(violation, ":")
	return name
}
