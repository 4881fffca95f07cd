package dynamo

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
)

// Bar is the option that sends a call only where check returns nil. One that is not
// sent has had no effect: [Fault] calls it keytype.ErrUnavailable.
func Bar(check func(context.Context) error) func(*dynamodb.Options) {
	look := middleware.SerializeMiddlewareFunc("coordsvc:bar",
		func(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (middleware.SerializeOutput, middleware.Metadata, error) {
			if err := check(ctx); err != nil {
				return middleware.SerializeOutput{}, middleware.Metadata{}, err
			}
			return next.HandleSerialize(ctx, in)
		})
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error { return stack.Serialize.Add(look, middleware.Before) })
	}
}
