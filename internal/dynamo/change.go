package dynamo

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/coordsvc/coordsvc/keytype"
)

// items is what reading and changing one item use of the client.
type items interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
}

// A Change is one conditional write of one item. Its expressions write each
// attribute as # and its name, because plain names collide with DynamoDB's
// reserved words: owner, ttl, token, state and some five hundred more.
type Change struct {
	Table     string
	Key       Item
	Format    int64  // the item's format number: an item with another is left alone
	Set       string // assignments, separated by commas; empty, in a transaction alone, to check the condition
	Remove    string // attributes, separated by commas; may be empty
	Condition string
	Values    Item // of the expressions, exactly those that occur
	// Once says that doing it twice is not the same as doing it once, and that
	// the condition does not see to that: it is not sent again where a try may
	// have happened.
	Once bool
}

// A Result says what became of a change.
type Result struct {
	Applied bool
	Failed  bool // of a transaction: this change's condition failed
	Item    Item // as the change left it, else as it was when the condition failed

	unsure error // why a try of this same call may have happened nevertheless
}

// Sure returns nil where a change that was not applied has had no effect. Else it
// returns keytype.ErrOutcomeUnknown: the answer of an earlier try was lost, and
// the item, written by others since, cannot tell whether it happened. A refusal
// would be a lie then, unless the item shows the change to be the caller's own.
func (r Result) Sure() error {
	if r.unsure == nil {
		return nil
	}
	return Fault("earlier try", r.unsure)
}

// Unreadable is the fault of an item that cannot be read, for example of one in the
// format of a later version: keytype.ErrOutcomeUnknown where the change was applied,
// or may have been, to it, else keytype.ErrUnavailable.
func (r Result) Unreadable(err error) error {
	if r.Applied {
		return fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, err)
	}
	if unsure := r.Sure(); unsure != nil {
		return fmt.Errorf("%w: %w", unsure, err)
	}
	return fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
}

// Update carries out the change. A failed condition is a result, not an error;
// errors are faults as [Fault] makes them.
func Update(ctx context.Context, client items, c Change) (Result, error) {
	options := []func(*dynamodb.Options){Track}
	if c.Once {
		options = append(options, retryHarmless)
	}
	out, err := client.UpdateItem(ctx, c.input(), options...)
	if err == nil {
		return Result{Applied: true, Item: out.Attributes}, nil
	}
	r := Result{}
	if mayHaveApplied(err) {
		r.unsure = err
	}
	old, failed := FailedCondition(err)
	if !failed && (r.unsure == nil || !c.Once) {
		return Result{}, Fault("update", err)
	}
	r.Item = old
	if len(old) == 0 { // there is none, or the engine did not return it, or there was no answer at all
		read, readErr := client.GetItem(ctx, consistent(c.Table, c.Key))
		if readErr != nil {
			return Result{}, fmt.Errorf("%w; read to find out: %w", Fault("update", err), readErr)
		}
		r.Item = read.Item
	}
	return r, nil
}

// Get reads the item, strongly consistent. It is empty where there is none; errors
// are keytype.ErrUnavailable.
func Get(ctx context.Context, client items, table string, key Item) (Item, error) {
	out, err := client.GetItem(ctx, consistent(table, key))
	if err != nil {
		return nil, ReadFault("get", err)
	}
	return out.Item, nil
}

func consistent(table string, key Item) *dynamodb.GetItemInput {
	return &dynamodb.GetItemInput{TableName: &table, Key: key, ConsistentRead: aws.Bool(true)}
}

var attributeName = regexp.MustCompile(`#\w+`)

func (c Change) input() *dynamodb.UpdateItemInput {
	e := c.expressions()
	return &dynamodb.UpdateItemInput{
		TableName:                           &c.Table,
		Key:                                 c.Key,
		UpdateExpression:                    &e.update,
		ConditionExpression:                 &e.condition,
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

// expressions are a change as DynamoDB takes it.
type expressions struct {
	update, condition string
	names             map[string]string
	values            Item
}

// expressions leave update empty where the change sets nothing.
func (c Change) expressions() expressions {
	e := expressions{names: map[string]string{}, values: Item{":v": N(c.Format)}}
	if c.Set != "" {
		e.update = "SET #v = :v, " + c.Set
		if c.Remove != "" {
			e.update += " REMOVE " + c.Remove
		}
	}
	e.condition = "(attribute_not_exists(#v) OR #v = :v) AND (" + c.Condition + ")"
	for name, v := range c.Values {
		e.values[name] = v
	}
	for _, name := range attributeName.FindAllString(e.update+e.condition, -1) {
		e.names[name] = name[1:]
	}
	return e
}

// retryHarmless has a request sent again only where the try before surely had no effect.
func retryHarmless(o *dynamodb.Options) { o.Retryer = harmlessRetryer{o.Retryer} }

type harmlessRetryer struct{ aws.Retryer }

func (r harmlessRetryer) IsErrorRetryable(err error) bool {
	return harmless(err) && r.Retryer.IsErrorRetryable(err)
}

func harmless(err error) bool {
	if notSent(err) {
		return true
	}
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && isRefusal(answer.HTTPStatusCode())
}
