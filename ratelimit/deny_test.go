package ratelimit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A pair is two nodes over one store, of which the first remembers refusals, and their clock.
type pair struct {
	node, other *ratelimit.Limiter
	now         time.Time
}

func newPair(t testing.TB, store ratelimit.Store, policies ...ratelimit.Policy) *pair {
	t.Helper()
	p := &pair{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	opts := ratelimit.Options{Now: func() time.Time { return p.now }}
	var err error
	if p.other, err = ratelimit.New(store, policies, opts); err != nil {
		t.Fatal(err)
	}
	opts.DenyCache = true
	if p.node, err = ratelimit.New(store, policies, opts); err != nil {
		t.Fatal(err)
	}
	return p
}

func of(cost int64, user, id string) ratelimit.Request {
	return ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": user, "tenant": "x"}, Cost: cost, RequestID: id}
}

// What a refusal stands for, and what it does not.
func TestDenyCache(t *testing.T) {
	nested := policy(limit("user", 10, time.Second, 30, "tenant", "user"), limit("tenant", 1, time.Second, 10, "tenant"))
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), nested)
	for i, step := range []struct {
		why     string
		after   time.Duration
		cost    int64
		user    string
		id      string
		allowed bool
		source  ratelimit.Source
		retry   time.Duration
	}{
		{"charged under an id", 0, 8, "a", "id", true, ratelimit.Memory, 0},
		{"2 are left of the tenant's 10", 0, 4, "a", "", false, ratelimit.Memory, 2 * time.Second},
		{"the same again", 500 * time.Millisecond, 4, "a", "", false, ratelimit.SourceDenyCache, 1500 * time.Millisecond},
		{"another user meets the tenant's limit", 0, 4, "b", "", false, ratelimit.SourceDenyCache, 1500 * time.Millisecond},
		{"more passes later", 0, 9, "c", "", false, ratelimit.SourceDenyCache, 6500 * time.Millisecond},
		{"less may", 0, 2, "c", "", true, ratelimit.Memory, 0},
		{"still remembered", 0, 4, "c", "", false, ratelimit.SourceDenyCache, 1500 * time.Millisecond},
		{"the retry of what passed", 0, 8, "a", "id", true, ratelimit.Memory, 0},
		{"one with a new id asks", 0, 4, "a", "new", false, ratelimit.Memory, 3500 * time.Millisecond},
		{"its refusal is the newest", 0, 4, "a", "", false, ratelimit.SourceDenyCache, 3500 * time.Millisecond},
		{"just before it would pass", 3499 * time.Millisecond, 4, "a", "", false, ratelimit.SourceDenyCache, time.Millisecond},
		{"now it passes", time.Millisecond, 4, "a", "", true, ratelimit.Memory, 0},
		{"a wait above 5 s", 0, 10, "a", "", false, ratelimit.Memory, 10 * time.Second},
		{"is remembered for 5 s", 4999 * time.Millisecond, 10, "a", "", false, ratelimit.SourceDenyCache, 5001 * time.Millisecond},
		{"and no longer", time.Millisecond, 10, "a", "", false, ratelimit.Memory, 5 * time.Second},
	} {
		p.now = p.now.Add(step.after)
		d, err := p.node.Check(t.Context(), "t", of(step.cost, step.user, step.id))
		if err != nil || d.Allowed != step.allowed || d.Source != step.source || d.RetryAfter != step.retry || !step.allowed && d.Limiting != "tenant" {
			t.Errorf("step %d, %s: got %+v, %v", i+1, step.why, d, err)
		}
		if remembered := step.source == ratelimit.SourceDenyCache; len(d.Limits) != 2 && !remembered || remembered && (len(d.Limits) != 1 || d.Limits[0].Name != "tenant") {
			t.Errorf("step %d, %s: limits %+v", i+1, step.why, d.Limits)
		}
		if peek, err := p.node.Peek(t.Context(), "t", of(10, step.user, "")); err != nil || peek.Source != ratelimit.Memory {
			t.Errorf("step %d: a peek is answered from memory: %+v, %v", i+1, peek, err)
		}
	}
}

