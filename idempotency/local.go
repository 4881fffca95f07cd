package idempotency

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is the Store in one process: this package's transitions, each in one transaction.
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of one memory or file store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// Claim implements Store.
func (l *Local) Claim(ctx context.Context, id ID, req Claim) (Outcome, error) {
	return l.change(ctx, "claim", id, func(s State) (State, Outcome) { return s.Claim(req) })
}

// Extend implements Store.
func (l *Local) Extend(ctx context.Context, id ID, req Extend) (Outcome, error) {
	return l.change(ctx, "extend", id, func(s State) (State, Outcome) { return s.Extend(req) })
}

// Complete implements Store.
func (l *Local) Complete(ctx context.Context, id ID, req Complete) (Outcome, error) {
	return l.change(ctx, "complete", id, func(s State) (State, Outcome) { return s.Complete(req) })
}

// Abandon implements Store.
func (l *Local) Abandon(ctx context.Context, id ID, req Abandon) (Outcome, error) {
	return l.change(ctx, "abandon", id, func(s State) (State, Outcome) { return s.Abandon(req) })
}

// change runs a decision in one transaction. What it leaves as it was is not written.
func (l *Local) change(ctx context.Context, op string, id ID, decide func(State) (State, Outcome)) (out Outcome, err error) {
	bucket, key := keytype.Idempotency.Bucket(), keytype.Idempotency.Key(id.Tenant, id.Space, id.Key)
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		old, _, err := kv.Load[State](tx, bucket, key)
		if err != nil {
			return err
		}
		var next State
		if next, out = decide(old); next == old {
			return nil
		}
		return kv.Save(tx, bucket, key, next, next.ExpiresAt.Add(Retention))
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("%s %q: %w", op, id.Key, err)
	}
	return out, nil
}
