package dynamoquota

import (
	"context"
	"hash/maphash"

	"github.com/coordsvc/coordsvc/quota"
)

// turns hands out one turn at a time for each quota, and for some together.
type turns struct {
	seed  maphash.Seed
	slots []chan struct{} // full while somebody has the turn
}

func newTurns() turns {
	t := turns{maphash.MakeSeed(), make([]chan struct{}, 256)}
	for i := range t.slots {
		t.slots[i] = make(chan struct{}, 1)
	}
	return t
}

// take waits for the turn, or for the context's end. done gives it back.
func (t turns) take(ctx context.Context, id quota.ID) (done func(), err error) {
	slot := t.slots[maphash.Comparable(t.seed, id)%uint64(len(t.slots))]
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
