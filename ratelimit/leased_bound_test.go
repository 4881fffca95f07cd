package ratelimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// A pureStore is the transition over a map.
type pureStore struct {
	states map[string][]byte
	now    func() time.Time
	lost   bool // the caller does not learn what was decided
	late   bool // nor is it decided before later calls are
	queue  []func()
}

func (s *pureStore) stored(buckets []Bucket) Stored {
	stored := Stored{Packed: make([][]byte, len(buckets))}
	for i, b := range buckets {
		stored.Packed[i] = s.states[b.Type().Name+b.Key]
	}
	return stored
}

func (s *pureStore) keep(buckets []Bucket, next Next) {
	for i, state := range next.States {
		if state.Packed != nil {
			s.states[buckets[i].Type().Name+buckets[i].Key] = state.Packed
		}
	}
}

func (s *pureStore) Take(_ context.Context, t Take) (Outcome, error) {
	decide := func() (Outcome, error) {
		t.Now = s.now().UnixMicro()
		next, out, err := t.Decide(s.stored(t.Buckets))
		s.keep(t.Buckets, next)
		return out, err
	}
	switch {
	case s.late:
		s.queue = append(s.queue, func() { _, _ = decide() })
		return Outcome{}, keytype.ErrOutcomeUnknown
	case s.lost:
		_, _ = decide()
		return Outcome{}, keytype.ErrOutcomeUnknown
	}
	return decide()
}

func (s *pureStore) Give(_ context.Context, g Give) (Outcome, error) {
	next, out, err := g.Decide(s.stored(g.Buckets))
	s.keep(g.Buckets, next)
	return out, err
}

func (s *pureStore) Forget(context.Context, []Bucket) error { return nil }

// A holding is what one node has of one user's units.
type holding struct {
	holder     string
	held, left int64
	expires    time.Time
	ref        any
}

// genLeasable draws a limit that can be leased.
func genLeasable(r *rapid.T, name string, key ...string) Limit {
	l := Limit{Name: name, Key: key, Algorithm: rapid.SampledFrom([]Algorithm{TokenBucket, GCRA, FixedWindow, SlidingWindowCounter, SlidingWindowLog}).Draw(r, name)}
	l.Rate = Rate{Count: rapid.Int64Range(20, 200).Draw(r, name+" count"), Per: time.Duration(rapid.Int64Range(100, 3000).Draw(r, name+" per ms")) * time.Millisecond}
	if l.Algorithm.refills() {
		l.Burst = rapid.Int64Range(20, 200).Draw(r, name+" burst")
	}
	return l
}

// beyond is by how much more than the rule says has passed at most: with as many more
// as that, it would have let everything pass.
func beyond(rule Rule, passed []admitted) (worst int64) {
	owed, seen := int64(0), int64(0)
	for i, p := range passed {
		over := int64(0)
		switch a := rule.Algorithm; {
		case a.refills():
			owed = max(0, owed-(p.at-seen)*rule.Count) + p.cost*rule.Per
			seen = p.at
			over = ceilDiv(owed, rule.Per) - rule.Burst
		case a == SlidingWindowCounter: // which rounds up, and so lets less pass
			start := p.at - p.at%rule.Per
			cur := within(passed[:i+1], start)
			old := within(passed[:i+1], start-rule.Per) - cur
			fading, _ := mulDiv(old, start+rule.Per-p.at, rule.Per)
			over = cur + fading - rule.Count
		default:
			over = p.cost - room[a](rule, passed[:i], p.at)
		}
		worst = max(worst, over)
	}
	return worst
}

