package dynamo

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/coordsvc/coordsvc/keytype"
)

// Track is the option that every call of a store carries. The SDK sends a
// request again by itself and returns only the last try's error, which says
// nothing about the tries before: an answer that was lost, followed by a
// throttled try, is not "no effect". Track remembers over all tries whether one
// may have happened, for [Fault]. It also has transaction conflicts tried again.
func Track(o *dynamodb.Options) {
	conflict := (&types.TransactionConflictException{}).ErrorCode()
	o.Retryer = retry.AddWithErrorCodes(o.Retryer, conflict)
	o.APIOptions = append(o.APIOptions, trackCall, trackTry)
}

// Fault says what the failure of a tracked write means: keytype.ErrUnavailable
// where no try can have had an effect, else keytype.ErrOutcomeUnknown. It keeps
// the cause in the chain, context errors included. A failed condition is an
// answer, not a fault: ask [FailedCondition] first.
func Fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if mayHaveApplied(err) {
		return fmt.Errorf("%s: %w: %w", op, keytype.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("%s: %w: %w", op, keytype.ErrUnavailable, err)
}

// mayHaveApplied says whether a try of the failed call may have had an effect. Of a
// call that was not tracked only the last try is known, which proves nothing.
func mayHaveApplied(err error) bool {
	call, tracked := errors.AsType[*callError](err)
	return !tracked || call.unsure
}

// ReadFault is Fault for what changes nothing: it is always keytype.ErrUnavailable.
func ReadFault(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", op, keytype.ErrUnavailable, err)
}

// FailedCondition reports whether the error is a failed condition, and the item
// as it was where the request asked for it: it is empty where there was none, and
// on an engine that never returns it.
func FailedCondition(err error) (old Item, failed bool) {
	e, failed := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !failed {
		return nil, false
	}
	return e.Item, true
}

// callError is the error of a tracked call.
type callError struct {
	err    error
	unsure bool // a try may have had an effect
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// callKey finds the *callError of the call that a try belongs to.
type callKey struct{}

// trackCall runs around all tries of one call.
func trackCall(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("coordsvc:call",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			call := &callError{}
			out, metadata, err := next.HandleInitialize(context.WithValue(ctx, callKey{}, call), in)
			if err == nil {
				return out, metadata, nil
			}
			call.err = err
			return out, metadata, call
		}), middleware.Before)
}

// trackTry runs right around the transport, once for each try: whatever fails
// before it was never sent.
func trackTry(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("coordsvc:try",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleDeserialize(ctx, in)
			if call, ok := ctx.Value(callKey{}).(*callError); ok && unsure(out.RawResponse, err) {
				call.unsure = true
			}
			return out, metadata, err
		}), middleware.After)
}

// unsure says whether a try that met with this may have had an effect.
func unsure(response any, err error) bool {
	if err != nil {
		return !notSent(err)
	}
	r, ok := response.(*smithyhttp.Response)
	return !ok || !isRefusal(r.StatusCode)
}

// notSent: no connection was made, so nothing went over it.
func notSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// isRefusal: DynamoDB refuses, throttling included, with a 4xx; a 5xx may come after the effect.
func isRefusal(status int) bool { return status >= 400 && status < 500 }
