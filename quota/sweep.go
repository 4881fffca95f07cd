package quota

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A sweep handles at most sweepRounds times sweepBatch reservations.
const (
	sweepBatch  = 100
	sweepRounds = 10
)

// Sweep returns the units of reservations that have expired, as many as fit into
// one sweep. Each is one step: a commit at the same time comes before it or after
// it. It reports how many it returned, and goes on past those that fail or cannot be read. By a
// skewed clock it returns none: another node, or a later sweep, does.
func (m *Manager) Sweep(ctx context.Context) (returned int, err error) {
	now := m.clock()
	if m.skewed() {
		return 0, nil
	}
	for range sweepRounds {
		due, unread := m.store.Due(ctx, now.Add(-m.guard), sweepBatch)
		if unread != nil {
			unread = fmt.Errorf("find expired reservations: %w", unread)
		}
		n, failed := m.lapse(ctx, due, now)
		returned += n
		err = errors.Join(unread, failed)                     // the next round meets again what it cannot read
		if failed != nil || n == 0 || len(due) < sweepBatch { // a round of nothing new: the index lags
			break
		}
	}
	return returned, err
}

func (m *Manager) lapse(ctx context.Context, due []Due, now time.Time) (returned int, err error) {
	for _, d := range due {
		out, e := m.store.Settle(ctx, d.ID, Settle{Reservation: d.Reservation, Action: Lapse, Now: now})
		if err = errors.Join(err, e); ctx.Err() != nil {
			return returned, err
		}
		if e == nil && out.Verdict == Done {
			returned++
		}
	}
	return returned, err
}

// RunSweeper sweeps at once and then every interval, until ctx ends. After each
// sweep it reports how many reservations were returned, and what went wrong, if
// anything; the next sweep tries again.
func RunSweeper(ctx context.Context, m *Manager, interval time.Duration, report func(returned int, err error)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if returned, err := m.Sweep(ctx); ctx.Err() == nil {
			report(returned, err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
