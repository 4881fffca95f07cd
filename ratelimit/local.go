package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// LocalStore is a Store in the embedded store.
type LocalStore struct{ kv kv.Store }

// NewLocal makes a store of buckets in the embedded store.
func NewLocal(store kv.Store) *LocalStore { return &LocalStore{kv: store} }

// Take implements Store.
func (l *LocalStore) Take(ctx context.Context, t Take) (Outcome, error) {
	run := l.kv.Update
	if t.Peek {
		run = l.kv.View
	}
	var out Outcome
	err := run(ctx, func(tx kv.Tx) (err error) {
		out, err = t.in(tx)
		return err
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("take from buckets: %w", err)
	}
	out.Source = Memory
	return out, nil
}

func (t Take) in(tx kv.Tx) (Outcome, error) {
	kind := keytype.RateBucket.Bucket()
	packed := make([][]byte, len(t.Buckets))
	for i, b := range t.Buckets {
		packed[i] = tx.Get(kind, b.Key)
	}
	next, out, err := t.Decide(packed)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	for i, state := range next {
		if state.Packed != nil {
			tx.Put(kind, t.Buckets[i].Key, state.Packed, time.UnixMilli(ceilDiv(state.Full, 1000)))
		}
	}
	return out, nil
}
