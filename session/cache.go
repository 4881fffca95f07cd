package session

import (
	"context"
	"time"
)

// A Cache keeps copies of users' and sessions' records near, and may lose or forget
// them, or go back to older ones, at any time: it is never asked whether a session
// exists. It has one clock of its own, in Unix milliseconds; an instant of that
// clock is only ever compared with others of it. The instants of a session's record are
// of the clocks of those who ask, and compared with theirs alone: however wrong the
// cache's clock is, it prolongs no session.
//
// A copy of a user's record carries the instant before which it was read (At of its
// [Fill]) and is fresh for less than [Terms].Fresh after that. A copy of a session's
// carries the Version of the user's record that was read before it, and is of use
// only beside a user's record of that Version. Each method is atomic; an error means
// that the cache did not answer, and whatever the call asked for may happen or not.
type Cache interface {
	// Verify judges by the copies as [Verify] does with CacheTracking, where the user's
	// is of use by the cache's clock, and records the use there where it is due.
	Verify(ctx context.Context, op VerifyOp, terms Terms) (Cached, error)
	// Fill keeps what was read. It refuses (kept false, and the instant) where the read
	// began more than Fresh/2 ago. A user's record older than the one that is there, or
	// than a bump, changes nothing, nor does its session; one of the same Version keeps
	// the later At. A session's copy keeps the later Seen.
	Fill(ctx context.Context, f Fill, terms Terms) (kept bool, at int64, err error)
	// Bump sees to it that for Fresh from now on no copy of the user's record older
	// than the version is believed or kept. It makes nothing fresh.
	Bump(ctx context.Context, tag string, version int64, terms Terms) error
}

// Terms say for how long a copy of a user's record counts.
type Terms struct {
	Fresh time.Duration // it counts
	Stale time.Duration // and so much longer where the durable store does not answer
}

// Found says what a cache makes of a token.
type Found uint8

// What was found.
const (
	FoundNothing Found = iota // ask the durable store
	FoundFresh                // the verdict counts
	FoundStale                // the verdict counts only where the durable store does not answer
)

// Cached is what a cache answers.
type Cached struct {
	Found        Found
	At           int64  // the cache's instant: after a miss a read begins then
	Version      int64  // no user's record older than this may be believed; 0 = none is known
	Reason       Reason // of the verdict
	User         User
	Record       Record
	DurableSeen  int64 // the last use that the durable store was told of, Unix milliseconds
	TouchDurably bool  // it is to be told of this one
}

// A Fill is what was read from the durable store.
type Fill struct {
	Key
	User   User
	Record Record // the zero Record where there is none
	At     int64  // the cache's instant before the read began
	Now    int64  // the caller's then, Unix milliseconds
}

// CacheTracking is that of a cache: it records uses at least every Q = min(30 s,
// idle/10) and allows nothing beyond the idle time, since the durable store is asked
// before it says that a session went idle.
func CacheTracking(idle int64) Tracking {
	return Tracking{Every: min((30 * time.Second).Milliseconds(), idle/10)}
}

// mayTurn reports whether a later write can make the token good, so that only the
// durable store may say this.
func (r Reason) mayTurn() bool {
	return r == Unknown || r == Rotated || r == IdleExpired
}
