package dynamo

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	const ms = time.Millisecond
	true0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := true0
	c := NewClock(func() time.Time { return node })
	// answer is one whose request is sent at a moment by DynamoDB's clock, by a node that is ahead.
	answer := func(at, ahead time.Duration) {
		moment := true0.Add(at)
		node = moment.Add(ahead + 10*ms)
		c.observe(moment.Add(ahead), node, moment.Add(5*ms).Truncate(time.Second))
	}
	want := func(why string, d time.Duration, want bool) {
		t.Helper()
		if got := c.Within(d); got != want {
			t.Errorf("%s: within %v: %t (%+v, before that %+v)", why, d, got, c.current, c.previous)
		}
	}
	want("nothing is known", time.Hour, false)
	answer(500*ms, 0)
	want("one answer is good to a second and the round trip", 510*ms, true)
	want("and no better", 490*ms, false)
	answer(1010*ms, 0)
	answer(1980*ms, 0)
	want("several at different parts of the second are better", 30*ms, true)
	answer(3000*ms, 300*ms)
	want("the clock was set, which this part of a second cannot tell", 30*ms, true)
	answer(3990*ms, 300*ms)
	want("this one can: what was known does not count", 1200*ms, false)
	answer(4000*ms, 300*ms)
	want("the new offset", 320*ms, true)
	want("is no smaller than it is", 290*ms, false)
	answer(5000*ms, 1400*ms)
	want("set by more than a second: any answer tells", 390*ms, false)
	answer(5990*ms, 300*ms)
	answer(6010*ms, 300*ms)
	answer(6990*ms, 300*ms)
	answer(37_000*ms, 300*ms)
	want("the window before still counts", 320*ms, true)
	answer(68_500*ms, 300*ms)
	answer(100_500*ms, 300*ms)
	want("the one before that does not", 320*ms, false)
	node = node.Add(clockAge)
	want("too long ago", time.Hour, false)
	answer(200_500*ms, -300*ms)
	answer(200_010*ms, -300*ms)
	answer(201_980*ms, -300*ms)
	want("behind", 320*ms, true)
	want("behind by as much", 280*ms, false)
}
