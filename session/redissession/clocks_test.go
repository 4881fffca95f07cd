package redissession_test

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// However wrong the clock of Redis is, a session ends by the clocks of those who made
// it, an old token too, and no use is recorded that was not.
func TestClockOfRedisIsOff(t *testing.T) {
	for why, off := range map[string]time.Duration{"a minute behind": -time.Minute, "ten minutes ahead": 10 * time.Minute} {
		t.Run(why, func(t *testing.T) {
			n, now, durable := dial(t), newClock(), newWatched(t)
			cache := n.cache(t, func() time.Time { return now.Now().Add(off) })
			p := placeOver(t, n, now, durable, durable, cache, session.ReadThroughOptions{})
			began := now.Now()
			ends := p.login(session.CreateRequest{AbsoluteTTL: 5 * time.Second, IdleTTL: 5 * time.Second})
			old := p.login(session.CreateRequest{})
			next, err := p.m.Rotate(t.Context(), "acme", old, session.RotateRequest{})
			must(t, err)
			for _, token := range []string{ends, old, next.Token.Reveal()} {
				if v, err := p.verify(token); err != nil || !v.Active {
					t.Errorf("cold: %+v, %v", v, err)
				}
				p.want("warm", token, "", session.FromCache)
			}
			now.pass(4_999 * time.Millisecond)
			p.want("the last moment", ends, "", session.FromCache)
			now.pass(time.Millisecond)
			p.want("over", ends, session.Expired, session.FromCache)
			now.pass(5 * time.Second)
			p.want("the grace of the old token is over", old, session.Rotated, session.FromStore)
			v := p.want("the new one", next.Token.Reveal(), "", session.FromCache)
			if v.Session.LastSeenAt.Before(began) || v.Session.LastSeenAt.After(now.Now()) {
				t.Errorf("last seen %s after the start", v.Session.LastSeenAt.Sub(began))
			}
			for range 20 {
				now.pass(10 * time.Second)
				if v, err := p.verify(ends); err != nil || v.Active {
					t.Errorf("%s later: %+v, %v", now.Now().Sub(began), v, err)
				}
				if v, err := p.verify(old); err != nil || v.Active {
					t.Errorf("the old token %s later: %+v, %v", now.Now().Sub(began), v, err)
				}
			}
		})
	}
}

// What the tables are told of a use is the instant of who used it.
func TestUsesAreOfTheCallersClock(t *testing.T) {
	for _, off := range []time.Duration{-time.Minute, 10 * time.Minute} {
		n, now, durable := dial(t), newClock(), newWatched(t)
		cache := n.cache(t, func() time.Time { return now.Now().Add(off) })
		p := placeOver(t, n, now, durable, durable, cache, session.ReadThroughOptions{})
		token := p.login(session.CreateRequest{})
		p.want("cold", token, "", session.FromStore)
		now.pass(5 * time.Second)
		v := p.want("a use to record", token, "", session.FromCache)
		p.through.Flush()
		s, err := session.New(durable.Local, session.Options{RouteKey: routeKey, Now: now.Now}).Get(t.Context(), "acme", v.Session.Handle)
		if err != nil || !s.LastSeenAt.Equal(now.Now()) {
			t.Errorf("Redis off by %s: recorded %s off: %v", off, s.LastSeenAt.Sub(now.Now()), err)
		}
		// A reader that knows less of it loses nothing, also where Redis is behind.
		must(t, n.Del(t.Context(), p.keys(token)[0]).Err())
		now.pass(3 * time.Second)
		p.want("the user's copy was lost", token, "", session.FromStore)
		p.want("a use of the copy", token, "", session.FromCache)
		last := now.Now()
		must(t, n.Del(t.Context(), p.keys(token)[0]).Err())
		now.pass(500 * time.Millisecond)
		p.want("read again", token, "", session.FromStore)
		if v, err := p.m.Verify(t.Context(), "acme", token, session.VerifyRequest{NoTouch: true}); err != nil || v.Source != session.FromCache || !v.Session.LastSeenAt.Equal(last) {
			t.Errorf("Redis off by %s: the last use is %s off: %+v, %v", off, v.Session.LastSeenAt.Sub(last), v, err)
		}
	}
}
