package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is the Store in one process: this package's transitions, each in one transaction.
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of one memory or file store, which it
// shares with the fencing store over the same items.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// Acquire implements Store.
func (l *Local) Acquire(ctx context.Context, tenant, resource string, req Acquire) (Outcome, error) {
	return l.change(ctx, "acquire", tenant, resource, func(fence fencing.State, s State) (State, Outcome) { return s.Acquire(fence, req) })
}

// Renew implements Store.
func (l *Local) Renew(ctx context.Context, tenant, resource string, req Renew) (Outcome, error) {
	return l.change(ctx, "renew", tenant, resource, func(_ fencing.State, s State) (State, Outcome) { return s.Renew(req) })
}

// Release implements Store.
func (l *Local) Release(ctx context.Context, tenant, resource string, holder Holder) (Outcome, error) {
	return l.change(ctx, "release", tenant, resource, func(_ fencing.State, s State) (State, Outcome) { return s.Release(holder) })
}

// Force implements Store.
func (l *Local) Force(ctx context.Context, tenant, resource string, req Force) (Outcome, error) {
	return l.change(ctx, "force", tenant, resource, func(fence fencing.State, s State) (State, Outcome) { return s.Force(fence, req) })
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, tenant, resource string) (s State, err error) {
	err = l.kv.View(ctx, func(tx kv.Tx) (err error) {
		s, err = load(tx, tenant, resource)
		return err
	})
	if err != nil {
		return State{}, fmt.Errorf("get %q: %w", resource, err)
	}
	return s, nil
}

// listScan is how many of a tenant's leases one page looks at.
const listScan = 1000

// List implements Store: it looks through all of the tenant's leases.
func (l *Local) List(ctx context.Context, tenant string, op ListOp) (owned []Owned, next string, err error) {
	after := ""
	if op.After != "" {
		after = keytype.Lease.Key(tenant, op.After)
	}
	err = l.kv.View(ctx, func(tx kv.Tx) (err error) {
		looked, last := 0, ""
		tx.Scan(keytype.Lease.Bucket(), keytype.Lease.Prefix(tenant), after, func(key string, value []byte) bool {
			if looked++; looked > listScan || len(owned) == op.Limit {
				next = last
				return false
			}
			parts, _ := keytype.Lease.Split(key)
			last = parts[len(parts)-1]
			var s State
			if s, err = kv.Decode[State](value); err != nil {
				return false
			}
			if s.Owner == op.Owner && !s.Released {
				owned = append(owned, Owned{Resource: last, State: s})
			}
			return true
		})
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list leases: %w", err)
	}
	return owned, next, nil
}

// RaiseFloor implements Store.
func (l *Local) RaiseFloor(ctx context.Context, to fencing.Token) (floor fencing.Token, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		floor, err = loadFloor(tx)
		if err != nil || floor >= to {
			return err
		}
		floor = to
		return kv.Save(tx, keytype.FenceFloor.Bucket(), keytype.FenceFloor.Key(floorName), floor, time.Time{})
	})
	if err != nil {
		return 0, fmt.Errorf("raise floor: %w", err)
	}
	return floor, nil
}

// floorName is the one floor there is.
const floorName = "floor"

func loadFloor(tx kv.Tx) (fencing.Token, error) {
	floor, _, err := kv.Load[fencing.Token](tx, keytype.FenceFloor.Bucket(), keytype.FenceFloor.Key(floorName))
	return floor, err
}

// loadFence reads what the fence of the resource knows, and the floor.
func loadFence(tx kv.Tx, tenant, resource string) (fencing.State, error) {
	fence, err := fencing.LoadState(tx, tenant, resource)
	if err != nil {
		return fence, err
	}
	fence.Floor, err = loadFloor(tx)
	return fence, err
}

// change runs a decision in one transaction, in which the fence remembers the token
// and the holder. What it leaves as it was is not written.
func (l *Local) change(ctx context.Context, op, tenant, resource string, decide func(fencing.State, State) (State, Outcome)) (out Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		fence, err := loadFence(tx, tenant, resource)
		if err != nil {
			return err
		}
		old, err := load(tx, tenant, resource)
		if err != nil {
			return err
		}
		var next State
		if next, out = decide(fence, old); next == old {
			return nil
		}
		return save(tx, tenant, resource, fence, next)
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("%s %q: %w", op, resource, err)
	}
	return out, nil
}

// Together implements Store.
func (l *Local) Together(ctx context.Context, tenant string, resources []string, decide Decision) (outs []Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		outs = make([]Outcome, len(resources))
		var saves []func() error
		for i, resource := range resources {
			fence, err := loadFence(tx, tenant, resource)
			if err != nil {
				return err
			}
			old, err := load(tx, tenant, resource)
			if err != nil {
				return err
			}
			var next State
			if next, outs[i] = decide(i, fence, old); next != old {
				saves = append(saves, func() error { return save(tx, tenant, resource, fence, next) })
			}
		}
		if refused(outs).Verdict != Done {
			return nil
		}
		for _, save := range saves {
			if err := save(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("set of %d: %w", len(resources), err)
	}
	return outs, nil
}

// save stores the state, and what the fence knows of it.
func save(tx kv.Tx, tenant, resource string, fence fencing.State, s State) error {
	if told := s.tell(fence); told != fence {
		if err := fencing.SaveState(tx, tenant, resource, told); err != nil {
			return err
		}
	}
	return kv.Save(tx, keytype.Lease.Bucket(), keytype.Lease.Key(tenant, resource), s, time.Time{})
}

// load returns the zero State where there is none.
func load(tx kv.Tx, tenant, resource string) (State, error) {
	s, _, err := kv.Load[State](tx, keytype.Lease.Bucket(), keytype.Lease.Key(tenant, resource))
	return s, err
}
