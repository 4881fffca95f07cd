package redissession_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// A lossy is the real cache with places to stop at, and messages that get lost.
type lossy struct {
	session.Cache
	lost                   atomic.Bool // the messages of changes
	down                   atomic.Bool // all
	beforeFill, beforeBump atomic.Pointer[func()]
}

func (l *lossy) Verify(ctx context.Context, op session.VerifyOp, terms session.Terms) (session.Cached, error) {
	if l.down.Load() {
		return session.Cached{}, keytype.ErrUnavailable
	}
	return l.Cache.Verify(ctx, op, terms)
}

func (l *lossy) Fill(ctx context.Context, f session.Fill, terms session.Terms) (bool, int64, error) {
	call(&l.beforeFill)
	if l.down.Load() {
		return false, 0, keytype.ErrUnavailable
	}
	return l.Cache.Fill(ctx, f, terms)
}

func (l *lossy) Bump(ctx context.Context, tag string, version int64, terms session.Terms) error {
	call(&l.beforeBump)
	if l.lost.Load() || l.down.Load() {
		return keytype.ErrUnavailable
	}
	return l.Cache.Bump(ctx, tag, version, terms)
}

// A stop is a place where one process waits, once.
type stop struct {
	testing.TB
	reached, resume chan struct{}
}

func stopAt(t testing.TB, place *atomic.Pointer[func()]) *stop {
	s := &stop{t, make(chan struct{}), make(chan struct{})}
	var once atomic.Bool
	fn := func() {
		if once.CompareAndSwap(false, true) {
			close(s.reached)
			<-s.resume
		}
	}
	place.Store(&fn)
	t.Cleanup(func() { place.Store(nil) })
	return s
}

// wait returns once the process is there.
func (s *stop) wait() {
	s.Helper()
	select {
	case <-s.reached:
	case <-time.After(10 * time.Second):
		s.Fatal("the process does not get there")
	}
}

func (s *stop) release() { close(s.resume) }

// later verifies in a process of its own.
func (p *place) later(token string) <-chan session.Verdict {
	done := make(chan session.Verdict, 1)
	go func() {
		v, err := p.verify(token)
		if err != nil {
			p.Error(err)
		}
		done <- v
	}()
	return done
}

// joined waits until so many have started or joined a flight, which is when the
// read-through asks for the time.
func (p *place) joined(n int64) {
	p.Helper()
	for deadline := time.Now().Add(10 * time.Second); p.asked.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatal("the second verify does not miss")
		}
	}
}

func (p *place) revoke(token string, propagated bool) {
	p.Helper()
	p.cache.lost.Store(!propagated)
	defer p.cache.lost.Store(false)
	got, err := p.m.Revoke(p.Context(), "acme", token)
	if err != nil || got.Propagated != propagated {
		p.Errorf("revoke: %+v, %v", got, err)
	}
}

// The session is read between two changes of it: its record must not be older than the user's.
func TestInterleavedUserRecordFirst(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a, b := p.login(session.CreateRequest{}), p.login(session.CreateRequest{})
	s := stopAt(t, &p.durable.between)
	v := p.later(a)
	s.wait()
	p.revoke(a, false)
	s.release()
	<-v
	p.now.pass(13 * time.Second)
	p.want("another session makes the user's record fresh", b, "", session.FromStore)
	if v, err := p.verify(a); err != nil || v.Active {
		t.Errorf("active 13 s after the revocation: %+v, %v", v, err)
	}
}

// Read, revoke, bump, fill.
func TestS12FillIsGuardedByVersion(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a, b := p.login(session.CreateRequest{}), p.login(session.CreateRequest{})
	p.want("a is cached", a, "", session.FromStore)
	must(t, p.node.Del(t.Context(), p.keys(a)[0]).Err()) // the user's record is evicted
	s := stopAt(t, &p.cache.beforeFill)
	v := p.later(b)
	s.wait()
	p.revoke(a, true)
	s.release()
	<-v
	p.want("at once after a propagated revocation", a, session.Revoked, session.FromStore)
}

func TestInterleavedFillCountsFromBeforeTheRead(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.cache.beforeFill)
	v := p.later(a)
	s.wait()
	p.revoke(a, false)
	p.now.pass(5 * time.Second)
	s.release()
	<-v
	p.now.pass(9 * time.Second)
	p.want("14 s after the revocation", a, session.Revoked, session.FromStore)
}

// Read, revoke, the bump's floor lapses, fill. The clock steps back by 2σ in
// between, so the record would have been fresh.
func TestS20PausedFiller(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	p.now.pass(time.Second)
	s := stopAt(t, &p.cache.beforeFill)
	v := p.later(a)
	s.wait()
	p.now.pass(-2 * time.Second)
	p.revoke(a, true)
	p.now.pass(10_200 * time.Millisecond)
	p.durable.loads.Store(0)
	s.release()
	<-v
	p.want("after a propagated revocation", a, session.Revoked, session.FromCache)
	if n := p.durable.loads.Load(); n != 1 {
		t.Errorf("the filler read %d times more", n)
	}
}

func TestInterleavedLateBumpMakesNothingFresh(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.cache.beforeBump)
	bumped := make(chan error, 1)
	go func() {
		_, err := p.m.BumpPermissions(t.Context(), "acme", "ann")
		bumped <- err
	}()
	s.wait()
	p.want("a is cached", a, "", session.FromStore)
	p.revoke(a, false)
	p.now.pass(13 * time.Second)
	s.release()
	must(t, <-bumped)
	p.want("13 s after the revocation", a, session.Revoked, session.FromStore)
}

