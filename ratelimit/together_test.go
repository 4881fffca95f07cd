package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// One lost connection is one failure, however many calls were on it: three of them open
// the breaker.
func TestGuardCountsALostConnectionOnce(t *testing.T) {
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		for range 3 {
			lost := &ratelimit.FaultError{Reason: "connection_lost", Err: keytype.ErrOutcomeUnknown, Together: errors.New("a connection")}
			p.falls(lost, 0)
			for range 5 {
				if got := reason(take()); got != "connection_lost" {
					break
				}
			}
		}
		if n := p.asked.Load(); n != 11 {
			t.Errorf("the store was asked %d times, want 11: five times each, and once of the third", n)
		}
	})
	guarded(t, func(t *testing.T, p *patient, _ *ratelimit.Guard, take func() error) {
		lost := &ratelimit.FaultError{Reason: "connection_lost", Err: keytype.ErrOutcomeUnknown, Together: errors.New("a connection")}
		for _, err := range []error{lost, errDown, lost} {
			p.falls(err, 0)
			_ = take()
		}
		if got := reason(take()); got != ratelimit.ReasonBreakerOpen {
			t.Errorf("failures apart are counted one by one: %s", got)
		}
	})
}
