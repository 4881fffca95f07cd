package dynamo

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// MaxChanges is how many items one transaction may touch.
const MaxChanges = 100

// transactions is what a transaction uses of the client.
type transactions interface {
	items
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// Transact carries out all the changes, each of another item, or none. A change
// that sets nothing only checks its condition. The results are in the order of the
// changes: after success all are applied, and their items are not told. Else none
// is, and those whose condition failed have Failed set and the item as it was.
//
// The token, 1 to 36 characters, names the transaction: DynamoDB carries it out once
// however often it is sent within 10 minutes, so a failed condition is certain even
// where an answer was lost before it. A conflict with another transaction is tried
// again under the same token, as a throttled one is; errors are faults as [Fault]
// makes them.
func Transact(ctx context.Context, client transactions, token string, changes ...Change) ([]Result, error) {
	in := &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token}
	for _, c := range changes {
		in.TransactItems = append(in.TransactItems, c.Action())
	}
	results := make([]Result, len(changes))
	_, err := client.TransactWriteItems(ctx, in, Track, retryCanceled)
	if err == nil {
		for i := range results {
			results[i].Applied = true
		}
		return results, nil
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	if !ok || !canceledBy(canceled, conditionFailed) {
		return nil, Fault("transact", err)
	}
	for i, reason := range canceled.CancellationReasons {
		if i >= len(changes) || aws.ToString(reason.Code) != conditionFailed {
			continue
		}
		results[i] = Result{Failed: true, Item: reason.Item}
		if len(reason.Item) == 0 { // there is none, or the engine did not return it
			item, err := Get(ctx, client, changes[i].Table, changes[i].Key)
			if err != nil {
				return nil, fmt.Errorf("read what failed: %w", err)
			}
			results[i].Item = item
		}
	}
	return results, nil
}

// Codes of cancellation reasons: the SDK has types for the errors of a single
// write, and none of them is in the chain of a canceled transaction.
const (
	conditionFailed = "ConditionalCheckFailed"
	conflicted      = "TransactionConflict"
	throttled       = "ThrottlingError"
	overProvisioned = "ProvisionedThroughputExceeded"
)

func canceledBy(e *types.TransactionCanceledException, codes ...string) bool {
	for _, reason := range e.CancellationReasons {
		for _, code := range codes {
			if aws.ToString(reason.Code) == code {
				return true
			}
		}
	}
	return false
}

// Refused reports whether a condition failed, of a single write or of one in a transaction.
func Refused(err error) bool {
	if _, failed := FailedCondition(err); failed {
		return true
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && canceledBy(canceled, conditionFailed)
}

// retryCanceled has a transaction sent again, after the SDK's pauses, that was
// canceled for a reason which passes: unless a condition failed as well, which is
// an answer.
func retryCanceled(o *dynamodb.Options) { o.Retryer = cancelRetryer{o.Retryer} }

type cancelRetryer struct{ aws.Retryer }

func (r cancelRetryer) IsErrorRetryable(err error) bool {
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	if !ok {
		return r.Retryer.IsErrorRetryable(err)
	}
	return !canceledBy(canceled, conditionFailed) && canceledBy(canceled, conflicted, throttled, overProvisioned)
}

// Action is the change as a part of a transaction.
func (c Change) Action() types.TransactWriteItem {
	e := c.expressions()
	if e.update == "" {
		return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
			TableName: &c.Table, Key: c.Key, ConditionExpression: &e.condition,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}}
	}
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &c.Table, Key: c.Key, UpdateExpression: &e.update, ConditionExpression: &e.condition,
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