// Whatever nodes lease, spend, return, lose and take to their graves, and whatever
// answers are lost or come late: no limit of a hierarchy lets more than its rule and
// MaxOvershoot pass. And nodes do hold as much.
func TestLeasesStayWithinTheirBound(t *testing.T) {
	most, leases := 0.0, 0
	history := func(r *rapid.T) {
		now := time.UnixMicro(2_000_000_000_000_000)
		clock := func() time.Time { return now }
		store := &pureStore{states: map[string][]byte{}, now: clock}
		p := Policy{
			Name: "p", Posture: FailOpen, Stage: Enforce, Mode: Leased, MaxOvershoot: rapid.Int64Range(5, 60).Draw(r, "max overshoot"), Slot: []string{"app"},
			Limits: []Limit{genLeasable(r, "user", "app", "user"), genLeasable(r, "app", "app")},
		}
		l, err := New(store, []Policy{p}, Options{Now: clock})
		if err != nil {
			r.Fatal(err)
		}
		users := []string{"ann", "bob"}
		nodes := map[string]*holding{}
		passed := map[string][]admitted{}
		pass := func(user string, cost int64) {
			for _, bucket := range []string{user, "app"} {
				passed[bucket] = append(passed[bucket], admitted{now.UnixMicro(), cost})
			}
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			now = now.Add(time.Duration(rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 300), rapid.Int64Range(0, 1000)).Draw(r, "pause ms")) * time.Millisecond)
			user := rapid.SampledFrom(users).Draw(r, "user")
			id := fmt.Sprint(rapid.IntRange(1, 4).Draw(r, "node"), user)
			h := nodes[id]
			if h == nil {
				h = &holding{holder: tokenlease.NewHolder()}
				nodes[id] = h
			}
			if !now.Before(h.expires) {
				h.left = 0
			}
			store.lost, store.late = false, false
			descriptors := map[string]string{"app": "a", "user": user}
			m, err := l.match("t", Request{Policy: "p", Descriptors: descriptors, Cost: 1})
			if err != nil {
				r.Fatal(err)
			}
			switch op := rapid.SampledFrom([]string{"lease", "lease", "lease", "spend", "exact", "rush", "return", "die", "lost", "late", "arrive"}).Draw(r, "op"); op {
			case "lease", "lost", "late":
				store.lost, store.late = op == "lost", op == "late"
				ask := tokenlease.Ask{Holder: h.holder, Held: h.held, Left: h.left, Want: rapid.Int64Range(1, 50).Draw(r, "want"), Least: 1}
				g, err := l.lease(t.Context(), m, ask)
				switch {
				case err != nil: // what it has left it may still spend, and begins anew
					h.holder, h.held = tokenlease.NewHolder(), 0
				case g.Granted > 0:
					leases++
					h.held, h.left, h.expires, h.ref = h.left+g.Granted, h.left+g.Granted, now.Add(g.ValidFor), g.Ref
				}
			case "spend":
				if h.left > 0 {
					cost := rapid.Int64Range(1, h.left).Draw(r, "cost")
					h.left -= cost
					pass(user, cost)
				}
			case "rush": // all that can pass at once
				for id, h := range nodes {
					if h.left > 0 && now.Before(h.expires) {
						pass(id[1:], h.left)
						h.left = 0
					}
				}
				for cost := int64(64); cost > 0; cost /= 2 {
					d, err := l.Check(t.Context(), "t", Request{Policy: "p", Descriptors: descriptors, Cost: cost})
					if err == nil && d.Allowed {
						pass(user, cost)
					}
				}
			case "exact":
				cost := rapid.Int64Range(1, 20).Draw(r, "cost")
				d, err := l.Check(t.Context(), "t", Request{Policy: "p", Descriptors: descriptors, Cost: cost})
				if err != nil {
					r.Fatal(err)
				}
				if d.Allowed {
					pass(user, cost)
				}
			case "return":
				if h.left > 0 {
					if err := l.unlease(t.Context(), m, h.holder, h.left); err != nil {
						r.Fatal(err)
					}
					*h = holding{holder: tokenlease.NewHolder()}
				}
			case "die":
				delete(nodes, id)
			case "arrive":
				for _, decide := range store.queue {
					decide()
				}
				store.queue = nil
			}
		}
		for i, bucket := range []string{"ann", "bob", "app"} {
			worst := beyond(p.Limits[i/2].rule(), passed[bucket])
			if worst > p.MaxOvershoot {
				r.Fatalf("%s: %d more than the limit says passed, the bound is %d", bucket, worst, p.MaxOvershoot)
			}
			most = max(most, float64(worst)/float64(p.MaxOvershoot))
		}
	}
	for range 20 { // some mistakes show once in a thousand histories
		rapid.Check(t, history)
	}
	t.Logf("%d leases; at worst %.0f %% of the bound", leases, 100*most)
	if leases == 0 || most == 0 {
		t.Errorf("%d leases, at worst %g of the bound: nothing was tried", leases, most)
	}
}