// A use is written down after the session was revoked.
func TestS8S11CachedUseAfterRevoke(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	p.want("cold", a, "", session.FromStore)
	s := stopAt(t, &p.durable.beforeTouch)
	p.now.pass(9 * time.Second)
	p.want("a use", a, "", session.FromCache)
	s.wait()
	p.revoke(a, true)
	s.release()
	p.through.Flush()
	p.want("touched after the end", a, session.Revoked, session.FromStore)
}

// Uses move the last use, never the absolute end.
func TestS6UsesLeaveTheEnd(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	end := p.want("cold", a, "", session.FromStore).Session.ExpiresAt
	for range 11 {
		p.now.pass(5 * time.Second)
		v, err := p.verify(a)
		p.through.Flush()
		if err != nil || !v.Active || !v.Session.ExpiresAt.Equal(end) {
			t.Fatalf("%+v, %v; want the end %s", v, err, end)
		}
	}
	p.now.pass(end.Sub(p.now.Now()))
	if v, err := p.verify(a); err != nil || v.Reason != session.Expired {
		t.Errorf("at its end: %+v, %v", v, err)
	}
}

// A flight may have read before a change; who comes long after it started does not join.
func TestInterleavedOldFlightIsNotJoined(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	p.cache.down.Store(true)
	between := stopAt(t, &p.durable.between)
	v := p.later(a)
	between.wait()
	_, err := p.m.LogoutAll(t.Context(), "acme", "ann", "")
	must(t, err)
	p.now.pass(5 * time.Second)
	second := p.later(a)
	select {
	case got := <-second:
		if got.Reason != session.Epoch {
			t.Errorf("5 s after the logout: %+v", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("joined a flight that had begun F/2 ago")
	}
	between.release()
	<-v
}

// One who joins knows of a change that the flight does not.
func TestInterleavedJoinerKnowsMore(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.cache.beforeFill)
	v := p.later(a)
	s.wait()
	p.revoke(a, true)
	p.reset()
	second := p.later(a)
	p.joined(1)
	s.release()
	<-v
	if got := <-second; got.Reason != session.Revoked {
		t.Errorf("after a propagated revocation: %+v", got)
	}
}

// One who joins has a token that the flight's record is too old for.
func TestInterleavedJoinersTokenIsNewer(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.cache.beforeFill)
	v := p.later(a)
	s.wait()
	p.cache.lost.Store(true)
	r, err := p.m.Rotate(t.Context(), "acme", a, session.RotateRequest{})
	must(t, err)
	p.cache.lost.Store(false)
	p.reset()
	second := p.later(r.Token.Reveal())
	p.joined(1)
	s.release()
	<-v
	if got := <-second; !got.Active {
		t.Errorf("the token that was just issued: %+v", got)
	}
}

// Many at once after a loss of the cache: one read.
func TestSingleFlight(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.durable.beforeLoad)
	var waiting []<-chan session.Verdict
	for range 20 {
		waiting = append(waiting, p.later(a))
	}
	s.wait()
	p.joined(20)
	s.release()
	for _, done := range waiting {
		if v := <-done; !v.Active {
			t.Errorf("%+v", v)
		}
	}
	if n := p.durable.loads.Load(); n != 1 {
		t.Errorf("%d reads for 20 verifies", n)
	}
}

// A caller who leaves does not take the flight from those who joined.
func TestFlightOutlivesItsLeader(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	s := stopAt(t, &p.durable.beforeLoad)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := p.m.Verify(ctx, "acme", a, session.VerifyRequest{})
		left <- err
	}()
	s.wait()
	p.reset()
	second := p.later(a)
	p.joined(1)
	cancel()
	if err := <-left; err == nil {
		t.Error("the leader got an answer that nobody read")
	}
	s.release()
	if v := <-second; !v.Active {
		t.Errorf("who joined: %+v", v)
	}
}

// Flush waits for a flight that everybody has left, and for the use it tells of.
func TestFlushWaitsForFlights(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	p.now.pass(9 * time.Second) // a use now is to be written down
	s := stopAt(t, &p.durable.beforeLoad)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := p.m.Verify(ctx, "acme", a, session.VerifyRequest{})
		left <- err
	}()
	s.wait()
	cancel()
	if err := <-left; err == nil {
		t.Error("the leader got an answer that nobody read")
	}
	time.AfterFunc(20*time.Millisecond, s.release)
	p.through.Flush()
	if n := p.durable.touches.Load(); n != 1 {
		t.Errorf("%d touches when Flush came back", n)
	}
}

// Flush may be called while others verify.
func TestFlushAmongVerifies(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	p.cache.down.Store(true)
	a := p.login(session.CreateRequest{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			if _, err := p.verify(a); err != nil {
				t.Error(err)
			}
			p.now.pass(100 * time.Millisecond)
		}
	}()
	for range 200 {
		p.through.Flush()
	}
	<-done
}

// A change that was made is told to the cache, also when its caller has left.
func TestChangeOutlivesItsCaller(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	a := p.login(session.CreateRequest{})
	p.want("cold", a, "", session.FromStore)
	s := stopAt(t, &p.cache.beforeBump)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan session.Propagation, 1)
	go func() {
		got, err := p.m.Revoke(ctx, "acme", a)
		if err != nil {
			t.Error(err)
		}
		done <- got.Propagation
	}()
	s.wait()
	cancel()
	s.release()
	if got := <-done; !got.Propagated {
		t.Errorf("%+v", got)
	}
	p.want("at once", a, session.Revoked, session.FromStore)
}
