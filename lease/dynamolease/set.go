package dynamolease

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// Together implements lease.Store. A transaction does not tell what it wrote: the
// items are read first, and must be as they were read.
func (s *Store) Together(ctx context.Context, tenant string, resources []string, decide lease.Decision) ([]lease.Outcome, error) {
	outs, err := s.together(ctx, tenant, resources, decide)
	if err != nil {
		return nil, fmt.Errorf("set of %d: %w", len(resources), err)
	}
	return outs, nil
}

func (s *Store) together(ctx context.Context, tenant string, resources []string, decide lease.Decision) ([]lease.Outcome, error) {
	floor, err := s.floor.get(ctx)
	if err != nil {
		return nil, err
	}
	seen, err := s.readAll(ctx, tenant, resources)
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	for round := range maxRounds {
		outs := make([]lease.Outcome, len(seen))
		changes := make([]dynamo.Change, len(seen))
		granted, changed := true, false
		for i := range seen {
			seen[i].fence.Floor = floor
			var next lease.State
			next, outs[i] = decide(i, seen[i].fence, seen[i].lease)
			granted = granted && outs[i].Verdict == lease.Done
			changed = changed || next != seen[i].lease
			changes[i] = s.replace(tenant, resources[i], seen[i], next)
		}
		if !granted || !changed {
			return outs, nil
		}
		results, err := dynamo.Transact(ctx, s.client, fmt.Sprintf("%s-%d", id, round), changes...)
		if err != nil {
			return nil, err
		}
		if results[0].Applied {
			return outs, nil
		}
		for i, r := range results {
			if !r.Failed {
				continue
			}
			if seen[i].lease, seen[i].fence, err = read(r.Item); err != nil {
				return nil, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
			}
		}
	}
	return nil, errContended
}

// readAll is in the order of the resources.
func (s *Store) readAll(ctx context.Context, tenant string, resources []string) ([]seen, error) {
	pks := make([]string, len(resources))
	for i, resource := range resources {
		pks[i] = keytype.Lease.Key(tenant, resource)
	}
	items, err := dynamo.GetAll(ctx, s.client, s.table, pks)
	if err != nil {
		return nil, err
	}
	all := make([]seen, len(pks))
	for i, pk := range pks {
		if all[i].lease, all[i].fence, err = read(items[pk]); err != nil {
			return nil, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
		}
	}
	return all, nil
}

// replace stores the state where the item is as seen, and only checks that where the
// state is the same.
func (s *Store) replace(tenant, resource string, was seen, next lease.State) dynamo.Change {
	c := dynamo.Change{Table: s.table, Key: key(tenant, resource), Format: format, Values: dynamo.Item{}}
	asSeen(&c, was)
	if next == was.lease {
		return c
	}
	c.Set = "#fence = :next, #lease_id = :lease_id, #owner = :owner, #acquired = :acquired, #expires = :expires, #max_expires = :max_expires, #released = :released"
	for name, v := range (dynamo.Item{
		":next": dynamo.N(next.Token), ":lease_id": dynamo.S(next.ID), ":owner": dynamo.S(next.Owner), ":acquired": millis(next.AcquiredAt),
		":expires": millis(next.ExpiresAt), ":max_expires": millis(next.MaxExpiresAt), ":released": dynamo.Bool(next.Released),
	}) {
		c.Values[name] = v
	}
	if next.Released {
		c.Remove = "#owner_key"
	} else {
		c.Set += ", #owner_key = :owner_key"
		c.Values[":owner_key"] = ownerOf(tenant, next.Owner)
	}
	setOrRemove(&c, requestID, next.RequestID)
	setOrRemove(&c, forced, next.Forced)
	setOrRemove(&c, data, next.Data)
	setOrRemove(&c, set, next.Set)
	return c
}

func asSeen(c *dynamo.Change, was seen) {
	if was.lease.Token > 0 {
		c.Condition = "#fence = :was_fence AND #lease_id = :was_lease_id AND #expires = :was_expires AND #released = :was_released"
		c.Values[":was_fence"], c.Values[":was_lease_id"] = dynamo.N(was.lease.Token), dynamo.S(was.lease.ID)
		c.Values[":was_expires"], c.Values[":was_released"] = millis(was.lease.ExpiresAt), dynamo.Bool(was.lease.Released)
		return
	}
	c.Condition = "attribute_not_exists(#fence) AND attribute_not_exists(#mark)"
	if was.fence.Mark != (fencing.Position{}) {
		c.Condition = "attribute_not_exists(#fence) AND #mark = :was_mark"
		c.Values[":was_mark"] = dynamo.N(was.fence.Mark.Token)
	}
}

func setOrRemove(c *dynamo.Change, name, value string) {
	if value != "" {
		c.Set += fmt.Sprintf(", #%s = :%s", name, name)
		c.Values[":"+name] = dynamo.S(value)
		return
	}
	if c.Remove != "" {
		c.Remove += ", "
	}
	c.Remove += "#" + name
}
