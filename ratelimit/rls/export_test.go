package rls

import "time"

// WithPings shortens the times of pings for a test.
func (o Options) WithPings(after, timeout, least time.Duration) Options {
	o.pings = pings{after, timeout, least}
	return o
}

// UsualPings are those of a server that nobody told others.
func UsualPings() (after, timeout, least time.Duration) {
	return usualPings.after, usualPings.timeout, usualPings.least
}
