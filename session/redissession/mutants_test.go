package redissession_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

// A mutant is one rule broken, and a schedule that shows it.
type mutant struct {
	name  string
	shows string // the invariant
	// script is the one whose text is changed, from old to next.
	script, old, next string
	durable           func(*watched) session.Durable // the store with the rule broken
	schedule          string                         // what play does: "v: verify a | fill" stops it before the fill, and "v" lets it go on
	play              func(*scene)
}

// A scene is a place whose answers are judged.
type scene struct {
	*place
	*sessiontest.Forced
}

// Each rule of the protocol is broken once, and the checker of the histories must name
// the invariant that it is there for; with the rule in place the same schedule must pass.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if got := m.run(t, false); len(got) > 0 {
				t.Errorf("with the rule in place: %q", got)
			}
			got := m.run(t, true)
			if !slices.ContainsFunc(got, func(v string) bool { return sessiontest.Invariant(v) == m.shows }) {
				t.Errorf("the schedule shows no violation of %s: %q", m.shows, got)
				return
			}
			for i := range got {
				got[i], _, _ = strings.Cut(got[i], ": {") // the whole verdict
			}
			t.Logf("\n    schedule: %s\n    violates: %s", m.schedule, strings.Join(got, "\n              "))
		})
	}
}

func (m mutant) run(t *testing.T, broken bool) []string {
	n, now, durable := dial(t), newClock(), newWatched(t)
	truth, cache := session.Durable(durable), n.cache(t, now.Now)
	if broken && m.script != "" {
		cache.Mutate(t, m.script, m.old, m.next)
	}
	if broken && m.durable != nil {
		truth = m.durable(durable)
	}
	p := placeOver(t, n, now, durable, truth, cache, session.ReadThroughOptions{})
	s := &scene{p, sessiontest.NewForced(t, sessiontest.Outages{
		Nodes:   []*session.Manager{p.m},
		Durable: session.New(durable.Local, session.Options{RouteKey: routeKey, Now: now.Now}),
		Fresh:   10 * time.Second, Skew: time.Second, Unavailable: keytype.ErrUnavailable, Unknown: keytype.ErrOutcomeUnknown,
	}, now.Now)}
	m.play(s)
	p.through.Flush()
	return s.Violated()
}

// lost makes a change of which the cache is not told.
func (s *scene) lost(change func()) {
	s.cache.lost.Store(true)
	change()
	s.cache.lost.Store(false)
}

// begin starts what comes to the place, and returns once it stands there.
func (s *scene) begin(at *stop, what func()) (resume func()) {
	done := make(chan struct{})
	go func() { defer close(done); what() }()
	at.wait()
	return func() { at.release(); <-done }
}

func (s *scene) evict(t testing.TB, l *sessiontest.Login) {
	must(t, s.node.Del(t.Context(), s.keys(l.Token())[0]).Err())
}

