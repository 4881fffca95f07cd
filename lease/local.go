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

// Acquire implements Store. The fence remembers the token in the same transaction.
func (l *Local) Acquire(ctx context.Context, tenant, resource string, req Acquire) (Outcome, error) {
	return l.change(ctx, "acquire", tenant, resource, func(tx kv.Tx, s State) (State, Outcome, error) {
		fence, err := fencing.LoadState(tx, tenant, resource)
		if err != nil {
			return s, Outcome{}, err
		}
		next, out := s.Acquire(fence, req)
		if next == s {
			return s, out, nil
		}
		fence.Granted = next.Token
		return next, out, fencing.SaveState(tx, tenant, resource, fence)
	})
}

// Renew implements Store.
func (l *Local) Renew(ctx context.Context, tenant, resource string, req Renew) (Outcome, error) {
	return l.change(ctx, "renew", tenant, resource, func(_ kv.Tx, s State) (State, Outcome, error) {
		next, out := s.Renew(req)
		return next, out, nil
	})
}

// Release implements Store.
func (l *Local) Release(ctx context.Context, tenant, resource string, holder Holder) (Outcome, error) {
	return l.change(ctx, "release", tenant, resource, func(_ kv.Tx, s State) (State, Outcome, error) {
		next, out := s.Release(holder)
		return next, out, nil
	})
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

// change runs a decision in one transaction. What it leaves as it was is not written.
func (l *Local) change(ctx context.Context, op, tenant, resource string, decide func(kv.Tx, State) (State, Outcome, error)) (out Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		old, err := load(tx, tenant, resource)
		if err != nil {
			return err
		}
		var next State
		next, out, err = decide(tx, old)
		if err != nil || next == old {
			return err
		}
		return kv.Save(tx, keytype.Lease.Bucket(), keytype.Lease.Key(tenant, resource), next, time.Time{})
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("%s %q: %w", op, resource, err)
	}
	return out, nil
}

// load returns the zero State where there is none.
func load(tx kv.Tx, tenant, resource string) (State, error) {
	s, _, err := kv.Load[State](tx, keytype.Lease.Bucket(), keytype.Lease.Key(tenant, resource))
	return s, err
}
