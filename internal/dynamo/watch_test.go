package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/dynamo"
)

// cancelled is a transaction that DynamoDB refuses for the reasons.
func cancelled(reasons ...string) answer {
	return func(_ *server, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","CancellationReasons":[`)
		for i, r := range reasons {
			if i > 0 {
				_, _ = io.WriteString(w, ",")
			}
			fmt.Fprintf(w, `{"Code":%q}`, r)
		}
		_, _ = io.WriteString(w, `]}`)
	}
}

// Each try is told apart, with what became of it.
func TestWatchTellsOfEveryTry(t *testing.T) {
	transact := func(ctx context.Context, c *dynamodb.Client) error {
		_, err := c.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
			{ConditionCheck: &types.ConditionCheck{TableName: aws.String("t"), ConditionExpression: aws.String("x"), Key: dynamo.Item{"pk": dynamo.S("k"), "sk": dynamo.S("s")}}},
			{Put: &types.Put{TableName: aws.String("other"), Item: dynamo.Item{"pk": dynamo.S("l")}}},
		}})
		return err
	}
	update := func(ctx context.Context, c *dynamodb.Client) error { return write(ctx, c) }
	for _, c := range []struct {
		name    string
		call    func(context.Context, *dynamodb.Client) error
		answers []answer
		want    []dynamo.TryOutcome
	}{
		{"accepted", update, []answer{accept}, []dynamo.TryOutcome{dynamo.TryOK}},
		{"throttled once", update, []answer{refuse(400, "ProvisionedThroughputExceededException"), accept}, []dynamo.TryOutcome{dynamo.TryThrottled, dynamo.TryOK}},
		{"throttled otherwise", update, []answer{refuse(400, "ThrottlingException"), accept}, []dynamo.TryOutcome{dynamo.TryThrottled, dynamo.TryOK}},
		{"refused", update, []answer{refuse(400, "ConditionalCheckFailedException")}, []dynamo.TryOutcome{dynamo.TryRefused}},
		{"broken", update, []answer{refuse(500, "InternalServerError"), drop, accept}, []dynamo.TryOutcome{dynamo.TryFailed, dynamo.TryFailed, dynamo.TryOK}},
		{"no answer", update, []answer{hang}, []dynamo.TryOutcome{dynamo.TryTimeout}},
		{"transaction refused", transact, []answer{cancelled("None", "ConditionalCheckFailed")}, []dynamo.TryOutcome{dynamo.TryRefused}},
		{"transaction conflict", transact, []answer{cancelled("ConditionalCheckFailed", "TransactionConflict")}, []dynamo.TryOutcome{dynamo.TryConflict}},
		{"transaction throttled", transact, []answer{cancelled("None", "ThrottlingError")}, []dynamo.TryOutcome{dynamo.TryThrottled}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.answers...)
			var mu sync.Mutex
			var tries []dynamo.Try // guarded by mu
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if c.want[0] == dynamo.TryTimeout {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			defer cancel()
			watched := dynamodb.New(client(s.URL, keys).Options(), dynamo.Watch(func(try dynamo.Try) {
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, try)
			}))
			err := c.call(ctx, watched)
			last := c.want[len(c.want)-1]
			if (err == nil) != (last == dynamo.TryOK) {
				t.Fatal(err)
			}
			var got []dynamo.TryOutcome
			for _, try := range tries {
				got = append(got, try.Outcome)
				if try.Table != "t" || try.Partition != "k" || try.Took <= 0 || try.Operation == "" {
					t.Errorf("try %+v", try)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("tries %v, want %v: %v", got, c.want, errors.Unwrap(err))
			}
		})
	}
}
