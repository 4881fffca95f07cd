package checker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/keytype"
)

// recordedRecords remembers every call of an idempotency store.
type recordedRecords struct {
	idempotency.Store
	h *history
}

// requests are how many keys a history has at most, one after the other.
const requests = 10

// The next key begins when the last one is known to be completed, by so many answers, or
// after so many executions.
const (
	knownAnswers = 4
	executionsOf = 12
)

// recordStep is a step of one of a history's keys.
func recordStep(id idempotency.ID, decide func(idempotency.State) (idempotency.State, idempotency.Outcome)) func(any) (any, any) {
	return func(state any) (any, any) {
		all := state.([requests]idempotency.State)
		next, out := decide(all[id.Key[0]-'0'])
		all[id.Key[0]-'0'] = next
		return all, out
	}
}

// Claim implements idempotency.Store.
func (s recordedRecords) Claim(ctx context.Context, id idempotency.ID, req idempotency.Claim) (idempotency.Outcome, error) {
	return record(ctx, s.h, call{anew: true, name: "claim key " + id.Key + " " + req.ID, step: recordStep(id, func(r idempotency.State) (idempotency.State, idempotency.Outcome) { return r.Claim(req) })}, same,
		func(ctx context.Context) (idempotency.Outcome, error) { return s.Store.Claim(ctx, id, req) })
}

// Extend implements idempotency.Store.
func (s recordedRecords) Extend(ctx context.Context, id idempotency.ID, req idempotency.Extend) (idempotency.Outcome, error) {
	return record(ctx, s.h, call{name: "extend key " + id.Key + " " + req.ID, step: recordStep(id, func(r idempotency.State) (idempotency.State, idempotency.Outcome) { return r.Extend(req) })}, same,
		func(ctx context.Context) (idempotency.Outcome, error) { return s.Store.Extend(ctx, id, req) })
}

// Complete implements idempotency.Store.
func (s recordedRecords) Complete(ctx context.Context, id idempotency.ID, req idempotency.Complete) (idempotency.Outcome, error) {
	return record(ctx, s.h, call{name: "complete key " + id.Key + " " + req.ID, step: recordStep(id, func(r idempotency.State) (idempotency.State, idempotency.Outcome) { return r.Complete(req) })}, same,
		func(ctx context.Context) (idempotency.Outcome, error) { return s.Store.Complete(ctx, id, req) })
}

// Abandon implements idempotency.Store.
func (s recordedRecords) Abandon(ctx context.Context, id idempotency.ID, req idempotency.Abandon) (idempotency.Outcome, error) {
	return record(ctx, s.h, call{name: "abandon key " + id.Key + " " + req.ID, step: recordStep(id, func(r idempotency.State) (idempotency.State, idempotency.Outcome) { return r.Abandon(req) })}, same,
		func(ctx context.Context) (idempotency.Outcome, error) { return s.Store.Abandon(ctx, id, req) })
}

// An executor tries to carry out requests that all of a history's executors have.
type executor struct {
	h       *history
	records *idempotency.Manager
	task    *task
	name    string
	ttl     time.Duration
	all     *[requests]*executions
	key     string
	seen    *executions // of the key
	calls   int
}

// executions are what the executors of a history saw of one key.
type executions struct {
	h         *history
	forgets   bool // the record may end, and another begin
	executed  int
	claims    []claimed
	responses []string
}

func (s *executions) over() bool {
	return len(s.responses) >= knownAnswers || s.executed >= executionsOf
}

type claimed struct {
	begun, ended int64
	attempt      int64
	id           string
}

func (e *executor) work(ctx context.Context, t *task) {
	e.task = t
	ctx = t.context(ctx)
	for e.h.left > 0 {
		i := 0
		for i < requests-1 && e.all[i].over() {
			i++
		}
		e.key, e.seen = fmt.Sprint(i), e.all[i]
		e.seen.executed++
		e.execute(ctx)
		t.sleep(e.h.between(0, guard))
	}
}

// call counts down what is left of the history.
func (e *executor) call(what string) {
	e.h.left--
	e.h.note(what)
}

