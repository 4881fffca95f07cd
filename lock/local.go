package lock

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is the Store in one process: this package's transitions, each in one transaction.
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of a memory store. They need not outlive the process.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// Acquire implements Store.
func (l *Local) Acquire(ctx context.Context, tenant, name string, req Acquire) (Outcome, error) {
	return l.change(ctx, "acquire", tenant, name, func(s State) (State, Outcome) { return s.Acquire(req) })
}

// Renew implements Store.
func (l *Local) Renew(ctx context.Context, tenant, name string, req Renew) (Outcome, error) {
	return l.change(ctx, "renew", tenant, name, func(s State) (State, Outcome) { return s.Renew(req) })
}

// Release implements Store.
func (l *Local) Release(ctx context.Context, tenant, name string, req Release) (Outcome, error) {
	return l.change(ctx, "release", tenant, name, func(s State) (State, Outcome) { return s.Release(req) })
}

// change runs a decision in one transaction. What it leaves as it was is not written.
func (l *Local) change(ctx context.Context, op, tenant, name string, decide func(State) (State, Outcome)) (out Outcome, err error) {
	bucket, key := keytype.AdvisoryLock.Bucket(), keytype.AdvisoryLock.Key(tenant, name)
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		old, _, err := kv.Load[State](tx, bucket, key)
		if err != nil {
			return err
		}
		var next State
		next, out = decide(old)
		switch next {
		case old:
			return nil
		case State{}:
			tx.Delete(bucket, key)
			return nil
		}
		return kv.Save(tx, bucket, key, next, next.ExpiresAt)
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("%s lock %q: %w", op, name, err)
	}
	return out, nil
}
