package redissession_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

var routeKey = []byte("0123456789abcdefghijklmnopqrstuv")

// A watched is the real store in memory, with a count of what is asked of it, a place
// to stop at, and an outage.
type watched struct {
	*session.Local
	items                             kv.Store // where its records are
	loads, userLoads, touches, writes atomic.Int64
	down                              atomic.Pointer[error]
	unknown                           bool // a revocation happens, and its answer is lost
	// What runs, where it is set, before the user's record is read, between it and the
	// session's, before a touch, and before a login is written.
	beforeLoad, between, beforeTouch, beforeCreate atomic.Pointer[func()]
}

func newWatched(t testing.TB) *watched {
	store := kv.NewMemory(kv.MemoryOptions{MaxItems: 1_000_000})
	t.Cleanup(func() { _ = store.Close() })
	return &watched{Local: session.NewLocal(store), items: store}
}

func (w *watched) fault() error {
	if err := w.down.Load(); err != nil {
		return *err
	}
	return nil
}

func (w *watched) fail(err error) {
	w.down.Store(nil)
	if err != nil {
		w.down.Store(&err)
	}
}

func call(at *atomic.Pointer[func()]) {
	if fn := at.Load(); fn != nil {
		(*fn)()
	}
}

func (w *watched) Load(ctx context.Context, k session.Key) (session.User, session.Record, error) {
	w.loads.Add(1)
	call(&w.beforeLoad)
	if err := w.fault(); err != nil {
		return session.User{}, session.Record{}, err
	}
	// Two reads, as a store of single items does it.
	u, err := w.Local.LoadUser(ctx, k.Tag)
	if err != nil {
		return session.User{}, session.Record{}, err
	}
	call(&w.between)
	again, r, err := w.Local.Load(ctx, k)
	if r.SessionVersion > u.SessionVersion {
		u = again
	}
	return u, r, err
}

func (w *watched) Create(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	call(&w.beforeCreate)
	return w.Local.Create(ctx, op)
}

func (w *watched) LoadUser(ctx context.Context, tag string) (session.User, error) {
	w.userLoads.Add(1)
	if err := w.fault(); err != nil {
		return session.User{}, err
	}
	return w.Local.LoadUser(ctx, tag)
}

func (w *watched) Touch(ctx context.Context, k session.Key, seen int64) error {
	w.touches.Add(1)
	call(&w.beforeTouch)
	if err := w.fault(); err != nil {
		return err
	}
	return w.Local.Touch(ctx, k, seen)
}

func (w *watched) Revoke(ctx context.Context, op session.RevokeOp) (session.Propagation, session.Outcome, error) {
	w.writes.Add(1)
	if err := w.fault(); err != nil {
		return session.Propagation{}, 0, err
	}
	p, outcome, err := w.Local.Revoke(ctx, op)
	if w.unknown {
		return session.Propagation{}, 0, keytype.ErrOutcomeUnknown
	}
	return p, outcome, err
}

// A place is a process's view: a manager over a read-through over the real store and
// a real Redis, all on the test's clock.
type place struct {
	testing.TB
	node    node
	now     *clock
	durable *watched
	cache   *lossy
	through *session.ReadThrough
	m       *session.Manager
	asked   atomic.Int64 // how often the read-through asked for the time
}

func newPlace(t testing.TB, opts session.ReadThroughOptions) *place {
	t.Helper()
	n, now := dial(t), newClock()
	return placeOn(t, n, now, newWatched(t), opts)
}

func placeOn(t testing.TB, n node, now *clock, durable *watched, opts session.ReadThroughOptions) *place {
	t.Helper()
	return placeOver(t, n, now, durable, durable, n.cache(t, now.Now), opts)
}

// placeOver has the truth from a store that may be another than the one that is watched.
func placeOver(t testing.TB, n node, now *clock, durable *watched, truth session.Durable, cache session.Cache, opts session.ReadThroughOptions) *place {
	t.Helper()
	p := &place{TB: t, node: n, now: now, durable: durable, cache: &lossy{Cache: cache}}
	if opts.Now == nil {
		opts.Now = now.Now
	}
	tell := opts.Now
	opts.Now = func() time.Time { p.asked.Add(1); return tell() }
	p.through = session.NewReadThrough(truth, p.cache, opts)
	t.Cleanup(p.through.Flush)
	p.m = session.New(p.through, session.Options{RouteKey: routeKey, Now: now.Now})
	// Scripts that are not loaded yet cost a command more.
	_, _ = p.verify(p.login(session.CreateRequest{UserID: "warm-up"}))
	_, err := p.m.Disable(t.Context(), "acme", "warm-up")
	must(t, err)
	p.reset()
	return p
}