// Whatever larger cost memory refuses is told the wait that the store would have told it.
func TestDenyCacheTellsOfEachCost(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog} {
		l := limit("l", 20, time.Second, 0, "user")
		switch l.Algorithm = a; a { //nolint:exhaustive // of the others the rate is the capacity
		case ratelimit.TokenBucket:
			l.Rate.Count, l.Burst = 7, 20
		case ratelimit.LeakyBucket:
			l.Rate.Count, l.Queue = 7, 20
		}
		p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(l))
		for _, cost := range []int64{7, 7, 4} {
			if d, err := p.node.Check(t.Context(), "t", of(cost, "u", "")); err != nil || !d.Allowed {
				t.Fatalf("%s: %+v, %v", a, d, err)
			}
			p.now = p.now.Add(3 * time.Millisecond)
		}
		for _, cost := range []int64{5, 5, 6, 13, 20} {
			truth, err := p.other.Peek(t.Context(), "t", of(cost, "u", ""))
			if err != nil {
				t.Fatal(err)
			}
			d, err := p.node.Check(t.Context(), "t", of(cost, "u", ""))
			if off := d.RetryAfter - truth.RetryAfter; err != nil || d.Allowed || off < 0 || off > time.Millisecond {
				t.Errorf("%s, cost %d: %s says %v and the store %v, %v", a, cost, d.Source, d.RetryAfter, truth.RetryAfter, err)
			}
		}
	}
}

// What comes back on this node shows at once, on another one within 5 s.
func TestR15DenyCacheForgets(t *testing.T) {
	slow := policy(limit("l", 1, time.Hour, 1))
	higher := policy(limit("l", 1, time.Hour, 2))
	for _, c := range []struct {
		what   string
		fills  func(p *pair, node *ratelimit.Limiter) error
		atOnce bool
	}{
		{"a refund", func(_ *pair, node *ratelimit.Limiter) error {
			_, err := node.Refund(t.Context(), "t", ask(1))
			return err
		}, true},
		{"a refund of parts", func(_ *pair, node *ratelimit.Limiter) error {
			_, err := node.RefundParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "user", "u")})
			return err
		}, true},
		{"a reset", func(_ *pair, node *ratelimit.Limiter) error {
			return node.Reset(t.Context(), "t", "p", ask(1).Descriptors)
		}, true},
		{"a higher limit", func(_ *pair, node *ratelimit.Limiter) error { return node.Replace([]ratelimit.Policy{higher}) }, true},
		{"a higher limit and back, and a reset elsewhere", func(p *pair, node *ratelimit.Limiter) error {
			if err := p.other.Reset(t.Context(), "t", "p", ask(1).Descriptors); err != nil {
				return err
			}
			if err := node.Replace([]ratelimit.Policy{higher}); err != nil {
				return err
			}
			return node.Replace([]ratelimit.Policy{slow})
		}, true},
		{"a refund elsewhere", func(p *pair, _ *ratelimit.Limiter) error {
			_, err := p.other.Refund(t.Context(), "t", ask(1))
			return err
		}, false},
		{"a reset elsewhere", func(p *pair, _ *ratelimit.Limiter) error {
			return p.other.Reset(t.Context(), "t", "p", ask(1).Descriptors)
		}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newPair(t, ratelimit.NewLocal(openMemory(t)), slow)
			check := func() ratelimit.Decision {
				d, err := p.node.Check(t.Context(), "t", ask(1))
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			if first, second, third := check(), check(), check(); !first.Allowed || second.Allowed || third.Source != ratelimit.SourceDenyCache {
				t.Fatalf("got %+v, %+v, %+v", first, second, third)
			}
			if err := c.fills(p, p.node); err != nil {
				t.Fatal(err)
			}
			if !c.atOnce {
				p.now = p.now.Add(4999 * time.Millisecond)
				if d := check(); d.Allowed || d.Source != ratelimit.SourceDenyCache {
					t.Errorf("before 5 s: %+v", d)
				}
				p.now = p.now.Add(time.Millisecond)
			}
			if d := check(); !d.Allowed {
				t.Errorf("got %+v", d)
			}
		})
	}
}

