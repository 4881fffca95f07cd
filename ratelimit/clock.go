package ratelimit

import (
	"sync"
	"time"
)

// Clock makes a clock that never steps back and is never behind the wall clock. It
// counts on evenly when somebody sets the wall clock back, so that no bucket notices.
// Where the wall clock gets ahead, because it was set or the machine slept, this one
// follows: windows keep beginning when the calendar says so, and what a sweep by the
// wall clock takes has expired by this clock too. After a step ahead that was a mistake
// it stays ahead.
func Clock() func() time.Time {
	start := time.Now()
	c := &clock{start: start.Round(0)} // without the monotonic reading
	return func() time.Time {
		now := time.Now()
		return c.read(now.Round(0), now.Sub(start))
	}
}

type clock struct {
	start time.Time
	mu    sync.Mutex
	ahead time.Duration // guarded by mu: by how much the wall clock has ever been, of what was counted since the start
}

// read is the instant, given the wall clock and how much time was counted since the start.
func (c *clock) read(wall time.Time, counted time.Duration) time.Time {
	steady := c.start.Add(counted)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = max(c.ahead, wall.Sub(steady))
	return steady.Add(c.ahead)
}
