package dynamosession

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// TenantEpoch implements session.Store.
func (s *Store) TenantEpoch(ctx context.Context, tenant string) (int64, error) {
	item, err := s.get(ctx, tenantKey(tenant))
	if err != nil {
		return 0, fmt.Errorf("read tenant epoch: %w", err)
	}
	r := dynamo.Read(item, format)
	epoch := r.Int("epoch")
	if err := r.Err(); err != nil {
		return 0, fmt.Errorf("read tenant epoch: %w: %w", keytype.ErrUnavailable, err)
	}
	return epoch, nil
}

// RaiseTenantEpoch implements session.Store. Raising it twice is harmless: the call
// is done when the last of its tries is.
func (s *Store) RaiseTenantEpoch(ctx context.Context, tenant string) (int64, error) {
	result, err := dynamo.Update(ctx, s.client, dynamo.Change{
		Table: s.table, Key: tenantKey(tenant), Format: format,
		Set:       "#epoch = if_not_exists(#epoch, :zero) + :one",
		Condition: "attribute_not_exists(#epoch) OR #epoch >= :zero", // always: an item of another format is left alone
		Values:    dynamo.Item{":zero": dynamo.N(0), ":one": dynamo.N(1)},
	})
	if err != nil {
		return 0, fmt.Errorf("raise tenant epoch: %w", err)
	}
	r := dynamo.Read(result.Item, format)
	epoch := r.Int("epoch")
	if !result.Applied {
		return 0, fmt.Errorf("raise tenant epoch: %w: the item has another format", keytype.ErrUnavailable)
	}
	if err := r.Err(); err != nil {
		return 0, fmt.Errorf("raise tenant epoch: %w: %w", keytype.ErrUnavailable, err)
	}
	return epoch, nil
}