// A meddler is a store in which something happens while a refusal is on its way back.
type meddler struct {
	ratelimit.Store
	meddle func()
}

func (m *meddler) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	out, err := m.Store.Take(ctx, t)
	if meddle := m.meddle; !out.Allowed && meddle != nil {
		m.meddle = nil
		meddle()
	}
	return out, err
}

// A refusal that was decided before a refund, and arrives after it, is not remembered.
func TestDenyCacheOfAnswersOnTheirWay(t *testing.T) {
	for what, fill := range map[string]func(l *ratelimit.Limiter) error{
		"refund": func(l *ratelimit.Limiter) error { _, err := l.Refund(t.Context(), "t", ask(1)); return err },
		"reset":  func(l *ratelimit.Limiter) error { return l.Reset(t.Context(), "t", "p", ask(1).Descriptors) },
		"reload": func(l *ratelimit.Limiter) error {
			return l.Replace([]ratelimit.Policy{policy(limit("l", 1, time.Hour, 2))})
		},
	} {
		store := &meddler{Store: ratelimit.NewLocal(openMemory(t))}
		p := newPair(t, store, policy(limit("l", 1, time.Hour, 1)))
		var passed []bool
		for i := range 3 {
			if i == 1 {
				store.meddle = func() {
					if err := fill(p.node); err != nil {
						t.Error(err)
					}
				}
			}
			d, err := p.node.Check(t.Context(), "t", ask(1))
			if err != nil {
				t.Fatal(err)
			}
			passed = append(passed, d.Allowed)
		}
		if !slices.Equal(passed, []bool{true, false, true}) {
			t.Errorf("%s: got %v", what, passed)
		}
	}
}

// Where a refusal does not count, the remembered one does not either, and says the same.
func TestDenyCacheByStage(t *testing.T) {
	for _, stage := range []ratelimit.Stage{ratelimit.Shadow, ratelimit.Warn} {
		one := policy(limit("l", 1, time.Second, 4))
		one.Stage = stage
		p := newPair(t, ratelimit.NewLocal(openMemory(t)), one)
		var answers []ratelimit.Decision
		for range 3 {
			d, err := p.node.Check(t.Context(), "t", ask(3))
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, d)
		}
		if second, third := answers[1], answers[2]; third.Source != ratelimit.SourceDenyCache || !third.Allowed || third.Limiting != "l" ||
			third.RetryAfter != 0 || third.OverBy != second.OverBy || (stage == ratelimit.Warn) != (third.OverBy == 50) {
			t.Errorf("%s: got %+v, then %+v", stage, second, third)
		}
	}
}

// Slots come back by a release, so no refusal of theirs is remembered.
func TestDenyCacheLeavesSlotsAlone(t *testing.T) {
	one := policy(numbered("l", ratelimit.Concurrency, slots(1), "user"))
	one.Posture = ratelimit.FailOpen
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), one)
	for i := range 3 {
		d, err := p.node.Check(t.Context(), "t", ask(1))
		if err != nil || d.Allowed != (i == 0) || d.Source != ratelimit.Memory {
			t.Errorf("call %d: got %+v, %v", i+1, d, err)
		}
	}
}

// Where a policy's limits lie apart, a charge may be on its way back to all but the last.
func TestDenyCacheWhereLimitsLieApart(t *testing.T) {
	apart := policy(limit("user", 1, time.Hour, 1, "tenant", "user"), limit("all", 1, time.Hour, 2, "all"), limit("tenant", 1, time.Hour, 9, "tenant"))
	apart.Slot = []string{"tenant"}
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), apart)
	for i, step := range []struct {
		user     string
		limiting string
		source   ratelimit.Source
	}{
		{"a", "", ratelimit.Memory},
		{"a", "user", ratelimit.Memory},
		{"a", "user", ratelimit.Memory},
		{"b", "", ratelimit.Memory},
		{"c", "all", ratelimit.Memory},
		{"d", "all", ratelimit.SourceDenyCache},
	} {
		req := of(1, step.user, "")
		req.Descriptors["all"] = "x"
		if d, err := p.node.Check(t.Context(), "t", req); err != nil || d.Limiting != step.limiting || d.Source != step.source {
			t.Errorf("call %d: got %+v, %v", i+1, d, err)
		}
	}
}