// execute claims the key and, if it may, does the work, and at times pauses until it may not any more.
func (e *executor) execute(ctx context.Context) {
	e.calls++
	req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: e.h.between(100*time.Millisecond, 2*guard), TTL: e.ttl}
	if e.h.chance(0.5) {
		req.RequestID = fmt.Sprintf("%s-%d", e.name, e.calls)
	}
	if e.h.chance(0.05) {
		req.Fingerprint = "another"
	}
	got, begun, err := e.claim(ctx, req)
	if unknown(err) && req.RequestID != "" {
		got, begun, err = e.claim(ctx, req)
	}
	if err != nil {
		e.task.sleep(e.h.between(0, 5*guard))
		return
	}
	if got.Completed {
		e.seen.response(got.Response)
		return
	}
	e.seen.claims = append(e.seen.claims, claimed{begun, e.h.tick(), got.Attempt, got.ID})
	e.task.sleep(e.h.between(0, guard))
	if e.h.chance(0.3) {
		e.call("extend")
		_, _ = e.records.Extend(ctx, e.h.tenant, e.key, got.ID, e.h.between(100*time.Millisecond, 2*guard))
	}
	if e.h.chance(0.4) {
		e.h.note("pauses")
		e.task.sleep(e.h.between(0, 6*guard))
	}
	switch d := e.h.rng.Float64(); {
	case d < 0.2:
		e.call("abandon")
		_ = e.records.Abandon(ctx, e.h.tenant, e.key, got.ID)
	case d < 0.45: // it crashed
	default:
		e.complete(ctx, got)
	}
}

func (e *executor) claim(ctx context.Context, req idempotency.ClaimRequest) (idempotency.Claimed, int64, error) {
	e.call("claim")
	begun := e.h.tick()
	got, err := e.records.Claim(ctx, e.h.tenant, e.key, req)
	return got, begun, err
}

func (e *executor) complete(ctx context.Context, got idempotency.Claimed) {
	response := fmt.Sprintf(`"%s-%d"`, e.name, got.Attempt)
	for range 3 {
		e.call("complete")
		begun := e.h.tick()
		err := e.records.Complete(ctx, e.h.tenant, e.key, got.ID, response)
		if err == nil {
			e.seen.completed(begun, got, response)
		}
		if !unknown(err) && !e.h.chance(0.1) {
			return
		}
	}
}

func unknown(err error) bool { return errors.Is(err, keytype.ErrOutcomeUnknown) }

func (s *executions) response(text string) { s.responses = append(s.responses, text) }

// completed: an executor that was followed before it began to complete cannot.
func (s *executions) completed(begun int64, got idempotency.Claimed, response string) {
	s.h.note("completions")
	s.response(response)
	for _, c := range s.claims {
		if c.attempt > got.Attempt && c.ended < begun && !s.forgets {
			s.h.violate("a superseded executor cannot complete", "attempt %d completed after attempt %d had claimed", got.Attempt, c.attempt)
		}
	}
}

func (s *executions) judge() {
	for i, a := range s.claims {
		for _, b := range s.claims[i+1:] {
			switch {
			case a.attempt == b.attempt && a.id != b.id:
				s.h.violate("attempts are never equal", "two claims have attempt %d", a.attempt)
			case a.ended < b.begun && b.attempt < a.attempt:
				s.h.violate("attempts grow", "attempt %d was claimed after attempt %d", b.attempt, a.attempt)
			}
		}
	}
	for _, r := range s.responses {
		if r != s.responses[0] && !s.forgets {
			s.h.violate("one completion", "the key has the responses %s and %s", s.responses[0], r)
			return
		}
	}
}

// Records runs a history of about so many calls on a few keys, one after the other.
func Records(ctx context.Context, ground Ground, seed uint64, calls int, mutant Mutant) Result {
	h := newHistory("records", seed, mutant)
	h.beyond = h.chance(0.25)
	d, err := ground.data(h, false)
	if err != nil {
		h.violate("harness", "%v", err)
		return h.result()
	}
	defer d.close()
	forgets, seen := h.chance(0.2), [requests]*executions{}
	for i := range seen {
		seen[i] = &executions{h: h, forgets: forgets}
	}
	nodes := []*node{h.newNode(d), h.newNode(d)}
	h.left = calls
	for i := range clients {
		n := nodes[i%2]
		e := &executor{h: h, name: string(rune('a' + i)), all: &seen, ttl: 24 * time.Hour}
		if forgets {
			e.ttl = 3 * guard
		}
		e.records = idempotency.New(recordedRecords{n.stores.records, h}, idempotency.Options{Guard: h.guard(), Now: n.now})
		h.start(h.between(0, 50*time.Millisecond), func(t *task) { e.work(ctx, t) })
	}
	h.run()
	h.linearize([requests]idempotency.State{})
	for _, s := range seen {
		s.judge()
	}
	return h.result()
}
