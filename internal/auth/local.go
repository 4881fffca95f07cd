package auth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is a Store in the embedded store.
type Local struct{ kv kv.Store }

// NewLocal makes a store of keys in the embedded store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// localKey is a record as it is stored. Instants are Unix milliseconds, 0 = none.
type localKey struct {
	ID        string  `json:"id"`
	Tenant    string  `json:"tenant"`
	Name      string  `json:"name"`
	Scopes    []Scope `json:"scopes"`
	Hash      []byte  `json:"hash"`
	CreatedMS int64   `json:"created_ms"`
	ExpiresMS int64   `json:"expires_ms,omitempty"`
	RevokedMS int64   `json:"revoked_ms,omitempty"`
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, id string) (Record, bool, error) {
	var item localKey
	var found bool
	err := l.kv.View(ctx, func(tx kv.Tx) (err error) {
		item, found, err = kv.Load[localKey](tx, keytype.APIKey.Bucket(), keytype.APIKey.Key(id))
		return err
	})
	if err != nil {
		return Record{}, false, fmt.Errorf("get key: %w", err)
	}
	return item.record(), found, nil
}

// Insert implements Store.
func (l *Local) Insert(ctx context.Context, rec Record) (Record, error) {
	stands := localItem(rec)
	err := l.kv.Update(ctx, func(tx kv.Tx) error {
		old, found, err := kv.Load[localKey](tx, keytype.APIKey.Bucket(), keytype.APIKey.Key(rec.ID))
		if err != nil {
			return err
		}
		if found {
			stands = old
			return nil
		}
		return stands.save(tx)
	})
	if err != nil {
		return Record{}, fmt.Errorf("insert key: %w", err)
	}
	return stands.record(), nil
}

// List implements Store. It reads every tenant's keys: one node has few.
func (l *Local) List(ctx context.Context, tenant string) ([]Record, error) {
	var recs []Record
	err := l.kv.View(ctx, func(tx kv.Tx) (err error) {
		tx.Scan(keytype.APIKey.Bucket(), "", "", func(_ string, raw []byte) bool {
			var item localKey
			if item, err = kv.Decode[localKey](raw); err != nil {
				return false
			}
			if item.Tenant == tenant && item.RevokedMS == 0 {
				recs = append(recs, item.record())
			}
			return true
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	slices.SortFunc(recs, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	return recs, nil
}

// Revoke implements Store.
func (l *Local) Revoke(ctx context.Context, tenant, id string, at time.Time) (bool, error) {
	var ours bool
	err := l.kv.Update(ctx, func(tx kv.Tx) error {
		item, found, err := kv.Load[localKey](tx, keytype.APIKey.Bucket(), keytype.APIKey.Key(id))
		if err != nil {
			return err
		}
		ours = found && item.Tenant == tenant
		if !ours || item.RevokedMS != 0 {
			return nil
		}
		item.RevokedMS = at.UnixMilli()
		return item.save(tx)
	})
	if err != nil {
		return false, fmt.Errorf("revoke key: %w", err)
	}
	return ours, nil
}

func (k localKey) save(tx kv.Tx) error {
	return kv.Save(tx, keytype.APIKey.Bucket(), keytype.APIKey.Key(k.ID), k, time.Time{})
}

func localItem(rec Record) localKey {
	return localKey{
		ID: rec.ID, Tenant: rec.Tenant, Name: rec.Name, Scopes: rec.Scopes, Hash: rec.Hash[:],
		CreatedMS: milli(rec.CreatedAt), ExpiresMS: milli(rec.ExpiresAt), RevokedMS: milli(rec.RevokedAt),
	}
}

func (k localKey) record() Record {
	rec := Record{Key: Key{
		ID: k.ID, Tenant: k.Tenant, Name: k.Name, Scopes: k.Scopes,
		CreatedAt: instant(k.CreatedMS), ExpiresAt: instant(k.ExpiresMS), RevokedAt: instant(k.RevokedMS),
	}}
	copy(rec.Hash[:], k.Hash)
	return rec
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func instant(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