// Of parts it says which are known to be over, and of the others nothing.
func TestDenyCacheOfParts(t *testing.T) {
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(limit("user", 1, time.Second, 9, "user"), limit("all", 1, time.Second, 2, "all")))
	parts := []ratelimit.Part{part(1, "user", "u"), part(2, "all", "x")}
	for i := range 3 {
		d, states, err := p.node.CheckParts(t.Context(), "t", "p", parts)
		if err != nil || d.Allowed != (i == 0) || len(states) != 2 || !states[0].Allowed || states[1].Allowed != (i == 0) {
			t.Fatalf("call %d: got %+v, %+v, %v", i+1, d, states, err)
		}
		if i == 2 && (d.Source != ratelimit.SourceDenyCache || len(d.Limits) != 1 || len(states[0].Limits) != 0 || states[1].Limits[0].Name != "all") {
			t.Errorf("got %+v, %+v", d, states)
		}
	}
}

// What is refused because of a charge that may still go back is not remembered: a bucket
// that one request meets alone others meet before their last one.
func TestDenyCacheWhereSomethingIsPending(t *testing.T) {
	store := &holder{Store: ratelimit.NewLocal(openMemory(t))}
	p := newPair(t, store, policy(limit("route", 1, time.Hour, 4, "route"), limit("user", 1, time.Hour, 9, "user")))
	for i, step := range []struct {
		pending bool
		parts   []ratelimit.Part
		allowed bool
		source  ratelimit.Source
	}{
		{true, []ratelimit.Part{part(3, "route", "r"), part(3, "user", "u")}, true, ratelimit.Memory},
		{false, []ratelimit.Part{part(2, "route", "r")}, false, ratelimit.Memory},
		{false, []ratelimit.Part{part(2, "route", "r")}, false, ratelimit.Memory},
		{false, []ratelimit.Part{part(1, "route", "r")}, true, ratelimit.Memory},
	} {
		store.pending = step.pending
		if d, _, err := p.node.CheckParts(t.Context(), "t", "p", step.parts); err != nil || d.Allowed != step.allowed || d.Source != step.source {
			t.Errorf("call %d: got %+v, %v", i+1, d, err)
		}
	}
	undone := ratelimit.Give{Buckets: store.held.Buckets, Cost: store.held.Cost, Now: store.held.Now, Charged: store.held.Now, Ends: ratelimit.Undone}
	if _, err := store.Give(t.Context(), undone); err != nil {
		t.Fatal(err)
	}
	for i, source := range []ratelimit.Source{ratelimit.Memory, ratelimit.SourceDenyCache} {
		d, _, err := p.node.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(4, "route", "r")})
		if err != nil || d.Allowed || d.Source != source {
			t.Errorf("over what stays, call %d: got %+v, %v", i+1, d, err)
		}
	}
}

// A holder is a store whose Takes are pending at times.
type holder struct {
	ratelimit.Store
	pending bool
	held    ratelimit.Take // the last one
}

func (h *holder) Take(ctx context.Context, t ratelimit.Take) (ratelimit.Outcome, error) {
	if t.Pending = h.pending; t.Pending {
		h.held = t
	}
	return h.Store.Take(ctx, t)
}

// What was refused at one rate says nothing of another one that a request brings along.
func TestR23DenyCacheKnowsTheRate(t *testing.T) {
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(limit("l", 1, time.Hour, 1)))
	for i, step := range []struct {
		count   int64
		allowed bool
	}{{1, true}, {1, false}, {1, false}, {9, true}} {
		one := part(1, "user", "u")
		one.Rate = &ratelimit.Rate{Count: step.count, Per: time.Hour}
		if d, _, err := p.node.CheckParts(t.Context(), "t", "p", []ratelimit.Part{one}); err != nil || d.Allowed != step.allowed {
			t.Errorf("call %d: got %+v, %v", i+1, d, err)
		}
	}
}

