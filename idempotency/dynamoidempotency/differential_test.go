package dynamoidempotency_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/histories"
	"github.com/coordsvc/coordsvc/internal/kv"
)

// An operation has the same outcome on every store, written out with all it returns.
type operation struct {
	name string
	do   func(ctx context.Context, s idempotency.Store, id idempotency.ID) (idempotency.Outcome, error)
}

// TestStoresAgree drives the bare transitions, the store in memory and DynamoDB
// with the same random histories of one key.
func TestStoresAgree(t *testing.T) {
	e := engine.DynamoDB(t)
	stores := map[string]idempotency.Store{
		"DynamoDB": open(t, e.Client(), e.Prefix(t)),
		"memory":   idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{})),
	}
	history, seen := 0, map[string]int{}
	wanted := []string{"claim 1", "claim 2", "claim 3", "claim 4", "claim 6", "extend 1", "extend 5", "complete 1", "complete 4", "complete 5", "abandon 1", "abandon 5"}
	histories.Check(t, seen, wanted, func(rt *rapid.T) {
		history++
		id := idempotency.ID{Tenant: "t", Space: "s", Key: fmt.Sprint(history)}
		model := &transitions{}
		g := &generator{t: rt, model: model, now: time.UnixMilli(1_700_000_000_000).UTC(), ids: []string{"clm_none"}}
		for range rapid.IntRange(1, 40).Draw(rt, "length") {
			op := g.next()
			want, _ := op.do(t.Context(), model, id)
			seen[fmt.Sprint(strings.Fields(op.name)[0], " ", want.Verdict)]++
			for name, s := range stores {
				if got, err := op.do(t.Context(), s, id); got != want || err != nil {
					rt.Fatalf("%s on %s:\n got %+v, %v\nwant %+v", op.name, name, got, err, want)
				}
			}
		}
	})
}

// A generator draws operations that often concern what went before.
type generator struct {
	t     *rapid.T
	model *transitions
	now   time.Time
	ids   []string // claim ids, and one that is none
	calls int
}

func (g *generator) next() operation {
	g.calls++
	g.now = g.now.Add(time.Duration(rapid.IntRange(-5, 30).Draw(g.t, "later")) * time.Millisecond)
	switch rapid.SampledFrom([]string{"claim", "claim", "extend", "extend", "complete", "abandon"}).Draw(g.t, "operation") {
	case "claim":
		return g.claim()
	case "extend":
		r := idempotency.Extend{ID: g.id(), Now: g.now, LockTTL: g.ttl()}
		return operation{fmt.Sprintf("extend %+v", r), func(ctx context.Context, s idempotency.Store, id idempotency.ID) (idempotency.Outcome, error) {
			return s.Extend(ctx, id, r)
		}}
	case "complete":
		r := idempotency.Complete{ID: g.id(), Now: g.now, Response: rapid.SampledFrom([]string{"1", "2"}).Draw(g.t, "response")}
		return operation{fmt.Sprintf("complete %+v", r), func(ctx context.Context, s idempotency.Store, id idempotency.ID) (idempotency.Outcome, error) {
			return s.Complete(ctx, id, r)
		}}
	}
	r := idempotency.Abandon{ID: g.id(), Now: g.now}
	return operation{fmt.Sprintf("abandon %+v", r), func(ctx context.Context, s idempotency.Store, id idempotency.ID) (idempotency.Outcome, error) {
		return s.Abandon(ctx, id, r)
	}}
}

func (g *generator) claim() operation {
	r := idempotency.Claim{
		ID:          fmt.Sprintf("clm_%d", g.calls),
		RequestID:   rapid.SampledFrom([]string{"", "q1", "q2"}).Draw(g.t, "request id"),
		Fingerprint: rapid.SampledFrom([]string{"f", "f", "f", "g"}).Draw(g.t, "fingerprint"),
		Now:         g.now, LockTTL: g.ttl(),
		Guard: time.Duration(rapid.SampledFrom([]int{0, 7}).Draw(g.t, "guard")) * time.Millisecond,
	}
	r.NoSteal = rapid.IntRange(0, 4).Draw(g.t, "skewed") == 0
	r.TTL = r.LockTTL + time.Duration(rapid.IntRange(0, 60).Draw(g.t, "kept longer"))*time.Millisecond
	g.ids = append(g.ids, r.ID)
	return operation{fmt.Sprintf("claim %+v", r), func(ctx context.Context, s idempotency.Store, id idempotency.ID) (idempotency.Outcome, error) {
		return s.Claim(ctx, id, r)
	}}
}

func (g *generator) ttl() time.Duration {
	return time.Duration(rapid.IntRange(1, 50).Draw(g.t, "ttl")) * time.Millisecond
}

func (g *generator) id() string {
	if latest := g.model.state.ClaimID; latest != "" && rapid.IntRange(0, 3).Draw(g.t, "latest") > 0 {
		return latest
	}
	return rapid.SampledFrom(g.ids[max(0, len(g.ids)-3):]).Draw(g.t, "claim id")
}

// transitions runs the bare transitions on one key.
type transitions struct{ state idempotency.State }

func (m *transitions) Claim(_ context.Context, _ idempotency.ID, req idempotency.Claim) (out idempotency.Outcome, err error) {
	m.state, out = m.state.Claim(req)
	return out, nil
}

func (m *transitions) Extend(_ context.Context, _ idempotency.ID, req idempotency.Extend) (out idempotency.Outcome, err error) {
	m.state, out = m.state.Extend(req)
	return out, nil
}

func (m *transitions) Complete(_ context.Context, _ idempotency.ID, req idempotency.Complete) (out idempotency.Outcome, err error) {
	m.state, out = m.state.Complete(req)
	return out, nil
}

func (m *transitions) Abandon(_ context.Context, _ idempotency.ID, req idempotency.Abandon) (out idempotency.Outcome, err error) {
	m.state, out = m.state.Abandon(req)
	return out, nil
}