func (p *place) reset() {
	p.node.calls.n.Store(0)
	p.asked.Store(0)
	for _, n := range []*atomic.Int64{&p.durable.loads, &p.durable.userLoads, &p.durable.touches, &p.durable.writes} {
		n.Store(0)
	}
}

func (p *place) login(req session.CreateRequest) string {
	p.Helper()
	if req.UserID == "" {
		req.UserID = "ann"
	}
	if req.AbsoluteTTL == 0 {
		req.AbsoluteTTL, req.IdleTTL = time.Minute, 20*time.Second
	}
	token, _, err := p.m.Create(p.Context(), "acme", req)
	must(p, err)
	return token.Reveal()
}

func (p *place) verify(token string) (session.Verdict, error) {
	return p.m.Verify(p.Context(), "acme", token, session.VerifyRequest{})
}

// want verifies and checks the verdict.
func (p *place) want(why, token string, reason session.Reason, source session.Source) session.Verdict {
	p.Helper()
	v, err := p.verify(token)
	if err != nil || v.Reason != reason || v.Active != (reason == "") || v.Source != source {
		p.Errorf("%s: %+v, %v; want %q from %s", why, v, err, reason, source)
	}
	return v
}

// cost checks what was asked of Redis and of the store since the last time.
func (p *place) cost(why string, commands, loads, userLoads int64) {
	p.Helper()
	p.through.Flush()
	if c, l, u := p.node.calls.n.Load(), p.durable.loads.Load(), p.durable.userLoads.Load(); c != commands || l != loads || u != userLoads {
		p.Errorf("%s: %d commands, %d loads, %d loads of a user; want %d, %d, %d", why, c, l, u, commands, loads, userLoads)
	}
	p.reset()
}

func TestReadThroughConforms(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) session.Store {
		n, now := dial(t), newClock()
		through := session.NewReadThrough(newWatched(t), n.cache(t, now.Now), session.ReadThroughOptions{Now: now.Now})
		return &onClock{ReadThrough: through, now: now}
	})
}

// onClock lets the cache and the read-through have the suite's clock, which comes
// with the operations, and lets each use be written down before the next operation.
type onClock struct {
	*session.ReadThrough
	now *clock
}

func (o *onClock) Create(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	o.now.ms.Store(op.Record.IssuedAt)
	return o.ReadThrough.Create(ctx, op)
}

func (o *onClock) Verify(ctx context.Context, op session.VerifyOp) (session.Verdict, error) {
	o.now.ms.Store(op.Now.UnixMilli())
	v, err := o.ReadThrough.Verify(ctx, op)
	o.Flush()
	v.Source = "" // the suite compares with stores that have but one
	return v, err
}

func (o *onClock) Rotate(ctx context.Context, op session.RotateOp) (session.Session, session.Propagation, session.Outcome, error) {
	o.now.ms.Store(op.Now.UnixMilli())
	return o.ReadThrough.Rotate(ctx, op)
}

func (o *onClock) Change(ctx context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	o.now.ms.Store(op.Now.UnixMilli())
	return o.ReadThrough.Change(ctx, op)
}

// The price of a verify, counted at the client.
func TestCosts(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	token := p.login(session.CreateRequest{})
	p.cost("a login", 0, 0, 0)
	p.want("cold", token, "", session.FromStore)
	p.cost("cold: a look, a read, a fill", 2, 1, 0)
	for range 10 {
		p.want("warm", token, "", session.FromCache)
	}
	p.cost("warm", 10, 0, 0)
	p.now.pass(9 * time.Second)
	p.want("warm, with a use to write down", token, "", session.FromCache)
	p.cost("warm, with a use to write down", 1, 0, 0)
	p.now.pass(time.Second)
	p.want("F after the read", token, "", session.FromStore)
	p.cost("F after the read", 2, 1, 0)
	_, err := p.m.BumpPermissions(t.Context(), "acme", "ann")
	must(t, err)
	p.cost("a change: one read, one bump", 1, 0, 1)
	if v := p.want("after the change", token, "", session.FromStore); !v.PermissionsStale {
		t.Error("stale permissions are not reported")
	}
	p.cost("after the change", 2, 1, 0)
	if v := p.want("warm again", token, "", session.FromCache); !v.PermissionsStale {
		t.Error("stale permissions are not reported from the cache")
	}
}

// A login that ended an idle session of a user with a limit raised the version.
func TestLimitedLoginIsPropagated(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	p.login(session.CreateRequest{MaxSessions: 1})
	p.cost("a limited login", 1, 0, 1)
}

