package dynamo

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
)

// Consumed is told of the capacity units that a request consumed in a table and its
// indexes.
type Consumed func(table, operation string, units float64)

// Meter is the option that has every answer say what the request consumed, and hands
// that on. What an answer that is an error consumed, as one that a condition refused
// does, DynamoDB does not say.
func Meter(consumed Consumed) func(*dynamodb.Options) {
	meter := middleware.InitializeMiddlewareFunc("coordsvc:capacity",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			askCapacity(in.Parameters)
			out, metadata, err := next.HandleInitialize(ctx, in)
			if err == nil {
				for _, c := range capacity(out.Result) {
					consumed(aws.ToString(c.TableName), middleware.GetOperationName(ctx), aws.ToFloat64(c.CapacityUnits))
				}
			}
			return out, metadata, err
		})
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Initialize.Add(meter, middleware.After) // behind what names the operation
		})
	}
}

// askCapacity knows the operations that consume capacity and that the stores use.
func askCapacity(params any) {
	const total = types.ReturnConsumedCapacityTotal
	switch in := params.(type) {
	case *dynamodb.GetItemInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.PutItemInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.UpdateItemInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.QueryInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.BatchGetItemInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.BatchWriteItemInput:
		in.ReturnConsumedCapacity = total
	case *dynamodb.TransactWriteItemsInput:
		in.ReturnConsumedCapacity = total
	}
}

// capacity is what the answer says, for each table.
func capacity(result any) []types.ConsumedCapacity {
	var one *types.ConsumedCapacity
	switch out := result.(type) {
	case *dynamodb.GetItemOutput:
		one = out.ConsumedCapacity
	case *dynamodb.PutItemOutput:
		one = out.ConsumedCapacity
	case *dynamodb.UpdateItemOutput:
		one = out.ConsumedCapacity
	case *dynamodb.QueryOutput:
		one = out.ConsumedCapacity
	case *dynamodb.BatchGetItemOutput:
		return out.ConsumedCapacity
	case *dynamodb.BatchWriteItemOutput:
		return out.ConsumedCapacity
	case *dynamodb.TransactWriteItemsOutput:
		return out.ConsumedCapacity
	}
	if one == nil {
		return nil
	}
	return []types.ConsumedCapacity{*one}
}