var mutants = []mutant{
	{
		name: "the session is read before the user's record", shows: "I2",
		durable:  func(w *watched) session.Durable { return sessionFirst{w} },
		schedule: "a: login; b: login; v: verify a | second read; revoke a, the bump is lost; v; 13 s; verify b; verify a",
		play: func(s *scene) {
			a, b := s.Login(), s.Login()
			v := s.begin(stopAt(s.place, &s.durable.between), func() { s.Verify(a) })
			s.lost(func() { s.Revoke(a) })
			v()
			s.now.pass(13 * time.Second)
			s.Verify(b)
			s.Verify(a)
		},
	},
	{
		name: "a fill without the version guard", shows: "I2p",
		script: "fill", old: "if oldVer > ver then return {1, now} end", next: "",
		schedule: "a: login; b: login; verify a; the user's record is evicted; v: verify b | fill; revoke a; v; verify a",
		play: func(s *scene) {
			a, b := s.Login(), s.Login()
			s.Verify(a)
			s.evict(s.place, a)
			v := s.begin(stopAt(s.place, &s.cache.beforeFill), func() { s.Verify(b) })
			s.Revoke(a)
			v()
			s.Verify(a)
		},
	},
	{
		name: "chk is the time of the fill", shows: "I2",
		script: "fill", old: "local hold = 0", next: "chk = now\nlocal hold = 0",
		schedule: "a: login; v: verify a | fill; revoke a, the bump is lost; 5 s; v; 9 s; verify a",
		play: func(s *scene) {
			a := s.Login()
			v := s.begin(stopAt(s.place, &s.cache.beforeFill), func() { s.Verify(a) })
			s.lost(func() { s.Revoke(a) })
			s.now.pass(5 * time.Second)
			v()
			s.now.pass(9 * time.Second)
			s.Verify(a)
		},
	},
	{
		name: "a fill of any age", shows: "I2p",
		script: "fill", old: "if math.abs(now - chk) > F / 2 then return {0, now} end", next: "",
		schedule: "a: login; 1 s; v: verify a | fill; the clock of Redis steps back 2 s; revoke a; 10.2 s, the floor lapses; v; verify a",
		play: func(s *scene) {
			a := s.Login()
			s.now.pass(time.Second)
			v := s.begin(stopAt(s.place, &s.cache.beforeFill), func() { s.Verify(a) })
			s.now.pass(-2 * time.Second)
			s.Revoke(a)
			s.now.pass(10_200 * time.Millisecond)
			v()
			s.Verify(a)
		},
	},
	{
		name: "a bump that grants freshness", shows: "I2",
		script: "bump", old: "ver, chk, hold, rest = tonumber(oldVer), tonumber(oldChk)", next: "ver, chk, hold, rest = tonumber(oldVer), now",
		schedule: "a: login; p: permission epoch | bump; verify a; revoke a, the bump is lost; 9 s; p; 5 s; verify a",
		play: func(s *scene) {
			a := s.Login()
			p := s.begin(stopAt(s.place, &s.cache.beforeBump), s.Permissions)
			s.Verify(a)
			s.lost(func() { s.Revoke(a) })
			s.now.pass(9 * time.Second)
			p()
			s.now.pass(5 * time.Second)
			s.Verify(a)
		},
	},
	{
		name: "enable without a new session version", shows: "I3",
		durable:  func(w *watched) session.Durable { return enableAsBefore{w} },
		schedule: "a: login; disable; enable; ask the durable store for a; 13 s; verify a",
		play: func(s *scene) {
			a := s.Login()
			s.Disable()
			s.Enable()
			s.Durably(a)
			s.now.pass(13 * time.Second)
			s.Verify(a)
		},
	},
	{
		name: "a touch that creates", shows: "I3",
		durable:  func(w *watched) session.Durable { return touchCreates{w} },
		schedule: "a: login; verify a; 9 s; verify a, t: its use | touch; revoke a; t; ask the durable store for a; verify a",
		play:     playLateTouch,
	},
	{
		name: "the absolute end is counted anew by a touch", shows: "I1",
		durable:  func(w *watched) session.Durable { return touchProlongs{w} },
		schedule: "a: login; verify a; 9 s; verify a, its use is written down; 10 s; verify a",
		play: func(s *scene) {
			a := s.Login()
			s.Verify(a)
			s.now.pass(9 * time.Second)
			s.Verify(a)
			s.through.Flush()
			s.now.pass(10 * time.Second)
			s.Verify(a)
		},
	},
	{
		name: "the session to keep is not checked", shows: "I3",
		durable:  func(w *watched) session.Durable { return keepsAny{w} },
		schedule: "a: login; logout-all; logout-all that keeps a; ask the durable store for a",
		play: func(s *scene) {
			a := s.Login()
			s.LogoutAll()
			s.Keep(a)
			s.Durably(a)
		},
	},
	{
		name: "a login without the condition on the session version", shows: "I4",
		durable:  func(w *watched) session.Durable { return createsAsRead{w} },
		schedule: "c: login | its write; logout-all; c",
		play: func(s *scene) {
			c := s.begin(stopAt(s.place, &s.durable.beforeCreate), func() { s.Login() })
			s.LogoutAll()
			s.LoginsWriteFromNowOn()
			c()
		},
	},
	{
		name: "rotate by a previous token", shows: "R",
		durable:  func(w *watched) session.Durable { return rotatesByPrevious{w} },
		schedule: "a: login; rotate a to a level of 2; rotate by the token before",
		play: func(s *scene) {
			a := s.Login()
			s.Rotate(a)
			s.RotateByOld(a)
		},
	},
}

func playLateTouch(s *scene) {
	a := s.Login()
	s.Verify(a)
	s.now.pass(9 * time.Second)
	touch := stopAt(s.place, &s.durable.beforeTouch)
	s.Verify(a)
	touch.wait()
	s.Revoke(a)
	touch.release()
	s.through.Flush()
	s.Durably(a)
	s.Verify(a)
}

// The stores with a rule broken, over the records of the real one.

type sessionFirst struct{ *watched }

func (w sessionFirst) Load(ctx context.Context, k session.Key) (session.User, session.Record, error) {
	_, r, err := w.Local.Load(ctx, k)
	if err != nil {
		return session.User{}, session.Record{}, err
	}
	call(&w.between)
	u, err := w.Local.LoadUser(ctx, k.Tag)
	return u, r, err
}

