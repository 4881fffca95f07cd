package dynamolease

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// floorAge is how old a cached floor may be. A grant that begins with it has the rest
// of lease.FloorDelay to come through.
const floorAge = 30 * time.Second

// floorValue is the one attribute of the floor's item.
const floorValue = "floor"

// A floor is the table's one floor, cached.
type floor struct {
	client client
	table  string
	now    func() time.Time // of this process alone, for the cache's age

	mu    sync.Mutex // guards the rest
	value fencing.Token
	asked time.Time // before the read was sent that returned value
}

func newFloor(c client, table string) *floor { return &floor{client: c, table: table, now: time.Now} }

// get reads the floor at most once in floorAge, unless callers meet in that moment.
func (f *floor) get(ctx context.Context) (fencing.Token, error) {
	now := f.now()
	f.mu.Lock()
	value, fresh := f.value, now.Sub(f.asked) < floorAge
	f.mu.Unlock()
	if fresh {
		return value, nil
	}
	if err := f.refresh(ctx); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.value, nil
}

// refresh reads the floor, however young what is cached is.
func (f *floor) refresh(ctx context.Context) error {
	now := f.now()
	item, err := dynamo.Get(ctx, f.client, f.table, floorKey())
	if err != nil {
		return fmt.Errorf("read floor: %w", err)
	}
	_, err = f.learn(item, now)
	return err
}

// raise sets the floor where it is lower, and returns it.
func (f *floor) raise(ctx context.Context, to fencing.Token) (fencing.Token, error) {
	now := f.now()
	result, err := dynamo.Update(ctx, f.client, dynamo.Change{
		Table: f.table, Key: floorKey(), Format: format,
		Set:       "#floor = :floor",
		Condition: "attribute_not_exists(#floor) OR #floor < :floor",
		Values:    dynamo.Item{":floor": dynamo.N(to)},
	})
	if err != nil {
		return 0, err
	}
	return f.learn(result.Item, now)
}

func (f *floor) learn(item dynamo.Item, asked time.Time) (fencing.Token, error) {
	r := dynamo.Read(item, format)
	value := fencing.Token(r.Int(floorValue))
	if err := r.Err(); err != nil {
		return 0, fmt.Errorf("read floor: %w: %w", keytype.ErrUnavailable, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.value = max(f.value, value) // answers may overtake each other
	if asked.After(f.asked) {
		f.asked = asked
	}
	return f.value, nil
}

func floorKey() dynamo.Item { return dynamo.Item{"pk": dynamo.S(keytype.FenceFloor.Key("floor"))} }

// RefreshFloor reads the floor ahead of need: a grant that finds it fresh is one request.
func (s *Store) RefreshFloor(ctx context.Context) error { return s.floor.refresh(ctx) }

// RaiseFloor implements lease.Store.
func (s *Store) RaiseFloor(ctx context.Context, to fencing.Token) (fencing.Token, error) {
	value, err := s.floor.raise(ctx, to)
	if err != nil {
		return 0, fmt.Errorf("raise floor: %w", err)
	}
	return value, nil
}
