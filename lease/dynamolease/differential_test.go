package dynamolease_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/histories"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

// An operation has the same outcome on every store, written out with all it returns.
type operation struct {
	name string
	do   func(ctx context.Context, s leasetest.Stores, resource string) string
}

// TestStoresAgree drives the bare transitions, the store in memory and DynamoDB
// with the same random histories of leases, marks and records of one resource.
func TestStoresAgree(t *testing.T) {
	e := engine.DynamoDB(t)
	stores := map[string]leasetest.Stores{
		"DynamoDB": open(t, e.Client(), e.Prefix(t)),
		"memory":   local(kv.NewMemory(kv.MemoryOptions{})),
	}
	history, seen := 0, map[string]int{}
	wanted := []string{
		"acquire {Verdict:1", "acquire {Verdict:2", "acquire {Verdict:3", "acquire {Verdict:6",
		"renew {Verdict:1", "renew {Verdict:4", "renew {Verdict:5", "release {Verdict:1", "release {Verdict:4",
		"force {Verdict:1", "force {Verdict:4",
		"set {Verdict:1", "set {Verdict:2", "set {Verdict:4",
		"admit {Verdict:1", "admit {Verdict:3", "admit {Verdict:4",
		"write {Verdict:1", "write {Verdict:2", "write {Verdict:3", "write {Verdict:5", "write {Verdict:6",
		"write {Verdict:4", "write {Verdict:7", "reset {Verdict:1", "reset {Verdict:8",
	}
	histories.Check(t, seen, wanted, func(rt *rapid.T) {
		history++
		resource := fmt.Sprintf("r%d", history)
		model := &transitions{records: map[string]fencing.Record{}}
		g := &generator{t: rt, model: model, now: time.UnixMilli(1_700_000_000_000).UTC(), ids: []string{""}}
		if rapid.IntRange(0, 4).Draw(rt, "near the last token") == 0 {
			g.last = fencing.MaxToken - fencing.Token(rapid.IntRange(0, 2).Draw(rt, "by"))
		}
		for range rapid.IntRange(1, 50).Draw(rt, "length") {
			op := g.next()
			want := op.do(t.Context(), leasetest.Stores{Leases: model, Fences: model}, resource)
			seen[strings.Fields(op.name)[0]+" "+verdict.FindString(want)]++
			for name, s := range stores {
				if got := op.do(t.Context(), s, resource); got != want {
					rt.Fatalf("%s on %s:\n got %s\nwant %s", op.name, name, got, want)
				}
			}
		}
	})
}

var verdict = regexp.MustCompile(`^\{Verdict:\d`)

func local(store kv.Store) leasetest.Stores {
	return leasetest.Stores{Leases: lease.NewLocal(store), Fences: fencing.NewLocal(store)}
}

// A generator draws operations that often concern what went before.
type generator struct {
	t     *rapid.T
	model *transitions
	last  fencing.Token // what the first tokens from outside are close to
	now   time.Time
	ids   []string // lease ids, and one that is none
	calls int
}

func (g *generator) next() operation {
	g.calls++
	g.now = g.now.Add(time.Duration(rapid.IntRange(-5, 30).Draw(g.t, "later")) * time.Millisecond)
	switch rapid.SampledFrom([]string{"acquire", "acquire", "renew", "release", "admit", "admit", "write", "write", "write", "write", "write", "read", "reset", "force", "set"}).Draw(g.t, "operation") {
	case "acquire":
		return g.acquire()
	case "renew":
		r := lease.Renew{Holder: g.holder(), Now: g.now, TTL: g.ttl()}
		return operation{fmt.Sprintf("renew %+v", r), func(ctx context.Context, s leasetest.Stores, resource string) string {
			return show(s.Leases.Renew(ctx, "t", resource, r))
		}}
	case "release":
		h := g.holder()
		return operation{fmt.Sprintf("release %+v", h), func(ctx context.Context, s leasetest.Stores, resource string) string {
			return show(s.Leases.Release(ctx, "t", resource, h))
		}}
	case "admit":
		p := g.position()
		return operation{fmt.Sprintf("admit %+v", p), func(ctx context.Context, s leasetest.Stores, resource string) string {
			return show(s.Fences.Admit(ctx, "t", resource, p))
		}}
	case "write":
		return g.write()
	case "reset":
		return g.reset()
	case "set":
		return g.set()
	case "force":
		r := lease.Force{Token: g.token(), RequestID: rapid.SampledFrom([]string{"f1", "f2"}).Draw(g.t, "request id")}
		return operation{fmt.Sprintf("force %+v", r), func(ctx context.Context, s leasetest.Stores, resource string) string {
			return show(s.Leases.Force(ctx, "t", resource, r))
		}}
	}
	return operation{"read", func(ctx context.Context, s leasetest.Stores, resource string) string {
		return show(s.Leases.Get(ctx, "t", resource)) + show(s.Fences.Mark(ctx, "t", resource)) + show(s.Fences.Read(ctx, "t", resource, "k"))
	}}
}

