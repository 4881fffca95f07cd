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
	out, err := decideIn(ctx, run, t.Record, t.Bind.Key, t.Buckets, t.Decide)
	if err != nil {
		return Outcome{}, fmt.Errorf("take from buckets: %w", err)
	}
	return out, nil
}

// Give implements Store.
func (l *LocalStore) Give(ctx context.Context, g Give) (Outcome, error) {
	out, err := decideIn(ctx, l.kv.Update, g.Record, g.Bind.Key, g.Buckets, g.Decide)
	if err != nil {
		return Outcome{}, fmt.Errorf("give to buckets: %w", err)
	}
	return out, nil
}

// Forget implements Store.
func (l *LocalStore) Forget(ctx context.Context, buckets []Bucket) error {
	err := l.kv.Update(ctx, func(tx kv.Tx) error {
		for _, b := range buckets {
			tx.Delete(b.Type().Bucket(), b.Key)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget buckets: %w", err)
	}
	return nil
}

// decideIn runs a decision in one transaction.
func decideIn(ctx context.Context, run func(context.Context, func(kv.Tx) error) error, record, bind string, buckets []Bucket,
	decide func(Stored) (Next, Outcome, error),
) (out Outcome, err error) {
	err = run(ctx, func(tx kv.Tx) (err error) {
		stored := Stored{Packed: make([][]byte, len(buckets))}
		if record != "" {
			stored.Record = tx.Get(keytype.ChargeRequest.Bucket(), record)
		}
		if bind != "" {
			stored.Bound = tx.Get(keytype.ChargeRequest.Bucket(), bind)
		}
		for i, b := range buckets {
			stored.Packed[i] = tx.Get(b.Type().Bucket(), b.Key)
		}
		next, decided, err := decide(stored)
		if err != nil {
			return fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
		}
		for i, state := range next.States {
			put(tx, buckets[i].Type().Bucket(), buckets[i].Key, state)
		}
		put(tx, keytype.ChargeRequest.Bucket(), record, next.Record)
		put(tx, keytype.ChargeRequest.Bucket(), bind, next.Bound)
		out = decided
		return nil
	})
	out.Source = Memory
	return out, err
}

func put(tx kv.Tx, kind, key string, s State) {
	if s.Gone {
		tx.Delete(kind, key)
	} else if s.Packed != nil {
		tx.Put(kind, key, s.Packed, time.UnixMilli(ceilDiv(s.Full, 1000)))
	}
}
