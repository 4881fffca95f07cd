package dynamoidempotency

import (
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// format is the item's.
const format = 1

// Attributes of a key's item.
const (
	fingerprint = "fingerprint"
	attempt     = "attempt"
	claimID     = "claim_id"
	requestID   = "request_id" // absent where the latest claim has none
	locked      = "locked"     // this and expires: Unix milliseconds
	expires     = "expires"
	abandoned   = "abandoned"
	response    = "response" // JSON, absent until the key is completed
	ttl         = "ttl"      // Unix seconds: DynamoDB may remove the item after it
)

// claim is a new claim. One that repeats the latest, whose lock lasts, or lasted when
// this call began, finds the lock and fails.
func claim(req idempotency.Claim) dynamo.Change {
	c := dynamo.Change{
		Set: "#fingerprint = :fingerprint, #claim_id = :claim_id, #locked = :locked, #expires = :expires, #abandoned = :false, #ttl = :ttl, " +
			"#attempt = if_not_exists(#attempt, :zero) + :one",
		Remove: "#response",
		Condition: "attribute_not_exists(#claim_id) OR #expires < :over OR " +
			"(#fingerprint = :fingerprint AND attribute_not_exists(#response) AND (#abandoned = :true OR #locked < :over))",
		Values: dynamo.Item{
			":fingerprint": dynamo.S(req.Fingerprint), ":claim_id": dynamo.S(req.ID), ":locked": millis(req.Now.Add(req.LockTTL)),
			":expires": millis(req.Now.Add(req.TTL)), ":ttl": removable(req.Now.Add(req.TTL)), ":over": millis(followable(req)),
			":false": dynamo.Bool(false), ":true": dynamo.Bool(true), ":zero": dynamo.N(0), ":one": dynamo.N(1),
		},
	}
	if req.RequestID == "" {
		c.Remove += ", #request_id"
		return c
	}
	c.Set += ", #request_id = :request_id"
	c.Values[":request_id"] = dynamo.S(req.RequestID)
	return c
}

// followable is what a lock or a record must have ended before.
func followable(req idempotency.Claim) time.Time {
	if req.NoSteal {
		return time.UnixMilli(0) // none has
	}
	return req.Now.Add(-req.Guard)
}

// extend moves the lock's end forward within the record's. Twice is the same as once.
func extend(req idempotency.Extend) dynamo.Change {
	return dynamo.Change{
		Set: "#locked = :to",
		Condition: "#claim_id = :claim_id AND #abandoned = :false AND attribute_not_exists(#response) AND " +
			"#expires > :now AND #locked <= :to AND #expires >= :to",
		Values: dynamo.Item{
			":claim_id": dynamo.S(req.ID), ":false": dynamo.Bool(false), ":now": millis(req.Now), ":to": millis(req.Now.Add(req.LockTTL)),
		},
	}
}

// extendFrom moves the lock's end, and the record's, as long as they stand as seen.
func extendFrom(req idempotency.Extend, seen, next idempotency.State) dynamo.Change {
	return dynamo.Change{
		Set: "#locked = :to, #expires = :expires, #ttl = :ttl",
		Condition: "#claim_id = :claim_id AND #abandoned = :false AND attribute_not_exists(#response) AND " +
			"#locked = :seen_locked AND #expires = :seen_expires",
		Values: dynamo.Item{
			":claim_id": dynamo.S(req.ID), ":false": dynamo.Bool(false), ":to": millis(next.LockedUntil), ":expires": millis(next.ExpiresAt),
			":ttl": removable(next.ExpiresAt), ":seen_locked": millis(seen.LockedUntil), ":seen_expires": millis(seen.ExpiresAt),
		},
	}
}

// complete stores the response. Twice is the same as once.
func complete(req idempotency.Complete) dynamo.Change {
	return dynamo.Change{
		Set: "#response = :response",
		Condition: "#claim_id = :claim_id AND #abandoned = :false AND #expires > :now AND " +
			"(attribute_not_exists(#response) OR #response = :response)",
		Values: dynamo.Item{
			":claim_id": dynamo.S(req.ID), ":response": dynamo.S(req.Response), ":false": dynamo.Bool(false), ":now": millis(req.Now),
		},
	}
}

// abandon ends the claim. Twice is the same as once.
func abandon(req idempotency.Abandon) dynamo.Change {
	return dynamo.Change{
		Set:       "#abandoned = :true",
		Condition: "#claim_id = :claim_id AND attribute_not_exists(#response) AND #expires > :now",
		Values:    dynamo.Item{":claim_id": dynamo.S(req.ID), ":true": dynamo.Bool(true), ":now": millis(req.Now)},
	}
}

func key(id idempotency.ID) dynamo.Item {
	return dynamo.Item{"pk": dynamo.S(keytype.Idempotency.Key(id.Tenant, id.Space, id.Key))}
}

// read takes an item apart, which may be empty.
func read(item dynamo.Item) (idempotency.State, error) {
	r := dynamo.Read(item, format)
	if !r.Has(claimID) {
		return idempotency.State{}, r.Err()
	}
	return idempotency.State{
		Fingerprint: r.Str(fingerprint),
		Attempt:     r.Int(attempt),
		ClaimID:     r.Str(claimID),
		RequestID:   r.Str(requestID),
		LockedUntil: instant(r, locked),
		ExpiresAt:   instant(r, expires),
		Abandoned:   r.Bool(abandoned),
		Response:    r.Str(response),
	}, r.Err()
}

func instant(r *dynamo.Reader, name string) time.Time { return time.UnixMilli(r.Int(name)).UTC() }

func millis(t time.Time) types.AttributeValue { return dynamo.N(t.UnixMilli()) }

// removable is the second after which the item of a record with this end may go.
func removable(end time.Time) types.AttributeValue {
	return dynamo.N(end.Add(idempotency.Retention).Unix() + 1)
}
