package dynamofence

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// A Guard is what a caller's own write to an item of its own carries, in an
// UpdateItem or a TransactWriteItems, so that the item refuses a stale writer: its
// attribute fencing_token remembers the largest token.
type Guard struct {
	Condition string // for ConditionExpression, in parentheses: join others with AND
	Set       string // an assignment, for the SET part of UpdateExpression
	Names     map[string]string
	Values    map[string]types.AttributeValue
}

// Condition makes the guard of a write under the token. An item without the
// attribute accepts any token, so every write to it must carry a guard.
func Condition(token fencing.Token) Guard {
	return Guard{
		Condition: "(attribute_not_exists(#fencing_token) OR #fencing_token <= :fencing_token)",
		Set:       "#fencing_token = :fencing_token",
		Names:     map[string]string{"#fencing_token": "fencing_token"},
		Values:    map[string]types.AttributeValue{":fencing_token": dynamo.N(token)},
	}
}

// Held makes the check that a caller's own transaction carries beside its writes,
// where its tables are in the same account and region as the lease tables with the
// prefix: the grant must be the resource's latest, neither released nor forced. With
// it the writes are refused from the moment of takeover, whatever they touch. Items
// in the transaction's own tables need no [Condition] then.
func Held(prefix, tenant, resource string, token fencing.Token, leaseID string) types.TransactWriteItem {
	return held(keytype.Fence.TableName(prefix), tenant, resource, token, leaseID).Action()
}

// Refused reports whether a guarded write was refused by a condition: by the guard's,
// or by another one that the caller joined to it. A single write says so with an
// error of its own type; of a transaction only the reasons of its cancellation tell,
// and a conflict with another transaction among them is no refusal but a reason to
// try again.
func Refused(err error) bool { return dynamo.Refused(err) }
