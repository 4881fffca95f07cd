package dynamofence

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// writeLeased writes in mode Leased. The record and the resource's grant are two
// items, so it takes a transaction, and a transaction does not tell what it wrote:
// the record is read first, and must be as it was read.
func (s *Store) writeLeased(tenant, resource string) func(context.Context, dynamo.Item, fencing.Write) (fencing.Written, error) {
	return func(ctx context.Context, pk dynamo.Item, w fencing.Write) (fencing.Written, error) {
		item, err := dynamo.Get(ctx, s.client, s.records, pk)
		if err != nil {
			return fencing.Written{}, err
		}
		fence := fencing.State{Granted: w.Token, Holder: w.LeaseID} // as the writer claims, until the transaction says otherwise
		for round := range maxRounds {
			old, lastWrite, err := readRecord(item)
			if err != nil {
				return fencing.Written{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
			}
			if lastWrite == w.ID { // an engine that forgot the token of a try whose answer was lost
				return fencing.Written{Verdict: fencing.Accepted, Record: old}, nil
			}
			next, out := old.Write(fence, w)
			if out.Verdict != fencing.Accepted {
				return out, nil
			}
			results, err := dynamo.Transact(ctx, s.client, fmt.Sprintf("%s-%d", w.ID, round),
				s.replace(pk, next, lastWrite, w.ID), held(s.marks, tenant, resource, w.Token, w.LeaseID))
			if err != nil {
				return fencing.Written{}, err
			}
			if results[0].Applied {
				return out, nil
			}
			if results[0].Failed {
				item = results[0].Item
			}
			if results[1].Failed {
				if fence, err = readState(results[1].Item); err != nil {
					return fencing.Written{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
				}
			}
		}
		return fencing.Written{}, errContended
	}
}

// replace stores the record where the latest write is still the one seen, empty for none.
func (s *Store) replace(pk dynamo.Item, r fencing.Record, seen, id string) dynamo.Change {
	c := dynamo.Change{
		Table: s.records, Key: pk, Format: format,
		Set:       "#token = :token, #sequence = :sequence, #value = :value, #version = :version, #mode = :mode, #write_id = :write_id",
		Condition: "attribute_not_exists(#write_id)",
		Values: dynamo.Item{
			":token": dynamo.N(r.Token), ":sequence": dynamo.N(r.Sequence), ":value": dynamo.S(string(r.Value)),
			":version": dynamo.N(r.Version), ":mode": dynamo.S(string(r.Mode)), ":write_id": dynamo.S(id),
		},
	}
	if seen != "" {
		c.Condition = "#write_id = :seen"
		c.Values[":seen"] = dynamo.S(seen)
	}
	return c
}

// held checks that the grant is the latest and has not ended.
func held(table, tenant, resource string, token fencing.Token, id string) dynamo.Change {
	return dynamo.Change{
		Table: table, Key: dynamo.Item{"pk": dynamo.S(keytype.Fence.Key(tenant, resource))}, Format: format,
		Condition: "#fence = :token AND #lease_id = :lease_id AND #released = :false",
		Values:    dynamo.Item{":token": dynamo.N(token), ":lease_id": dynamo.S(id), ":false": dynamo.Bool(false)},
	}
}

// ResetRecord implements fencing.Store. It is not sent twice: a write between the two
// would be set back.
func (s *Store) ResetRecord(ctx context.Context, tenant, resource, key string, r fencing.Reset) (fencing.Written, error) {
	out, err := s.resetRecord(ctx, dynamo.Change{
		Table: s.records, Key: recordKey(tenant, resource, key), Format: format,
		Set:       "#token = :token, #sequence = :zero, #write_id = :write_id",
		Condition: "attribute_exists(#token)",
		Values:    dynamo.Item{":token": dynamo.N(r.Token), ":zero": dynamo.N(0), ":write_id": dynamo.S(r.ID)},
		Once:      true,
	}, r)
	if err != nil {
		return fencing.Written{}, fmt.Errorf("reset record %q of %q: %w", key, resource, err)
	}
	return out, nil
}

func (s *Store) resetRecord(ctx context.Context, c dynamo.Change, r fencing.Reset) (fencing.Written, error) {
	for range maxRounds {
		result, err := dynamo.Update(ctx, s.client, c)
		if err != nil {
			return fencing.Written{}, err
		}
		old, lastWrite, err := readRecord(result.Item)
		if err != nil {
			return fencing.Written{}, result.Unreadable(err)
		}
		if result.Applied || lastWrite == r.ID {
			return fencing.Written{Verdict: fencing.Accepted, Record: old}, nil
		}
		if err := result.Sure(); err != nil {
			return fencing.Written{}, err
		}
		if _, out := old.Reset(r.Token); out.Verdict != fencing.Accepted {
			return out, nil
		}
	}
	return fencing.Written{}, errContended
}
