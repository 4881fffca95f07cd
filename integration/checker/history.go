// Package checker decides whether leases, fences, quotas and idempotency records kept
// their promises while networks, clocks and stores did what they do.
//
// A history is some clients on some nodes over one store, simulated: which request is
// next, how long it takes and what befalls it is drawn from the history's seed, and so a
// history can be run again. What the clients saw is judged twice: there must be an order
// of the calls in which the transition functions give the same answers (linearizability,
// by porcupine), and the promises themselves must hold, without those functions.
package checker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
)

// maxUnknown bounds the calls of a history whose outcome is unknown: each of them
// doubles what the search for an order has to look at.
const maxUnknown = 8

// searchTime bounds that search. A search that runs out of time fails.
const searchTime = 20 * time.Second

// guard is G in histories, whose leases last a few times as long.
const guard = 200 * time.Millisecond

// epoch is where the clocks of histories begin.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A Violation is a promise that was broken.
type Violation struct {
	Promise string
	What    string
}

func (v Violation) String() string { return v.Promise + ": " + v.What }

// A Result is what came of one history.
type Result struct {
	Seed       uint64
	Violations []Violation
	Counts     map[string]int // of operations, and of what happened to them
	Ticks      int64          // how many beginnings and ends of calls there were
	Ended      time.Duration  // by the history's own clock
}

// A Mutant is a mistake that a store might make, for a proxy, a manager or a wrapper to make.
type Mutant struct {
	Proxy   func(*dynamotest.Proxy)                  // changes requests on their way
	NoGuard bool                                     // G = 0
	Misread func(answer any, err error) (any, error) // changes what a store says
}

// A history is one run.
type history struct {
	*sim
	seed   uint64
	mutant Mutant
	proxy  *dynamotest.Proxy // nil where the store is in this process
	tenant string
	beyond bool // clocks differ by more than the guard
	rates  map[dynamotest.Fault]float64

	left    int // calls to begin
	calls   []*call
	unknown int
	found   []Violation
	counts  map[string]int
}

// A call is one call of a store, as it was seen from outside.
type call struct {
	name   string
	step   func(state any) (next, answer any) // what it does, and says, by the transition functions
	accept func(state, got any) (bool, any)   // where more than one answer is right: whether this one is, and what it left
	anew   bool                               // sent again, it may be carried out again where others came between
	once   bool                               // it knows its own earlier try by an id

	begun, ended int64 // ended is never, where the answer did not come
	got          any   // nil where nobody knows the answer
	landed       int   // how often it was carried out
}

const never = math.MaxInt64

func (h *history) violate(promise, format string, args ...any) {
	h.found = append(h.found, Violation{promise, fmt.Sprintf(format, args...)})
}

// record makes a call and remembers it. A store that says that it did nothing is believed.
func record[A any](ctx context.Context, h *history, of call, seen func(A) any, do func(context.Context) (A, error)) (A, error) {
	c := &of
	c.begun, c.ended = h.tick(), never
	answer, err := do(context.WithValue(ctx, callKey{}, c))
	if h.mutant.Misread != nil {
		var misread any
		if misread, err = h.mutant.Misread(answer, err); err == nil {
			answer = misread.(A)
		}
	}
	h.counts["calls"]++
	switch {
	case err == nil:
		c.ended, c.got = h.tick(), seen(answer)
		h.calls = append(h.calls, c)
	case errors.Is(err, keytype.ErrOutcomeUnknown):
		h.counts["calls of unknown outcome"]++
		h.unknown++
		h.calls = append(h.calls, c)
	case errors.Is(err, keytype.ErrUnavailable):
		h.counts["calls refused by a fault"]++
	default:
		h.violate("faults", "%s: an error that does not say whether something happened: %v", c.name, err)
	}
	return answer, err
}

// landed is a request that was carried out. One that comes again may do again what its
// call does, and so may the next try of a call that was not answered, where others came
// between: then it stands apart. A write is known by its id: its first time is the call's
// own, however late.
func (h *history) landed(ctx context.Context, r dynamotest.Request, how dynamotest.Landing) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok || r.Operation != "UpdateItem" { // a transaction is carried out once, by its token
		return
	}
	c.landed++
	apart := how == dynamotest.Unseen && c.anew
	if how == dynamotest.Again {
		h.note("late requests carried out")
		apart = !c.once || c.landed > 1
	}
	if apart {
		h.calls = append(h.calls, &call{name: c.name + ", unseen", step: c.step, begun: h.tick(), ended: h.tick()})
	}
}

// explains says whether the call, made in the state, can have got what it got, and what it left.
func (c *call) explains(state any) (bool, any) {
	if c.accept != nil && c.got != nil {
		return c.accept(state, c.got)
	}
	next, want := c.step(state)
	return c.got == nil || c.got == want, next
}

// linearize looks for an order of the calls that explains every answer.
func (h *history) linearize(initial any) {
	var ops []porcupine.Operation
	for _, c := range h.calls {
		ops = append(ops, porcupine.Operation{Input: c, Call: c.begun, Return: c.ended})
	}
	model := porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := input.(*call).explains(state)
			return ok, next
		},
	}
	switch found := porcupine.CheckOperationsTimeout(model, ops, searchTime); {
	case found == porcupine.Illegal:
		h.violate("linearizable", "%s", h.unexplained(model, ops, initial))
	case found != porcupine.Ok:
		h.violate("linearizable", "not known after %v", searchTime)
	}
}

// unexplained names the first call that no order explains.
func (h *history) unexplained(model porcupine.Model, ops []porcupine.Operation, initial any) string {
	_, info := porcupine.CheckOperationsVerbose(model, ops, searchTime)
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	state, placed := initial, map[int]bool{}
	for _, i := range longest {
		_, state = h.calls[i].explains(state)
		placed[i] = true
	}
	first := -1
	for i, c := range h.calls {
		if !placed[i] && c.got != nil && (first < 0 || c.ended < h.calls[first].ended) {
			first = i
		}
	}
	if first < 0 {
		return "no order of the calls gives their answers"
	}
	c := h.calls[first]
	_, want := c.step(state)
	return fmt.Sprintf("%s got %+v, and after %d other calls should have got %+v", c.name, c.got, len(longest), want)
}

// note counts what happened.
func (h *history) note(what string) { h.counts[what]++ }

// calm: no more calls may end in doubt, other than those under way.
func (h *history) calm() bool { return h.unknown >= maxUnknown-clients }

func newHistory(kind string, seed uint64, mutant Mutant) *history {
	h := &history{sim: newSim(seed), seed: seed, mutant: mutant, counts: map[string]int{}, rates: map[dynamotest.Fault]float64{}}
	h.tenant = fmt.Sprintf("%s-%d-%s", kind, seed, rand.Text())
	rate := h.rng.Float64() * 0.12 // of most faults
	for _, f := range dynamotest.Faults {
		if f == dynamotest.Stale { // it is not drawn: it befalls what does not ask for consistency
			continue
		}
		h.rates[f] = rate * h.rng.Float64() * 2
	}
	h.rates[dynamotest.Latency] = 2 * rate
	return h
}

func (h *history) result() Result {
	if h.proxy != nil {
		for f, n := range h.proxy.Counts() {
			h.counts[string(f)] += n
		}
	}
	h.counts["histories"]++
	return Result{Seed: h.seed, Violations: h.found, Counts: h.counts, Ticks: h.ticks, Ended: h.now}
}
