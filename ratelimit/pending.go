package ratelimit

import "time"

// A charge is pending where it is known only later whether it stays: a request that
// meets limits in several slots is charged in one after the other, and the last may
// refuse. Time pays off only what stays. So a charge that goes back leaves a bucket as
// full as had it never been made, however many there are at once and however long they
// take, and one that stays counts from when that is known. Neither lets more pass than
// the limit: what is pending takes room like any charge.
//
// Nobody may be left to say what becomes of a charge. Then it stays: what is pending
// is kept by the age of its charge, and that of the last age but one becomes debt.

// An End is what becomes of a pending charge.
type End string

// The ends.
const (
	Settled End = "settled" // it stays, from now on
	Undone  End = "undone"  // it goes back
)

// PendingMemory is for how long a charge is pending at least, where nobody ends it; it
// is for twice that at most. It is far longer than the calls to the other slots take.
const PendingMemory = 5 * time.Second

const pendingAge = int64(PendingMemory / time.Microsecond)

// ageOf numbers the ages by the clock, so that an instant tells its own.
func ageOf(instant int64) int64 { return instant / pendingAge }

// StillPending reports whether a charge of that instant that nobody has ended is surely
// still pending.
func StillPending(charged, now int64) bool { return ageOf(now)-ageOf(charged) <= 1 }
