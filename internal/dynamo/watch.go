package dynamo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// A Try is one request that was sent, of the one or several that a call may need.
type Try struct {
	Operation string
	Table     string // the first that the request names
	Partition string // the keys of the first item that it names, "" where it names none
	Sort      string
	Outcome   TryOutcome
	Took      time.Duration
}

// A TryOutcome says how a try ended.
type TryOutcome string

// How a try ends.
const (
	TryOK        TryOutcome = "ok"
	TryRefused   TryOutcome = "refused"   // a condition did not hold: an answer, not a fault
	TryConflict  TryOutcome = "conflict"  // with another transaction
	TryThrottled TryOutcome = "throttled" // above the capacity of the table or of the partition
	TryTimeout   TryOutcome = "timeout"   // no answer in time
	TryFailed    TryOutcome = "failed"
)

// Watch is the option that tells of every try of every call, at its end.
func Watch(tried func(Try)) func(*dynamodb.Options) {
	return around("coordsvc:watch", func(context.Context, Try, http.Header) func(Try) { return tried })
}

// Trace is the option that has begin called before every try of every call, with the
// header that goes out, which it may add to, and what begin returns called at its end.
func Trace(begin func(ctx context.Context, t Try, header http.Header) (ended func(Try))) func(*dynamodb.Options) {
	return around("coordsvc:trace", begin)
}

// around stands behind what signs a request: what it adds to the header is not signed,
// and need not be.
func around(name string, begin func(context.Context, Try, http.Header) func(Try)) func(*dynamodb.Options) {
	type key struct{}
	note := middleware.InitializeMiddlewareFunc(name+":named",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			return next.HandleInitialize(middleware.WithStackValue(ctx, key{}, named(in.Parameters)), in)
		})
	measure := middleware.DeserializeMiddlewareFunc(name,
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			t, _ := middleware.GetStackValue(ctx, key{}).(Try)
			t.Operation = middleware.GetOperationName(ctx)
			var header http.Header
			if r, ok := in.Request.(*smithyhttp.Request); ok {
				header = r.Header
			}
			ended, begun := begin(ctx, t, header), time.Now()
			out, metadata, err := next.HandleDeserialize(ctx, in)
			t.Outcome, t.Took = outcomeOf(err), time.Since(begun)
			ended(t)
			return out, metadata, err
		})
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			// The measuring stands before what reads errors, and so sees what they are.
			return errors.Join(stack.Initialize.Add(note, middleware.After), stack.Deserialize.Add(measure, middleware.Before))
		})
	}
}

// named is the table and the item that a request names first.
func named(params any) Try {
	switch in := params.(type) {
	case *dynamodb.GetItemInput:
		return at(in.TableName, in.Key)
	case *dynamodb.PutItemInput:
		return at(in.TableName, in.Item)
	case *dynamodb.UpdateItemInput:
		return at(in.TableName, in.Key)
	case *dynamodb.DeleteItemInput:
		return at(in.TableName, in.Key)
	case *dynamodb.QueryInput:
		return at(in.TableName, nil)
	case *dynamodb.DescribeTableInput:
		return at(in.TableName, nil)
	case *dynamodb.TransactWriteItemsInput:
		for _, item := range in.TransactItems {
			return ofWrite(item)
		}
	case *dynamodb.BatchGetItemInput:
		for table, wanted := range in.RequestItems {
			return at(&table, first(wanted.Keys))
		}
	case *dynamodb.BatchWriteItemInput:
		for table, writes := range in.RequestItems {
			return ofBatch(&table, writes)
		}
	}
	return Try{}
}

func ofWrite(item types.TransactWriteItem) Try {
	switch {
	case item.Put != nil:
		return at(item.Put.TableName, item.Put.Item)
	case item.Update != nil:
		return at(item.Update.TableName, item.Update.Key)
	case item.Delete != nil:
		return at(item.Delete.TableName, item.Delete.Key)
	case item.ConditionCheck != nil:
		return at(item.ConditionCheck.TableName, item.ConditionCheck.Key)
	}
	return Try{}
}

func ofBatch(table *string, writes []types.WriteRequest) Try {
	for _, w := range writes {
		if w.PutRequest != nil {
			return at(table, w.PutRequest.Item)
		}
		if w.DeleteRequest != nil {
			return at(table, w.DeleteRequest.Key)
		}
	}
	return at(table, nil)
}

func first(items []Item) Item {
	if len(items) == 0 {
		return nil
	}
	return items[0]
}

// at reads the keys as all tables call them.
func at(table *string, item Item) Try {
	r := Raw(item)
	return Try{Table: aws.ToString(table), Partition: r.Str("pk"), Sort: r.Str("sk")}
}

func outcomeOf(err error) TryOutcome {
	if err == nil {
		return TryOK
	}
	if cancelled, ok := errors.AsType[*types.TransactionCanceledException](err); ok {
		return outcomeOfReasons(cancelled.CancellationReasons)
	}
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return outcomeOfCode(e.ErrorCode())
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return TryTimeout
	}
	return TryFailed
}

// outcomeOfReasons: a throttled or a conflicting part says more than a condition that did not hold.
func outcomeOfReasons(reasons []types.CancellationReason) TryOutcome {
	outcome := TryFailed
	for _, r := range reasons {
		switch o := outcomeOfCode(aws.ToString(r.Code)); o {
		case TryThrottled, TryConflict:
			return o
		case TryRefused:
			outcome = o
		case TryOK, TryTimeout, TryFailed:
		}
	}
	return outcome
}

func outcomeOfCode(code string) TryOutcome {
	switch code {
	case "ConditionalCheckFailedException", "ConditionalCheckFailed":
		return TryRefused
	case "TransactionConflictException", "TransactionConflict", "TransactionInProgressException":
		return TryConflict
	case "ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded", "ThrottlingException", "ThrottlingError", "RequestLimitExceeded":
		return TryThrottled
	default:
		return TryFailed
	}
}
