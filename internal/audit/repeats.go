package audit

import (
	"slices"
	"sync"
	"time"
)

const (
	quiet      = time.Minute // after an event that like ones are left out
	maxWatched = 10_000      // kinds of event that one node watches at once
)

// repeats bounds the events that somebody can cause at will, without changing
// anything: else whoever holds a key without scopes, or an old token, could make
// every request a durable write and fill the tenant's log with it.
//
// Of a kind, each node stores the first event, then after a minute at the
// earliest the next, with the number left out in between. That number is lost
// where no next one comes, and at a restart.
type repeats struct {
	mu   sync.Mutex
	seen map[kind]*run // guarded by mu
}

// A kind is what counts as the same event.
type kind struct {
	tenant, actor string
	action        Action
	about         string
}

// A run is a stored event and the ones after it that were left out.
type run struct {
	since   time.Time
	leftOut int
}

// admit reports whether the event is to be stored, and how many like it were
// left out since the last that was.
func (r *repeats) admit(e Event, now time.Time) (leftOut int, ok bool) {
	k, bounded := kindOf(e)
	if !bounded {
		return 0, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.seen[k]
	if last == nil {
		r.watch(k, now)
		return 0, true
	}
	// A clock that went back must not keep a kind quiet for longer.
	if age := now.Sub(last.since); age >= 0 && age < quiet {
		last.leftOut++
		return 0, false
	}
	leftOut = last.leftOut
	*last = run{since: now}
	return leftOut, true
}

// watch begins a run, and makes room for it: Go ranges over a map from a random
// place, which no caller can steer. The caller holds mu.
func (r *repeats) watch(k kind, now time.Time) {
	if r.seen == nil {
		r.seen = map[kind]*run{}
	}
	if len(r.seen) >= maxWatched {
		for old := range r.seen {
			delete(r.seen, old)
			break
		}
	}
	r.seen[k] = &run{since: now}
}

// kindOf reports false for what is stored each time: what changed something, or may
// have. A denied caller chooses the subject, and so a new one each time, but not the
// reason: the scope it lacks. Nobody can choose which sessions have old tokens, nor
// which users are disabled; whom else a refusal names the caller can. A session that is
// revoked again, by whoever has its token, is the same event.
func kindOf(e Event) (kind, bool) {
	k := kind{tenant: e.Tenant, actor: e.Actor, action: e.Action}
	switch {
	case e.Action == Denied:
		k.about = e.Reason
	case e.Action == OldTokenUsed, e.Action == Revoke && e.Outcome == OK:
		k.about = e.Subject
	case e.Outcome == disabled:
		k.about = string(e.Outcome) + " " + e.User
	case slices.Contains(refusals, e.Outcome):
		k.about = string(e.Outcome)
	default:
		return kind{}, false
	}
	return k, true
}

// disabled is the refusal of a user who is. refusals are the others that say for certain
// that nothing has changed; what else there is may have, or comes of a store that failed.
const disabled Outcome = "user_disabled"

var refusals = []Outcome{"session_not_active", "session_limit", "epoch_mismatch", "not_found"}
