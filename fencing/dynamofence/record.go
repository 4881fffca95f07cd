package dynamofence

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// Write implements fencing.Store.
func (s *Store) Write(ctx context.Context, tenant, resource, key string, w fencing.Write) (fencing.Written, error) {
	write := s.write
	if w.Mode == fencing.Leased {
		write = s.writeLeased(tenant, resource)
	}
	out, err := write(ctx, recordKey(tenant, resource, key), w)
	if err != nil {
		return fencing.Written{}, fmt.Errorf("write record %q of %q: %w", key, resource, err)
	}
	return out, nil
}

// write begins with what is most likely, a write under the token that the record
// has, and lets each failed condition's item decide what to try next.
func (s *Store) write(ctx context.Context, pk dynamo.Item, w fencing.Write) (fencing.Written, error) {
	change := s.writeAt(pk, w, w.Sequence)
	if w.Sequence == 0 {
		change = s.writeAfter(pk, w)
	}
	for range maxRounds {
		result, err := dynamo.Update(ctx, s.client, change)
		if err != nil {
			return fencing.Written{}, err
		}
		old, lastWrite, err := readRecord(result.Item)
		if err != nil {
			return fencing.Written{}, result.Unreadable(err)
		}
		if result.Applied || lastWrite == w.ID {
			return fencing.Written{Verdict: fencing.Accepted, Record: old}, nil
		}
		next, out := old.Write(fencing.State{}, w) // no mode here asks the fence
		if out.Verdict == fencing.Replayed {
			return out, nil
		}
		if err := result.Sure(); err != nil {
			return fencing.Written{}, err
		}
		if out.Verdict != fencing.Accepted {
			return out, nil
		}
		change = s.writeAt(pk, w, next.Sequence)
		if w.Sequence == 0 && w.Token == old.Token {
			change = s.writeAfter(pk, w)
		}
	}
	return fencing.Written{}, errContended
}

// writeAt writes at w's token and the sequence, if that is above the record's position.
func (s *Store) writeAt(pk dynamo.Item, w fencing.Write, seq int64) dynamo.Change {
	c := s.change(pk, w)
	c.Set += ", #token = :token, #sequence = :sequence, #version = if_not_exists(#version, :zero) + :one, #mode = :mode"
	c.Condition = "attribute_not_exists(#token) OR (#mode = :mode AND (#token < :token OR (#token = :token AND #sequence < :sequence)))"
	c.Values[":sequence"], c.Values[":zero"] = dynamo.N(seq), dynamo.N(0)
	return c
}

// writeAfter writes at the record's own token and the sequence after its last.
// Sent twice it writes twice when another write came between, so it is not.
func (s *Store) writeAfter(pk dynamo.Item, w fencing.Write) dynamo.Change {
	c := s.change(pk, w)
	c.Set += ", #sequence = #sequence + :one, #version = #version + :one"
	c.Condition = "#token = :token AND #mode = :mode AND #sequence < :last"
	c.Values[":last"] = dynamo.N(fencing.MaxSequence)
	c.Once = true
	return c
}

// change is what both ways to write have in common.
func (s *Store) change(pk dynamo.Item, w fencing.Write) dynamo.Change {
	return dynamo.Change{
		Table: s.records, Key: pk, Format: format,
		Set: "#value = :value, #write_id = :write_id",
		Values: dynamo.Item{
			":value": dynamo.S(string(w.Value)), ":write_id": dynamo.S(w.ID),
			":token": dynamo.N(w.Token), ":mode": dynamo.S(string(w.Mode)), ":one": dynamo.N(1),
		},
	}
}

// Read implements fencing.Store.
func (s *Store) Read(ctx context.Context, tenant, resource, key string) (fencing.Record, error) {
	item, err := dynamo.Get(ctx, s.client, s.records, recordKey(tenant, resource, key))
	if err != nil {
		return fencing.Record{}, fmt.Errorf("read record %q of %q: %w", key, resource, err)
	}
	r, _, err := readRecord(item)
	if err != nil {
		return fencing.Record{}, fmt.Errorf("read record %q of %q: %w: %w", key, resource, keytype.ErrUnavailable, err)
	}
	return r, nil
}

func recordKey(tenant, resource, key string) dynamo.Item {
	return dynamo.Item{"pk": dynamo.S(keytype.ProtectedRecord.Key(tenant, resource, key))}
}

// readRecord also returns the id of the write that made the record what it is.
func readRecord(item dynamo.Item) (rec fencing.Record, lastWrite string, err error) {
	if len(item) == 0 {
		return fencing.Record{}, "", nil
	}
	r := dynamo.Read(item, format)
	rec = fencing.Record{
		Position: fencing.Position{Token: fencing.Token(r.Int(token)), Sequence: r.Int(sequence)},
		Value:    []byte(r.Str(value)),
		Version:  r.Int(version),
		Mode:     fencing.Mode(r.Str(mode)),
	}
	return rec, r.Str(writeID), r.Err()
}