type enableAsBefore struct{ *watched }

func (w enableAsBefore) Change(ctx context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	if op.Kind != session.Enable {
		return w.Local.Change(ctx, op)
	}
	var u session.User
	err := w.items.Update(ctx, func(tx kv.Tx) (err error) {
		u, err = loadItem[session.User](tx, keytype.UserEpoch, op.User.Tag)
		u.Disabled = false
		u.Version++
		return errors.Join(err, saveItem(tx, keytype.UserEpoch, u, op.User.Tag))
	})
	return session.Changed{Epochs: u.Epochs()}, session.Done, err
}

type touchCreates struct{ *watched }

// Touch puts the record that the verify had read.
func (w touchCreates) Touch(ctx context.Context, k session.Key, seen int64) error {
	_, r, err := w.Local.Load(ctx, k)
	if err != nil {
		return err
	}
	call(&w.beforeTouch)
	r.Seen = seen
	return w.items.Update(ctx, func(tx kv.Tx) error { return saveItem(tx, keytype.Session, r, k.Tag, k.ID) })
}

type touchProlongs struct{ *watched }

func (w touchProlongs) Touch(ctx context.Context, k session.Key, seen int64) error {
	return w.items.Update(ctx, func(tx kv.Tx) error {
		r, err := loadItem[session.Record](tx, keytype.Session, k.Tag, k.ID)
		r.Absolute += seen - r.Seen
		r.Seen = seen
		return errors.Join(err, saveItem(tx, keytype.Session, r, k.Tag, k.ID))
	})
}

type keepsAny struct{ *watched }

func (w keepsAny) Change(ctx context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	if op.Keep == nil {
		return w.Local.Change(ctx, op)
	}
	var u session.User
	err := w.items.Update(ctx, func(tx kv.Tx) error {
		old, err := loadItem[session.User](tx, keytype.UserEpoch, op.User.Tag)
		if err != nil {
			return err
		}
		kept, err := loadItem[session.Record](tx, keytype.Session, op.User.Tag, op.Keep.ID)
		if err != nil {
			return err
		}
		everybody := op
		everybody.Keep = nil
		u, _, _ = session.Change(old, kept, everybody, session.DurableTracking(kept.Idle))
		kept.SessionVersion = u.SessionVersion
		return errors.Join(saveItem(tx, keytype.UserEpoch, u, op.User.Tag), saveItem(tx, keytype.Session, kept, op.User.Tag, op.Keep.ID))
	})
	return session.Changed{Epochs: u.Epochs()}, session.Done, err
}

type createsAsRead struct{ *watched }

func (w createsAsRead) Create(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	old, err := w.Local.LoadUser(ctx, op.User.Tag)
	if err != nil {
		return session.Session{}, 0, err
	}
	u, r, outcome := session.Create(old, op)
	call(&w.beforeCreate)
	err = w.items.Update(ctx, func(tx kv.Tx) error {
		now, err := loadItem[session.User](tx, keytype.UserEpoch, op.User.Tag)
		if now.Version == 0 {
			now = u
		}
		return errors.Join(err, saveItem(tx, keytype.UserEpoch, now, op.User.Tag), saveItem(tx, keytype.Session, r, op.User.Tag, op.ID))
	})
	return r.Session(u, session.Key{Tenant: op.User.Tenant, Tag: op.User.Tag, ID: op.ID}, session.DurableTracking(r.Idle)), outcome, err
}

type rotatesByPrevious struct{ *watched }

func (w rotatesByPrevious) Rotate(ctx context.Context, op session.RotateOp) (session.Session, session.Propagation, session.Outcome, error) {
	_, r, err := w.Local.Load(ctx, op.Key)
	if err != nil {
		return session.Session{}, session.Propagation{}, 0, err
	}
	if slices.Equal(op.TokenHash, r.Previous.TokenHash) && op.Now.UnixMilli() < r.Previous.GraceUntil {
		op.TokenHash = r.TokenHash
	}
	return w.Local.Rotate(ctx, op)
}

func loadItem[T any](tx kv.Tx, kind *keytype.Type, parts ...string) (T, error) {
	v, _, err := kv.Load[T](tx, kind.Bucket(), kind.Key(parts...))
	return v, err
}

func saveItem(tx kv.Tx, kind *keytype.Type, v any, parts ...string) error {
	return kv.Save(tx, kind.Bucket(), kind.Key(parts...), v, time.Time{})
}
