package idempotency_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/idempotency"
)

// TestInvariants checks what is promised about a key, on random histories of the
// bare transitions, by callers whose clocks differ by at most the guard.
func TestInvariants(t *testing.T) {
	claims, completions, superseded := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		guard := time.Duration(rapid.SampledFrom([]int{0, 10}).Draw(rt, "guard")) * time.Millisecond
		h := &history{t: rt, guard: guard, now: time.UnixMilli(1_700_000_000_000).UTC()}
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			h.step()
		}
		claims, completions, superseded = claims+len(h.ids), completions+h.completions, superseded+h.superseded
	})
	t.Logf("%d claims, %d completions, %d superseded executors refused", claims, completions, superseded)
	if claims == 0 || completions == 0 || superseded == 0 {
		t.Error("the histories show nothing")
	}
}

// A history is what happened to one key.
type history struct {
	t     *rapid.T
	guard time.Duration
	now   time.Time // of no clock in particular

	state       idempotency.State
	ids         []string // of all claims, by attempt
	completions int
	superseded  int
}

// clock reads one of the callers' clocks.
func (h *history) clock() time.Time {
	half := int(h.guard.Milliseconds()) / 2
	return h.now.Add(time.Duration(rapid.IntRange(-half, half).Draw(h.t, "skew")) * time.Millisecond)
}

func (h *history) step() {
	h.now = h.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(h.t, "later")) * time.Millisecond)
	before := h.state
	switch rapid.SampledFrom([]string{"claim", "claim", "extend", "complete", "abandon"}).Draw(h.t, "operation") {
	case "claim":
		h.claim()
	case "extend":
		id := h.id()
		h.state, _ = h.state.Extend(idempotency.Extend{ID: id, Now: h.clock(), LockTTL: h.ttl()})
		h.onlyBy(id, before)
		if h.state.LockedUntil.Before(before.LockedUntil) || h.state.ExpiresAt.Before(before.ExpiresAt) {
			h.t.Fatalf("extending moved %+v back to %+v", before, h.state)
		}
	case "complete":
		h.complete()
	case "abandon":
		id := h.id()
		h.state, _ = h.state.Abandon(idempotency.Abandon{ID: id, Now: h.clock()})
		h.onlyBy(id, before)
	}
	if h.state.LockedUntil.After(h.state.ExpiresAt) {
		h.t.Fatalf("the lock outlives the record: %+v", h.state)
	}
}

func (h *history) claim() {
	before := h.state
	req := idempotency.Claim{
		ID: fmt.Sprint("clm_", len(h.ids)), Fingerprint: rapid.SampledFrom([]string{"f", "f", "f", "g"}).Draw(h.t, "fingerprint"),
		RequestID: rapid.SampledFrom([]string{"", "q1", "q2"}).Draw(h.t, "request id"), Now: h.clock(), LockTTL: h.ttl(), Guard: h.guard,
	}
	req.TTL = req.LockTTL + time.Duration(rapid.IntRange(0, 100).Draw(h.t, "kept longer"))*time.Millisecond
	next, out := before.Claim(req)
	h.state = next
	// What any clock may still take for alive.
	alive := before.Attempt > 0 && !before.ExpiresAt.Before(h.now.Add(-h.guard/2))
	switch {
	case alive && before.Fingerprint != req.Fingerprint:
		if out.Verdict != idempotency.Mismatch {
			h.t.Fatalf("another request %+v of %+v got %+v", req, before, out)
		}
	case alive && before.Response != "":
		if out.Verdict != idempotency.Completed || out.State.Response != before.Response {
			h.t.Fatalf("the completed %+v answered %+v", before, out)
		}
	case next != before:
		h.ids = append(h.ids, req.ID)
		if next.Attempt != int64(len(h.ids)) {
			h.t.Fatalf("claim %d has the attempt %d", len(h.ids), next.Attempt)
		}
		if before.Attempt > 0 && !before.Abandoned && !before.LockedUntil.Before(h.now.Add(-h.guard/2)) {
			h.t.Fatalf("two executors at %v: %+v and %+v", req.Now, before, next)
		}
	case out.Verdict == idempotency.Done:
		if req.RequestID == "" || req.RequestID != before.RequestID {
			h.t.Fatalf("%+v was given another request's claim %+v", req, next)
		}
	}
}

func (h *history) complete() {
	before, id := h.state, h.id()
	response := rapid.SampledFrom([]string{"1", "2"}).Draw(h.t, "response")
	next, out := before.Complete(idempotency.Complete{ID: id, Now: h.clock(), Response: response})
	h.state = next
	h.onlyBy(id, before)
	switch {
	case out.Verdict == idempotency.Lost && id != before.ClaimID:
		h.superseded++
	case out.Verdict == idempotency.Done && next.Response != response:
		h.t.Fatalf("told that %s is the response of %+v", response, next)
	case next != before:
		h.completions++
		if before.Response != "" {
			h.t.Fatalf("%+v was completed again: %+v", before, next)
		}
	}
}

// onlyBy demands that nobody but the latest claim changed anything.
func (h *history) onlyBy(id string, before idempotency.State) {
	if h.state != before && id != before.ClaimID {
		h.t.Fatalf("%s changed %+v to %+v", id, before, h.state)
	}
}

func (h *history) id() string {
	if len(h.ids) == 0 || rapid.Bool().Draw(h.t, "latest") {
		return h.state.ClaimID
	}
	return rapid.SampledFrom(h.ids).Draw(h.t, "claim id")
}

func (h *history) ttl() time.Duration {
	return time.Duration(rapid.IntRange(1, 60).Draw(h.t, "ttl")) * time.Millisecond
}
