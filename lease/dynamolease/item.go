package dynamolease

import (
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// grant is a new grant. A try of the same call that came through before is told by
// its lease id, a caller's repetition by its request id: neither is granted twice.
func (s *Store) grant(tenant, resource string, req lease.Acquire, fence fencing.State) dynamo.Change {
	c := dynamo.Change{
		Table: s.table, Key: key(tenant, resource), Format: format,
		Set: "#lease_id = :lease_id, #owner = :owner, #owner_key = :owner_key, #acquired = :now, #expires = :expires, #max_expires = :max_expires, #released = :false",
		Values: dynamo.Item{
			":lease_id": dynamo.S(req.ID), ":owner": dynamo.S(req.Owner), ":owner_key": ownerOf(tenant, req.Owner),
			":now": millis(req.Now), ":expires": millis(req.Now.Add(req.TTL)), ":max_expires": millis(req.Now.Add(req.MaxHold)),
			":false": dynamo.Bool(false), ":true": dynamo.Bool(true), ":stealable": millis(stealable(req)),
		},
	}
	free := "(#released = :true OR #expires < :stealable) AND #lease_id <> :lease_id"
	c.Remove = "#forced, #set"
	if req.Data == "" {
		c.Remove += ", #data"
	} else {
		c.Set += ", #data = :data"
		c.Values[":data"] = dynamo.S(req.Data)
	}
	if req.RequestID == "" {
		c.Remove += ", #request_id"
	} else {
		c.Set += ", #request_id = :request_id"
		c.Values[":request_id"] = dynamo.S(req.RequestID)
		free += " AND NOT (#owner = :owner AND #request_id = :request_id)"
	}
	c.Condition = "(attribute_not_exists(#lease_id) OR (" + free + "))"
	addToken(&c, fence)
	return c
}

// stealable is what a lease must have expired before.
func stealable(req lease.Acquire) time.Time {
	if req.NoSteal {
		return time.UnixMilli(0) // none has
	}
	return req.Now.Add(-req.Guard)
}

// addToken has a grant take the token after the latest, or after the floor where there
// is none. UpdateItem cannot take the largest of several: a first grant where tokens
// were admitted before, and one whose latest is below the floor, name their token, as
// long as what it follows from stays as seen.
func addToken(c *dynamo.Change, seen fencing.State) {
	next, _ := seen.Next()
	switch {
	case seen.Granted == 0 && seen.Mark.Token > 0:
		c.Set += ", #fence = :next"
		c.Condition += " AND attribute_not_exists(#fence) AND #mark = :mark"
		c.Values[":next"], c.Values[":mark"] = dynamo.N(next), dynamo.N(seen.Mark.Token)
	case seen.Granted > 0 && seen.Granted < seen.Floor:
		c.Set += ", #fence = :next"
		c.Condition += " AND #fence = :granted"
		c.Values[":next"], c.Values[":granted"] = dynamo.N(next), dynamo.N(seen.Granted)
	default:
		c.Set += ", #fence = if_not_exists(#fence, :floor) + :one"
		c.Condition += " AND (attribute_exists(#fence) OR attribute_not_exists(#mark)) AND (attribute_not_exists(#fence) OR (#fence >= :floor AND #fence < :max))"
		c.Values[":floor"], c.Values[":one"], c.Values[":max"] = dynamo.N(seen.Floor), dynamo.N(1), dynamo.N(fencing.MaxToken)
	}
}

// extend moves a live grant's expiry forward. Twice is the same as once.
func (s *Store) extend(tenant, resource string, req lease.Renew, to time.Time) dynamo.Change {
	return dynamo.Change{
		Table: s.table, Key: key(tenant, resource), Format: format,
		Set:       "#expires = :to",
		Condition: "#fence = :token AND #lease_id = :lease_id AND #released = :false AND #expires > :now AND #expires <= :to AND #max_expires >= :to",
		Values: dynamo.Item{
			":token": dynamo.N(req.Token), ":lease_id": dynamo.S(req.ID),
			":now": millis(req.Now), ":to": millis(to), ":false": dynamo.Bool(false),
		},
	}
}

// end releases the grant. Twice is the same as once.
func (s *Store) end(tenant, resource string, h lease.Holder) dynamo.Change {
	return dynamo.Change{
		Table: s.table, Key: key(tenant, resource), Format: format,
		Set:       "#released = :true",
		Remove:    "#owner_key",
		Condition: "#fence = :token AND #lease_id = :lease_id",
		Values:    dynamo.Item{":token": dynamo.N(h.Token), ":lease_id": dynamo.S(h.ID), ":true": dynamo.Bool(true)},
	}
}

// force ends the grant with the token and raises that: a mark is never above the token
// of a grant. What it raised from does not come again, so twice is the same as once.
func (s *Store) force(tenant, resource string, req lease.Force, floor fencing.Token) dynamo.Change {
	next, _ := fencing.State{Granted: req.Token, Floor: floor}.Next()
	return dynamo.Change{
		Table: s.table, Key: key(tenant, resource), Format: format,
		Set:       "#fence = :next, #released = :true, #forced = :forced",
		Remove:    "#owner_key",
		Condition: "#fence = :token AND #fence < :max AND attribute_exists(#lease_id)",
		Values: dynamo.Item{
			":token": dynamo.N(req.Token), ":forced": dynamo.S(req.RequestID), ":next": dynamo.N(next),
			":max": dynamo.N(fencing.MaxToken), ":true": dynamo.Bool(true),
		},
	}
}

func key(tenant, resource string) dynamo.Item {
	return dynamo.Item{"pk": dynamo.S(keytype.Lease.Key(tenant, resource))}
}

// read takes an item apart, which may hold a mark only, or nothing.
func read(item dynamo.Item) (lease.State, fencing.State, error) {
	r := dynamo.Read(item, format)
	f := fencing.State{Granted: fencing.Token(r.Int(fence)), Mark: fencing.Position{Token: fencing.Token(r.Int(mark))}}
	if !r.Has(leaseID) {
		return lease.State{}, f, r.Err()
	}
	return lease.State{
		Token:        f.Granted,
		ID:           r.Str(leaseID),
		Owner:        r.Str(owner),
		RequestID:    r.Str(requestID),
		AcquiredAt:   instant(r, acquired),
		ExpiresAt:    instant(r, expires),
		MaxExpiresAt: instant(r, maxExpires),
		Released:     r.Bool(released),
		Forced:       r.Str(forced),
		Data:         r.Str(data),
		Set:          r.Str(set),
	}, f, r.Err()
}

func instant(r *dynamo.Reader, name string) time.Time { return time.UnixMilli(r.Int(name)).UTC() }

func millis(t time.Time) types.AttributeValue { return dynamo.N(t.UnixMilli()) }
