package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	clockEvery = 10 * time.Second       // between looks at DynamoDB's clock
	clockFirst = 137 * time.Millisecond // at first: answers from all parts of a second narrow it down
	clockWait  = 3 * time.Second        // for that, before the node says that it serves
)

// testHooks is "1" in a binary that was linked for tests, by
// -ldflags '-X main.testHooks=1'. Others refuse the settings that falsify something.
var testHooks string

// now is the node's clock.
func (c config) now() time.Time { return time.Now().Add(c.clockOffset) }

func setClockOffset(c *config, v string) error {
	if v == "" {
		return nil
	}
	if testHooks != "1" {
		return errors.New("is for binaries that were linked for tests: leave it unset")
	}
	ms, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return fmt.Errorf("is %q: write a number of milliseconds", v)
	}
	c.clockOffset = time.Duration(ms) * time.Millisecond
	return nil
}

// setMetrics switches the metrics off, to measure what they cost.
func setMetrics(c *config, v string) error {
	c.unmeasured = v == "off"
	switch {
	case v == "":
		return nil
	case testHooks != "1":
		return errors.New("is for binaries that were linked for tests: leave it unset")
	case !c.unmeasured:
		return fmt.Errorf("is %q: write off", v)
	}
	return nil
}

// lastLook is how the latest look at DynamoDB's clock ended.
type lastLook struct{ failed atomic.Bool }

// skewed says that leases are not to be taken over by this node's clock: two nodes may
// differ by the guard, so each may be off by half of it.
func (s stores) skewed(c config) bool { return s.clock != nil && !s.clock.Within(c.leaseGuard/2) }

// clockFault is for readiness.
func (s stores) clockFault(c config) error {
	switch {
	case s.look != nil && s.look.failed.Load():
		return errors.New("DynamoDB does not answer")
	case s.skewed(c):
		return fmt.Errorf("this node's clock is not known to be within %v of DynamoDB's, half of COORD_LEASE_GUARD_MS: set it by NTP", c.leaseGuard/2)
	}
	return nil
}

// awaitClock looks at DynamoDB's clock until that is known well enough, for a while.
func awaitClock(ctx context.Context, s stores, c config, log *slog.Logger) {
	for end := time.Now().Add(clockWait); s.skewed(c) && time.Now().Before(end) && ctx.Err() == nil; {
		s.lookAtClock(ctx, log)
		select {
		case <-ctx.Done():
		case <-time.After(clockFirst):
		}
	}
	if err := s.clockFault(c); err != nil {
		log.Warn("not ready", "error", err)
	}
}

// watchClock goes on looking. What it reads is the fence floor, which grants need to
// know and so find fresh.
func watchClock(ctx context.Context, s stores, c config, log *slog.Logger) {
	for s.clock != nil && ctx.Err() == nil {
		pause := clockEvery
		if s.skewed(c) {
			pause = time.Second + clockFirst
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			s.lookAtClock(ctx, log)
		}
	}
}

func (s stores) lookAtClock(ctx context.Context, log *slog.Logger) {
	err := s.floor.RefreshFloor(ctx)
	s.look.failed.Store(err != nil)
	if err != nil {
		log.Warn("read the fence floor", "error", err)
	}
}