// Whatever happens on this node, a refusal from memory is one that the store would
// repeat; what came back otherwise shows within 5 s.
func TestR23DenyCacheRefusesNothingThatWouldPass(t *testing.T) {
	remembered := 0
	rapid.Check(t, func(r *rapid.T) {
		one := policy(genLimits(r)...)
		p := newPair(t, ratelimit.NewLocal(openMemory(t)), one)
		otherwise := p.now.Add(-time.Hour)
		for range rapid.IntRange(20, 80).Draw(r, "calls") {
			p.now = p.now.Add(rapid.SampledFrom([]time.Duration{0, 0, time.Microsecond, time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second}).Draw(r, "pause"))
			req := of(rapid.Int64Range(1, 4).Draw(r, "cost"), rapid.SampledFrom([]string{"a", "b"}).Draw(r, "user"), "")
			var err error
			switch rapid.IntRange(0, 15).Draw(r, "call") {
			case 0:
				_, err = p.node.Refund(t.Context(), "t", req)
			case 1:
				err = p.node.Reset(t.Context(), "t", "p", req.Descriptors)
			case 2:
				_, err = p.other.Refund(t.Context(), "t", req)
				otherwise = p.now
			case 3:
				one.Limits = genLimits(r)
				err = p.node.Replace([]ratelimit.Policy{one})
				if err == nil {
					err = p.other.Replace([]ratelimit.Policy{one})
				}
				otherwise = p.now // a state of a shorter window lapses with that, before the wait that the new one tells
			default:
				truth, peekErr := p.other.Peek(t.Context(), "t", req)
				if peekErr != nil {
					r.Fatal(peekErr)
				}
				d, checkErr := p.node.Check(t.Context(), "t", req)
				if checkErr != nil {
					r.Fatal(checkErr)
				}
				if d.Source == ratelimit.SourceDenyCache {
					remembered++
				}
				if d.Allowed != truth.Allowed && (d.Allowed || p.now.Sub(otherwise) >= 5*time.Second) {
					r.Fatalf("%+v, and the store says %+v", d, truth)
				}
			}
			if err != nil {
				r.Fatal(err)
			}
		}
	})
	if t.Logf("%d refusals from memory", remembered); remembered < 20 {
		t.Errorf("only %d refusals came from memory", remembered)
	}
}

// genLimits draws a limit of each user and one of all, the first with an override.
func genLimits(r *rapid.T) []ratelimit.Limit {
	draw := func(name string, key ...string) ratelimit.Limit {
		units := rapid.Int64Range(4, 8).Draw(r, name+" units")
		n := ratelimit.Numbers{Rate: ratelimit.Rate{Count: units, Per: rapid.SampledFrom([]time.Duration{10 * time.Millisecond, time.Second, time.Minute}).Draw(r, name+" per")}}
		a := rapid.SampledFrom([]ratelimit.Algorithm{
			ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog, ratelimit.LeakyBucket,
		}).Draw(r, name+" algorithm")
		if a == ratelimit.TokenBucket {
			n.Burst = units
		}
		if a == ratelimit.LeakyBucket {
			n.Queue = units
		}
		return ratelimit.Limit{Name: name, Key: key, Algorithm: a, Numbers: n}
	}
	user := draw("user", "tenant", "user")
	user.Overrides = []ratelimit.Override{{Match: map[string]string{"user": "b"}, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 9, Per: time.Second}}}}
	return []ratelimit.Limit{user, draw("tenant", "tenant")}
}

// What is remembered is bounded, whoever is refused.
func TestDenyCacheIsBounded(t *testing.T) {
	p := newPair(t, ratelimit.NewLocal(openMemory(t)), policy(limit("l", 1, time.Hour, 1)))
	served, users := 0, 40_000
	for range 2 {
		served = 0
		for i := range users {
			req := ask(1)
			req.Descriptors = map[string]string{"user": fmt.Sprint(i)}
			for range 2 {
				d, err := p.node.Check(t.Context(), "t", req)
				if err != nil {
					t.Fatal(err)
				}
				if d.Source == ratelimit.SourceDenyCache {
					served++
				}
			}
		}
	}
	t.Logf("of %d refused users' second checks %d came from memory", users, served)
	if served < users || served > users+16_384 {
		t.Errorf("%d", served)
	}
}
