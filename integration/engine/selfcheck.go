package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// A claimer is all that the self-check needs of a store: one conditional write
// that at most one caller per key may win.
type claimer interface {
	// claim writes key for the caller unless it is written already, and tells
	// whether it did.
	claim(ctx context.Context, key string) (won bool, err error)
}

// The self-check's size: 100 callers race for one key, in five rounds, since a
// store that checks and writes in two steps may get away with one.
const (
	checkCallers = 100
	checkRounds  = 5
)

// selfCheck returns an error unless exactly one of the callers wins each round.
func selfCheck(ctx context.Context, store claimer) error {
	for range checkRounds {
		winners, err := race(ctx, store, FreshPrefix()+"selfcheck")
		if err != nil {
			return fmt.Errorf("self-check: %w", err)
		}
		if winners != 1 {
			return fmt.Errorf("self-check: %d of %d concurrent conditional writes to one key won: the store is not atomic", winners, checkCallers)
		}
	}
	return nil
}

// race lets all callers claim one key at once and counts who won.
func race(ctx context.Context, store claimer, key string) (int64, error) {
	var (
		winners atomic.Int64
		ready   sync.WaitGroup
		done    sync.WaitGroup
		start   = make(chan struct{})
		errs    = make(chan error, checkCallers)
	)
	ready.Add(checkCallers)
	for range checkCallers {
		done.Go(func() {
			ready.Done()
			<-start
			won, err := store.claim(ctx, key)
			if err != nil {
				errs <- err
			} else if won {
				winners.Add(1)
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return winners.Load(), nil
	}
}
