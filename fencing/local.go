package fencing

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is the Store in one process: this package's transitions, each in one transaction.
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of one memory or file store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// LoadState reads the resource's state inside a transaction. It exists for the
// lease store, which hands out the tokens.
func LoadState(tx kv.Tx, tenant, resource string) (State, error) {
	s, _, err := kv.Load[State](tx, keytype.Fence.Bucket(), keytype.Fence.Key(tenant, resource))
	return s, err
}

// SaveState stores the resource's state inside a transaction.
func SaveState(tx kv.Tx, tenant, resource string, s State) error {
	return kv.Save(tx, keytype.Fence.Bucket(), keytype.Fence.Key(tenant, resource), s, time.Time{})
}

// Admit implements Store.
func (l *Local) Admit(ctx context.Context, tenant, resource string, at Position) (Admission, error) {
	return l.move(ctx, "admit to", tenant, resource, func(s State) (State, Admission) { return s.Admit(at) })
}

// ResetMark implements Store.
func (l *Local) ResetMark(ctx context.Context, tenant, resource string, to Token) (Admission, error) {
	return l.move(ctx, "reset mark of", tenant, resource, func(s State) (State, Admission) { return s.Reset(to) })
}

func (l *Local) move(ctx context.Context, op, tenant, resource string, decide func(State) (State, Admission)) (a Admission, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		old, err := LoadState(tx, tenant, resource)
		if err != nil {
			return err
		}
		var next State
		if next, a = decide(old); next == old {
			return nil
		}
		return SaveState(tx, tenant, resource, next)
	})
	if err != nil {
		return Admission{}, fmt.Errorf("%s %q: %w", op, resource, err)
	}
	return a, nil
}

// Mark implements Store.
func (l *Local) Mark(ctx context.Context, tenant, resource string) (Position, error) {
	var s State
	err := l.kv.View(ctx, func(tx kv.Tx) (err error) {
		s, err = LoadState(tx, tenant, resource)
		return err
	})
	if err != nil {
		return Position{}, fmt.Errorf("read mark of %q: %w", resource, err)
	}
	return s.Mark, nil
}

// Write implements Store.
func (l *Local) Write(ctx context.Context, tenant, resource, key string, w Write) (Written, error) {
	return l.replace(ctx, "write", tenant, resource, key, func(fence State, r Record) (Record, Written) { return r.Write(fence, w) })
}

// ResetRecord implements Store.
func (l *Local) ResetRecord(ctx context.Context, tenant, resource, key string, r Reset) (Written, error) {
	return l.replace(ctx, "reset", tenant, resource, key, func(_ State, old Record) (Record, Written) { return old.Reset(r.Token) })
}

func (l *Local) replace(ctx context.Context, op, tenant, resource, key string, decide func(State, Record) (Record, Written)) (out Written, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		fence, err := LoadState(tx, tenant, resource)
		if err != nil {
			return err
		}
		old, err := loadRecord(tx, tenant, resource, key)
		if err != nil {
			return err
		}
		var next Record
		if next, out = decide(fence, old); out.Verdict != Accepted {
			return nil
		}
		return kv.Save(tx, keytype.ProtectedRecord.Bucket(), keytype.ProtectedRecord.Key(tenant, resource, key), next, time.Time{})
	})
	if err != nil {
		return Written{}, fmt.Errorf("%s record %q of %q: %w", op, key, resource, err)
	}
	return out, nil
}

// Read implements Store.
func (l *Local) Read(ctx context.Context, tenant, resource, key string) (r Record, err error) {
	err = l.kv.View(ctx, func(tx kv.Tx) (err error) {
		r, err = loadRecord(tx, tenant, resource, key)
		return err
	})
	if err != nil {
		return Record{}, fmt.Errorf("read record %q of %q: %w", key, resource, err)
	}
	return r, nil
}

// loadRecord returns the zero Record where there is none.
func loadRecord(tx kv.Tx, tenant, resource, key string) (Record, error) {
	r, _, err := kv.Load[Record](tx, keytype.ProtectedRecord.Bucket(), keytype.ProtectedRecord.Key(tenant, resource, key))
	return r, err
}