// Uses are written down in the cache every Q and in the store every D.
func TestTouchesAreCoalesced(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	token := p.login(session.CreateRequest{}) // Q = 2 s, D = 4 s
	var last session.Verdict
	for range 120 { // 12 s
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := p.verify(token); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		last, _ = p.verify(token)
		p.now.pass(100 * time.Millisecond)
	}
	p.through.Flush()
	if n := p.durable.touches.Load(); n < 2 || n > 3 {
		t.Errorf("%d durable touches in 12 s, D = 4 s", n)
	}
	if behind := p.now.Now().Sub(last.Session.LastSeenAt); behind > 2*time.Second {
		t.Errorf("the last use is %s behind, Q = 2 s", behind)
	}
	// Nobody loses idle time when the cache is lost.
	must(t, p.node.Del(t.Context(), p.keys(token)...).Err())
	p.now.pass(20*time.Second - 200*time.Millisecond)
	p.want("within the idle time of the last use", token, "", session.FromStore)
}

// Without the cache the store is told as rarely, by whoever reads there first.
func TestTouchesWithoutTheCache(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	token := p.login(session.CreateRequest{})
	p.cache.down.Store(true)
	for range 3 { // D = 4 s
		p.now.pass(4 * time.Second)
		for range 10 {
			if v, err := p.verify(token); err != nil || !v.Session.LastSeenAt.Equal(p.now.Now()) {
				t.Errorf("%+v, %v", v, err)
			}
			p.through.Flush()
		}
	}
	if n := p.durable.touches.Load(); n != 3 {
		t.Errorf("%d durable touches in 12 s, D = 4 s", n)
	}
}

func (p *place) keys(token string) []string {
	tag, id := token[4:26], token[26:48]
	return []string{keytype.UserEpoch.CacheKey(p.node.prefix, tag), keytype.Session.CacheKey(p.node.prefix, tag, id)}
}

// A no that a later write may have turned is the store's to say.
func TestCacheRefusesOnlyForGood(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	token := p.login(session.CreateRequest{})
	p.want("cold", token, "", session.FromStore)
	_, err := p.m.Verify(t.Context(), "acme", token, session.VerifyRequest{UserID: "bob"})
	must(t, err)
	p.reset()
	for _, step := range []struct {
		why    string
		req    session.VerifyRequest
		reason session.Reason
		loads  int64
	}{
		{"another user", session.VerifyRequest{UserID: "bob"}, session.Unknown, 1},
		{"a higher level", session.VerifyRequest{MinAAL: 2}, session.AAL, 0},
	} {
		v, err := p.m.Verify(t.Context(), "acme", token, step.req)
		must(t, err)
		if v.Reason != step.reason || p.durable.loads.Swap(0) != step.loads {
			t.Errorf("%s: %+v", step.why, v)
		}
	}
	// The cache knows of no use for the idle time, the store does.
	p.now.pass(9 * time.Second)
	p.want("a use", token, "", session.FromCache)
	p.through.Flush()
	k := p.keys(token)[1]
	old := p.node.Get(t.Context(), k).Val()
	p.now.pass(20 * time.Second)
	p.node.Set(t.Context(), k, old, time.Minute)
	p.want("idle, but for D", token, "", session.FromStore)
}

// errStore is what a store says that did not take the operation.
var errStore = errors.New("no such host")

func TestOutages(t *testing.T) {
	for _, step := range []struct {
		why   string
		grace time.Duration
		age   time.Duration
		warm  bool
		down  bool // the durable store
		want  session.Verdict
		fails bool
	}{
		{why: "the store is down and nothing is cached", down: true, fails: true},
		{why: "the store is down, the copy is fresh", warm: true, down: true, age: 9 * time.Second, want: session.Verdict{Active: true, Source: session.FromCache}},
		{why: "the store is down, the copy is F old", warm: true, down: true, age: 10 * time.Second, fails: true},
		{why: "with a grace", warm: true, down: true, grace: 5 * time.Second, age: 14 * time.Second, want: session.Verdict{Active: true, Source: session.FromCache, Degraded: true}},
		{why: "after the grace", warm: true, down: true, grace: 5 * time.Second, age: 15 * time.Second, fails: true},
		{why: "the grace is for outages only", warm: true, grace: 5 * time.Second, age: 14 * time.Second, want: session.Verdict{Active: true, Source: session.FromStore}},
	} {
		t.Run(step.why, func(t *testing.T) {
			p := newPlace(t, session.ReadThroughOptions{StaleGrace: step.grace})
			token := p.login(session.CreateRequest{})
			if step.warm {
				p.want("cold", token, "", session.FromStore)
			}
			p.now.pass(step.age)
			if step.down {
				p.durable.fail(errStore)
			}
			v, err := p.verify(token)
			if step.fails {
				if !errors.Is(err, keytype.ErrUnavailable) || v.Reason != "" || v.Active {
					t.Errorf("%+v, %v: a failing store is no verdict", v, err)
				}
				return
			}
			if err != nil || v.Active != step.want.Active || v.Source != step.want.Source || v.Degraded != step.want.Degraded {
				t.Errorf("%+v, %v; want %+v", v, err, step.want)
			}
		})
	}
}

