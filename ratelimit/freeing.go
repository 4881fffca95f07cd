package ratelimit

import (
	"errors"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// How many slots may be on their way back at once, and how often each is tried, with
// a pause of probeInterval. What is beyond comes back when the slot expires.
const (
	maxFreeing = 1024
	freeTries  = 600
)

// freer is what to do with the outcome of the Take if nobody learns it, nil for one
// that gets no slots.
func (g *Guard) freer(t Take, begun time.Time) func(Outcome, error) {
	if t.Peek || t.SlotID == "" || t.leases() {
		return nil
	}
	held := t // a copy on the heap only here
	return func(out Outcome, err error) { g.free(held, out, err, begun) }
}

// free gives the slots of a Take back that got them, or may have, and whose caller did
// not learn their name. Units that were charged with them do not come back.
func (g *Guard) free(t Take, out Outcome, err error, begun time.Time) {
	if err == nil && out.SlotID != t.SlotID || err != nil && !errors.Is(err, keytype.ErrOutcomeUnknown) {
		return // it got none, or that of an earlier request, which has it
	}
	select {
	case g.freeing <- struct{}{}:
	default:
		return
	}
	defer func() { <-g.freeing }()
	slots := slices.DeleteFunc(slices.Clone(t.Buckets), func(b Bucket) bool { return b.Rule.Algorithm != Concurrency })
	for range freeTries {
		if err != nil && !g.pause() { // also after the Take itself: it may still be on its way
			return
		}
		if g.breaker.isOpen() {
			err = errBreakerOpen
			continue
		}
		now := t.Now + time.Since(begun).Microseconds()
		if _, err = g.store.Give(g.stop, Give{Buckets: slots, SlotID: t.SlotID, Now: now}); err == nil || !isFault(err) {
			return
		}
	}
}

// pause waits for a moment, and reports false where the guard ends.
func (g *Guard) pause() bool {
	select {
	case <-g.stop.Done():
		return false
	case <-time.After(probeInterval):
		return true
	}
}
