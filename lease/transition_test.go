package lease_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// TestInvariants checks what is promised about grants, on random histories of
// the bare transitions, by callers whose clocks differ by at most the guard.
func TestInvariants(t *testing.T) {
	grants, repeats := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		guard := time.Duration(rapid.SampledFrom([]int{0, 10}).Draw(rt, "guard")) * time.Millisecond
		h := &history{t: rt, guard: guard, now: time.UnixMilli(1_700_000_000_000).UTC(), requests: map[string]fencing.Token{}}
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			h.step()
		}
		grants, repeats = grants+len(h.ids), repeats+h.repeats
	})
	t.Logf("%d grants, %d repeated requests", grants, repeats)
	if grants == 0 || repeats == 0 {
		t.Error("the histories show nothing")
	}
}

// A history is what happened to one resource.
type history struct {
	t     *rapid.T
	guard time.Duration
	now   time.Time // of no clock in particular

	lease    lease.State
	fence    fencing.State
	ids      []string                 // of all grants
	requests map[string]fencing.Token // the latest token of each owner and request id
	repeats  int
}

// clock reads one of the callers' clocks.
func (h *history) clock() time.Time {
	half := int(h.guard.Milliseconds()) / 2
	return h.now.Add(time.Duration(rapid.IntRange(-half, half).Draw(h.t, "skew")) * time.Millisecond)
}

func (h *history) step() {
	h.now = h.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(h.t, "later")) * time.Millisecond)
	before := h.lease
	switch rapid.SampledFrom([]string{"acquire", "acquire", "renew", "release", "admit"}).Draw(h.t, "operation") {
	case "acquire":
		h.acquire()
	case "renew":
		at := h.clock()
		next, out := h.lease.Renew(lease.Renew{Holder: h.holder(), Now: at, TTL: h.ttl()})
		h.lease = next
		if out.Verdict == lease.Done && (before.Released || !before.ExpiresAt.After(at)) {
			h.t.Fatalf("renewed at %v what had ended: %+v", at, before)
		}
		if next.ExpiresAt.Before(before.ExpiresAt) || next.ExpiresAt.After(before.MaxExpiresAt) {
			h.t.Fatalf("renewal moved %+v to %+v", before, next)
		}
	case "release":
		h.lease, _ = h.lease.Release(h.holder())
	case "admit":
		token := fencing.Token(rapid.IntRange(1, 20).Draw(h.t, "token"))
		h.fence, _ = h.fence.Admit(fencing.Position{Token: token})
	}
	if h.lease.Token != before.Token && (h.lease.ID == before.ID || h.lease.Released) {
		h.t.Fatalf("from %+v to %+v", before, h.lease)
	}
	if h.fence.Granted > 0 && h.fence.Mark.Token > h.fence.Granted {
		h.t.Fatalf("the mark passed what was granted: %+v", h.fence)
	}
}

func (h *history) acquire() {
	before, mark, at := h.lease, h.fence.Mark.Token, h.clock()
	req := lease.Acquire{
		Owner:     rapid.SampledFrom([]string{"a", "b"}).Draw(h.t, "owner"),
		RequestID: rapid.SampledFrom([]string{"", "q1", "q2"}).Draw(h.t, "request id"),
		ID:        fmt.Sprint("lse_", len(h.ids)),
		Now:       at, TTL: h.ttl(), MaxHold: 70 * time.Millisecond, Guard: h.guard,
	}
	next, out := h.lease.Acquire(h.fence, req)
	h.lease = next
	request := req.Owner + "/" + req.RequestID
	if next == before {
		if out.Verdict == lease.Done {
			h.repeats++
			if h.requests[request] != next.Token || req.RequestID == "" {
				h.t.Fatalf("%+v was given another request's grant %+v", req, next)
			}
		}
		return
	}
	h.ids = append(h.ids, req.ID)
	h.fence.Granted = next.Token
	if next.Token <= before.Token || next.Token <= mark {
		h.t.Fatalf("token %d after token %d and mark %d", next.Token, before.Token, mark)
	}
	// Nothing was live, not even by the slowest clock.
	if before.Token > 0 && !before.Released && before.ExpiresAt.After(h.now.Add(-h.guard/2)) {
		h.t.Fatalf("two live grants at %v: %+v and %+v", at, before, next)
	}
	if req.RequestID != "" && h.requests[request] == before.Token && before.Token > 0 {
		h.t.Fatalf("the latest request id has two tokens, %d and %d", before.Token, next.Token)
	}
	h.requests[request] = next.Token
}

func (h *history) holder() lease.Holder {
	if len(h.ids) == 0 || rapid.Bool().Draw(h.t, "latest") {
		return lease.Holder{ID: h.lease.ID, Token: h.lease.Token}
	}
	return lease.Holder{
		ID:    rapid.SampledFrom(h.ids).Draw(h.t, "lease id"),
		Token: fencing.Token(rapid.IntRange(0, 10).Draw(h.t, "token")),
	}
}

func (h *history) ttl() time.Duration {
	return time.Duration(rapid.IntRange(1, 60).Draw(h.t, "ttl")) * time.Millisecond
}
