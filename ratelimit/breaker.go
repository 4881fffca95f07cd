package ratelimit

import (
	"sync"
	"time"
)

// The breaker opens after so many calls in a row that the store failed, or when of at
// least breakerSample calls within a second half or more failed or had no answer in
// time. Some late answers in a row are no failure: every busy machine has them.
const (
	breakerInARow = 3
	breakerSample = 20
	breakerSlices = 10 // of the second, each counted apart
)

// A breaker counts calls. Its clock is that of the monotonic time.
type breaker struct {
	mu     sync.Mutex
	open   bool
	inARow int
	last   error // what the last failure shared with others, nil where with none
	slices [breakerSlices]struct {
		at               int64 // which tenth of a second since the start
		failed, finished int
	}
	start time.Time
}

func newBreaker() *breaker { return &breaker{start: time.Now()} }

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// answered counts a call for which somebody waited, failed where it had no answer in
// time, and reports whether this one opened the breaker.
func (b *breaker) answered(failed bool) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return false
	}
	at := int64(time.Since(b.start) / (time.Second / breakerSlices))
	s := &b.slices[at%breakerSlices]
	if s.at != at {
		s.at, s.failed, s.finished = at, 0, 0
	}
	s.finished++
	if failed {
		s.failed++
	}
	b.open = failed && b.halfFailed(at) // a success that is the twentieth has no reason to tell
	return b.open
}

// ended counts how a call went in the end, waited for or not, and reports whether this
// one opened the breaker. Failures with the same together, not nil, count once.
func (b *breaker) ended(failed bool, together error) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return false
	}
	switch {
	case !failed:
		b.inARow, b.last = 0, nil
	case together == nil || together != b.last: //nolint:errorlint // the very one
		b.inARow, b.last = b.inARow+1, together
	}
	b.open = b.inARow >= breakerInARow
	return b.open
}

// halfFailed looks at the second that ends with the tenth at.
func (b *breaker) halfFailed(at int64) bool {
	failed, finished := 0, 0
	for _, s := range b.slices {
		if s.at > at-breakerSlices {
			failed, finished = failed+s.failed, finished+s.finished
		}
	}
	return finished >= breakerSample && 2*failed >= finished
}

// close forgets what was counted.
func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open, b.inARow, b.last = false, 0, nil
	clear(b.slices[:])
}