// A durable store that hangs keeps a verify with a stale copy no longer than a moment.
func TestStaleGraceWaitsBriefly(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{StaleGrace: 20 * time.Second})
	token := p.login(session.CreateRequest{})
	p.want("cold", token, "", session.FromStore)
	p.now.pass(11 * time.Second)
	s := stopAt(t, &p.durable.beforeLoad)
	began := time.Now()
	v, err := p.verify(token)
	if took := time.Since(began); err != nil || !v.Active || !v.Degraded || v.Source != session.FromCache || took > 3*time.Second {
		t.Errorf("%+v, %v after %s", v, err, took)
	}
	s.release()
	p.through.Flush()
	p.want("the store answers again", token, "", session.FromCache)
}

// Redis hangs: each verify is answered by the store, soon, exactly and marked; a
// change succeeds and says when it shows.
func TestRedisHangs(t *testing.T) {
	server := engine.StartRedis(t)
	n, durable := dialTo(t, server.Addr), newWatched(t)
	cache := redissession.New(n, redissession.Options{Prefix: n.prefix})
	through := session.NewReadThrough(durable, cache, session.ReadThroughOptions{})
	m := session.New(through, session.Options{RouteKey: routeKey})
	secret, _, err := m.Create(t.Context(), "acme", session.CreateRequest{UserID: "ann"})
	must(t, err)
	token := secret.Reveal()
	verify := func() session.Verdict {
		v, err := m.Verify(t.Context(), "acme", token, session.VerifyRequest{})
		must(t, err)
		return v
	}
	for deadline := time.Now().Add(10 * time.Second); verify().Source != session.FromCache; {
		if time.Now().After(deadline) {
			t.Fatal("the cache never answers")
		}
	}
	server.Pause(t)
	for range 20 {
		began := time.Now()
		v := verify()
		if took := time.Since(began); !v.Active || v.Source != session.FromStore || !v.Degraded || took > time.Second {
			t.Errorf("%+v after %s", v, took)
		}
	}
	before := time.Now()
	p, err := m.Revoke(t.Context(), "acme", token)
	must(t, err)
	// F + 2σ from the answer on, in whole milliseconds
	if late := p.EffectiveBy.Sub(before); p.Propagated || late < 12*time.Second-time.Millisecond || late > 14*time.Second {
		t.Errorf("revoked without the cache: %+v, %s later", p, late)
	}
	if v := verify(); v.Active {
		t.Error("the store does not know of the revocation")
	}
	server.Resume(t)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if p, err = m.Revoke(t.Context(), "acme", token); err == nil && p.Propagated {
			break
		}
	}
	if err != nil || !p.Propagated {
		t.Errorf("after the outage: %+v, %v", p, err)
	}
}

// A revocation that is not durable is no success, and one that is not known to be
// is told to the cache in case it is.
func TestS17RevocationThatIsNotDurable(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{})
	token := p.login(session.CreateRequest{})
	p.want("cold", token, "", session.FromStore)
	p.durable.fail(keytype.ErrUnavailable)
	if got, err := p.m.Revoke(t.Context(), "acme", token); !errors.Is(err, keytype.ErrUnavailable) || got.Propagated {
		t.Errorf("%+v, %v", got, err)
	}
	p.durable.fail(nil)
	p.want("not revoked", token, "", session.FromCache)
	p.durable.unknown = true
	if got, err := p.m.Revoke(t.Context(), "acme", token); !errors.Is(err, keytype.ErrOutcomeUnknown) || got.Propagated {
		t.Errorf("%+v, %v", got, err)
	}
	p.through.Flush()
	p.want("it had happened", token, session.Revoked, session.FromStore)
}

