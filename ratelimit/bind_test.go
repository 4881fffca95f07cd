package ratelimit_test

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// What a posture answers ties no request id, on this node or any other: after the outage
// the id is that of its first request that the store saw.
func TestRequestIDsUnderAPosture(t *testing.T) {
	p := policy(limit("l", 1, time.Hour, 10))
	p.Posture = ratelimit.Local
	store := newPatient()
	store.falls(keytype.ErrUnavailable, 0)
	limits, err := ratelimit.New(store, []ratelimit.Policy{p}, ratelimit.Options{Fallback: ratelimit.NewLocal(openMemory(t))})
	if err != nil {
		t.Fatal(err)
	}
	req := ask(0)
	req.RequestID = "q"
	for _, source := range []ratelimit.Source{ratelimit.SourceLocal, ratelimit.SourceLocal, ratelimit.Memory} {
		if req.Cost++; source == ratelimit.Memory {
			store.falls(nil, 0)
		}
		if d, err := limits.Check(t.Context(), "t", req); err != nil || !d.Allowed || d.Source != source {
			t.Errorf("a cost of %d under the same id: got %+v, %v", req.Cost, d, err)
		}
	}
}
