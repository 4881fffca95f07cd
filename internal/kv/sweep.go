package kv

import (
	"context"
	"time"
)

// sweepLimit is how many items one transaction of RunSweeper removes: few
// enough that the transactions queued behind it hardly notice.
const sweepLimit = 500

// A Sweeper removes expired items. Both stores are one.
type Sweeper interface {
	// Sweep removes, in a transaction of its own, at most limit of the items
	// whose expires is now or before. An item that was put again counts by its
	// latest expires.
	Sweep(ctx context.Context, now time.Time, limit int) (removed int, err error)
}

// RunSweeper removes what has expired, at once and then every interval, until
// ctx ends. After each round it reports how many items went, and the error that
// cut the round short, if any; the next round tries again.
func RunSweeper(ctx context.Context, s Sweeper, interval time.Duration, now func() time.Time, report func(removed int, err error)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if removed, err := sweepAll(ctx, s, now()); ctx.Err() == nil {
			report(removed, err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func sweepAll(ctx context.Context, s Sweeper, now time.Time) (removed int, err error) {
	for {
		n, err := s.Sweep(ctx, now, sweepLimit)
		removed += n
		if err != nil || n < sweepLimit {
			return removed, err
		}
	}
}

// sweep is Sweep for a store whose Tx is a transaction.
func sweep(ctx context.Context, s Store, now time.Time, limit int) (removed int, err error) {
	err = s.Update(ctx, func(tx Tx) error {
		removed = tx.(*transaction).sweep(now, limit)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// walk is Walk for a store whose Tx is a transaction.
func walk(ctx context.Context, s Store, fn func(bucket, key string, value []byte) bool) error {
	return s.View(ctx, func(tx Tx) error {
		tx.(*transaction).walk(fn)
		return nil
	})
}