func (g *generator) acquire() operation {
	r := g.acquireRequest()
	return operation{fmt.Sprintf("acquire %+v", r), func(ctx context.Context, s leasetest.Stores, resource string) string {
		return show(s.Leases.Acquire(ctx, "t", resource, r))
	}}
}

func (g *generator) acquireRequest() lease.Acquire {
	r := lease.Acquire{
		Owner:     rapid.SampledFrom([]string{"a", "b"}).Draw(g.t, "owner"),
		RequestID: rapid.SampledFrom([]string{"", "q1", "q2"}).Draw(g.t, "request id"),
		ID:        fmt.Sprintf("lse_%d", g.calls),
		Now:       g.now, TTL: g.ttl(), MaxHold: 60 * time.Millisecond,
		Guard: time.Duration(rapid.SampledFrom([]int{0, 7}).Draw(g.t, "guard")) * time.Millisecond,
		Data:  rapid.SampledFrom([]string{"", "1"}).Draw(g.t, "data"),
	}
	r.NoSteal = rapid.IntRange(0, 4).Draw(g.t, "skewed") == 0
	if rapid.IntRange(0, 4).Draw(g.t, "has a last moment") == 0 {
		r.NotAfter = g.now.Add(time.Duration(rapid.IntRange(-2, 2).Draw(g.t, "last moment")) * time.Millisecond)
	}
	g.ids = append(g.ids, r.ID)
	return r
}

func (g *generator) write() operation {
	position := g.position()
	if last := g.model.records["k"]; last.Version > 0 && rapid.Bool().Draw(g.t, "around the last") {
		position = fencing.Position{Token: last.Token, Sequence: max(1, min(fencing.MaxSequence, last.Sequence+rapid.SampledFrom([]int64{-1, 0, 0, 1}).Draw(g.t, "by")))}
	}
	w := fencing.Write{
		Position: position, ID: rand.Text(),
		Mode:  rapid.SampledFrom([]fencing.Mode{fencing.HighWater, fencing.HighWater, fencing.HighWater, "other"}).Draw(g.t, "mode"),
		Value: []byte(rapid.SampledFrom([]string{"1", "2"}).Draw(g.t, "value")),
	}
	key := "k"
	if rapid.Bool().Draw(g.t, "leased") {
		h := g.holder()
		key, w.Mode, w.LeaseID, w.Position = "leased", fencing.Leased, cmp.Or(h.ID, "lse_none"), fencing.Position{Token: max(1, h.Token), Sequence: position.Sequence}
		if rapid.Bool().Draw(g.t, "without a sequence") {
			w.Sequence = 0
		}
	}
	return operation{fmt.Sprintf("write %+v", w), func(ctx context.Context, s leasetest.Stores, resource string) string {
		return show(s.Fences.Write(ctx, "t", resource, key, w))
	}}
}

func (g *generator) reset() operation {
	to, id := g.token(), rand.Text()
	key := rapid.SampledFrom([]string{"", "k", "leased"}).Draw(g.t, "record")
	return operation{fmt.Sprintf("reset %q to %d", key, to), func(ctx context.Context, s leasetest.Stores, resource string) string {
		if key == "" {
			return show(s.Fences.ResetMark(ctx, "t", resource, to))
		}
		return show(s.Fences.ResetRecord(ctx, "t", resource, key, fencing.Reset{Token: to, ID: id}))
	}}
}

// set is a set of one resource: what is one step on one item is one transaction then.
func (g *generator) set() operation {
	acquire, renew, release := g.acquireRequest(), lease.Renew{Holder: g.holder(), Now: g.now, TTL: g.ttl()}, g.holder()
	kind := rapid.IntRange(0, 2).Draw(g.t, "kind")
	decide := func(_ int, fence fencing.State, s lease.State) (lease.State, lease.Outcome) {
		switch kind {
		case 0:
			return s.Acquire(fence, acquire)
		case 1:
			return s.Renew(renew)
		default:
			return s.Release(release)
		}
	}
	return operation{fmt.Sprintf("set %d %+v %+v %+v", kind, acquire, renew, release), func(ctx context.Context, s leasetest.Stores, resource string) string {
		outs, err := s.Leases.Together(ctx, "t", []string{resource}, decide)
		if err != nil {
			return err.Error()
		}
		return show(outs[0], nil)
	}}
}