// More reads than the store is asked for at once wait a moment, then are refused.
func TestBulkhead(t *testing.T) {
	p := newPlace(t, session.ReadThroughOptions{MaxReads: 2})
	var tokens []string
	for _, user := range []string{"a", "b", "c", "d", "e"} {
		tokens = append(tokens, p.login(session.CreateRequest{UserID: user}))
	}
	var under, most atomic.Int64
	open := make(chan struct{})
	stop := func() {
		most.Store(max(most.Load(), under.Add(1)))
		<-open
		under.Add(-1)
	}
	p.durable.beforeLoad.Store(&stop)
	results := make(chan error, len(tokens))
	for _, token := range tokens {
		go func() {
			_, err := p.verify(token)
			results <- err
		}()
	}
	for range 3 {
		if err := <-results; !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("beyond the bulkhead: %v", err)
		}
	}
	close(open)
	for range 2 {
		must(t, <-results)
	}
	if most.Load() > 2 {
		t.Errorf("%d reads at once", most.Load())
	}
	p.durable.beforeLoad.Store(nil)
	p.want("room again", p.login(session.CreateRequest{UserID: "f"}), "", session.FromStore)
}

// A hit counts only where the script and the transition agree.
func TestJudgesMustAgree(t *testing.T) {
	n, now := dial(t), newClock()
	p := placeOn(t, n, now, newWatched(t), session.ReadThroughOptions{})
	liar := session.NewReadThrough(p.durable, lying{p.cache}, session.ReadThroughOptions{Now: now.Now})
	m := session.New(liar, session.Options{RouteKey: routeKey, Now: now.Now})
	token := p.login(session.CreateRequest{})
	p.want("cold", token, "", session.FromStore)
	if v, err := m.Verify(t.Context(), "acme", token, session.VerifyRequest{}); err != nil || !v.Active || v.Source != session.FromStore {
		t.Errorf("a cache of another opinion: %+v, %v", v, err)
	}
}

// lying is the real cache with a wrong reason.
type lying struct{ session.Cache }

func (l lying) Verify(ctx context.Context, op session.VerifyOp, terms session.Terms) (session.Cached, error) {
	c, err := l.Cache.Verify(ctx, op, terms)
	c.Reason = session.Revoked
	return c, err
}

// Two processes over one durable store go through caches that do not know of each
// other. None of them may say that a change was propagated, nor the one that is told
// so answer from its own.
func TestOtherCachesAreToldOf(t *testing.T) {
	n, now, durable := dial(t), newClock(), newWatched(t)
	var elsewhere atomic.Bool
	told := func() (bool, time.Duration) { return elsewhere.Load(), 27 * time.Second }
	p := placeOn(t, n, now, durable, session.ReadThroughOptions{Elsewhere: told})
	direct := session.New(session.NewDirect(durable, told, now.Now), session.Options{RouteKey: routeKey, Now: now.Now})
	token, other := p.login(session.CreateRequest{}), p.login(session.CreateRequest{UserID: "bob"})
	p.want("cold", token, "", session.FromStore)
	p.want("warm", token, "", session.FromCache)
	if got, err := direct.BumpPermissions(t.Context(), "acme", "bob"); err != nil || !got.Propagated {
		t.Errorf("without caches: %+v, %v", got, err)
	}
	elsewhere.Store(true)
	p.reset()
	if v := p.want("its cache does not count", token, "", session.FromStore); !v.Degraded {
		t.Error("a cache that is not asked is not told of")
	}
	p.cost("its cache is not asked", 0, 1, 0)
	for who, change := range map[string]func() (session.Propagation, error){
		"with a cache": func() (session.Propagation, error) {
			r, err := p.m.Revoke(t.Context(), "acme", token)
			return r.Propagation, err
		},
		"without, revoke": func() (session.Propagation, error) {
			r, err := direct.Revoke(t.Context(), "acme", other)
			return r.Propagation, err
		},
		"without, logout-all": func() (session.Propagation, error) {
			c, err := direct.LogoutAll(t.Context(), "acme", "bob", "")
			return c.Propagation, err
		},
		"without, rotate": func() (session.Propagation, error) {
			r, err := direct.Rotate(t.Context(), "acme", p.login(session.CreateRequest{UserID: "carl"}), session.RotateRequest{})
			return r.Propagation, err
		},
	} {
		if got, err := change(); err != nil || got.Propagated || got.EffectiveBy.Sub(now.Now()) != 27*time.Second {
			t.Errorf("%s: %+v after %s, %v", who, got, got.EffectiveBy.Sub(now.Now()), err)
		}
	}
	elsewhere.Store(false)
	p.want("what was bumped counts", token, session.Revoked, session.FromStore)
}

func TestOptionsThatPromiseNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("half of F is not above 2σ")
		}
	}()
	session.NewReadThrough(newWatched(t), nil, session.ReadThroughOptions{Fresh: 4 * time.Second})
}