func (g *generator) ttl() time.Duration {
	return time.Duration(rapid.IntRange(1, 50).Draw(g.t, "ttl")) * time.Millisecond
}

func (g *generator) holder() lease.Holder {
	if rapid.Bool().Draw(g.t, "latest") {
		return lease.Holder{ID: g.model.lease.ID, Token: g.model.lease.Token}
	}
	return lease.Holder{ID: rapid.SampledFrom(g.ids[max(0, len(g.ids)-3):]).Draw(g.t, "lease id"), Token: g.token()}
}

func (g *generator) token() fencing.Token {
	around := max(g.model.fence.Granted, g.model.fence.Mark.Token, g.last)
	return min(fencing.MaxToken, max(1, around+fencing.Token(rapid.IntRange(-2, 2).Draw(g.t, "token"))))
}

func (g *generator) position() fencing.Position {
	sequence := int64(rapid.IntRange(0, 4).Draw(g.t, "sequence"))
	if rapid.IntRange(0, 19).Draw(g.t, "last") == 0 {
		sequence = fencing.MaxSequence
	}
	return fencing.Position{Token: g.token(), Sequence: sequence}
}

func show[T any](v T, err error) string { return fmt.Sprintf("%+v, %v\n", v, err) }

// transitions runs the bare transitions on one resource.
type transitions struct {
	lease   lease.State
	fence   fencing.State
	records map[string]fencing.Record
}

func (m *transitions) Acquire(_ context.Context, _, _ string, req lease.Acquire) (out lease.Outcome, err error) {
	m.lease, out = m.lease.Acquire(m.fence, req)
	m.tell()
	return out, nil
}

// tell has the fence know the latest grant.
func (m *transitions) tell() {
	m.fence.Granted, m.fence.Holder = m.lease.Token, m.lease.ID
	if m.lease.Released {
		m.fence.Holder = ""
	}
}

func (m *transitions) Renew(_ context.Context, _, _ string, req lease.Renew) (out lease.Outcome, err error) {
	m.lease, out = m.lease.Renew(req)
	return out, nil
}

func (m *transitions) Release(_ context.Context, _, _ string, h lease.Holder) (out lease.Outcome, err error) {
	m.lease, out = m.lease.Release(h)
	m.tell()
	return out, nil
}

func (m *transitions) Force(_ context.Context, _, _ string, req lease.Force) (out lease.Outcome, err error) {
	m.lease, out = m.lease.Force(m.fence, req)
	m.tell()
	return out, nil
}

func (m *transitions) Together(_ context.Context, _ string, _ []string, decide lease.Decision) ([]lease.Outcome, error) {
	next, out := decide(0, m.fence, m.lease)
	if out.Verdict == lease.Done {
		m.lease = next
		m.tell()
	}
	return []lease.Outcome{out}, nil
}

func (m *transitions) List(context.Context, string, lease.ListOp) ([]lease.Owned, string, error) {
	panic("of several resources: not for histories of one")
}

func (m *transitions) RaiseFloor(context.Context, fencing.Token) (fencing.Token, error) {
	panic("of all resources: not for histories of one")
}

func (m *transitions) Get(context.Context, string, string) (lease.State, error) { return m.lease, nil }

func (m *transitions) Admit(_ context.Context, _, _ string, at fencing.Position) (a fencing.Admission, err error) {
	m.fence, a = m.fence.Admit(at)
	return a, nil
}

func (m *transitions) Mark(context.Context, string, string) (fencing.Position, error) {
	return m.fence.Mark, nil
}

func (m *transitions) Write(_ context.Context, _, _, key string, w fencing.Write) (out fencing.Written, err error) {
	m.records[key], out = m.records[key].Write(m.fence, w)
	return out, nil
}

func (m *transitions) ResetMark(_ context.Context, _, _ string, to fencing.Token) (a fencing.Admission, err error) {
	m.fence, a = m.fence.Reset(to)
	return a, nil
}

func (m *transitions) ResetRecord(_ context.Context, _, _, key string, r fencing.Reset) (out fencing.Written, err error) {
	m.records[key], out = m.records[key].Reset(r.Token)
	return out, nil
}

func (m *transitions) Read(_ context.Context, _, _, key string) (fencing.Record, error) {
	return m.records[key], nil
}
