package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/keytype"
)

// batches is what reading many items uses of the client.
type batches interface {
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
}

// batchRounds bounds the requests for what DynamoDB left over, which it does when it throttles.
const batchRounds = 4

// GetAll reads at most 100 items of different string keys pk, each strongly consistent,
// not all at one moment. They come by that key, without those that do not exist;
// errors are keytype.ErrUnavailable.
func GetAll(ctx context.Context, client batches, table string, pks []string) (map[string]Item, error) {
	left := types.KeysAndAttributes{ConsistentRead: aws.Bool(true)}
	for _, pk := range pks {
		left.Keys = append(left.Keys, Item{"pk": S(pk)})
	}
	found := map[string]Item{}
	for round := range batchRounds {
		if err := BackOff(ctx, round); err != nil {
			return nil, ReadFault("get all", err)
		}
		out, err := client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{table: left}})
		if err != nil {
			return nil, ReadFault("get all", err)
		}
		for _, item := range out.Responses[table] {
			if pk, ok := item["pk"].(*types.AttributeValueMemberS); ok {
				found[pk.Value] = item
			}
		}
		if left = out.UnprocessedKeys[table]; len(left.Keys) == 0 {
			return found, nil
		}
		left.ConsistentRead = aws.Bool(true)
	}
	return nil, fmt.Errorf("get all: %d left over: %w", len(left.Keys), keytype.ErrUnavailable)
}

// BackOff waits before that round of a batch for what the round before left over: not
// before round 0, then 50 ms, and twice as long each time up to 400 ms.
func BackOff(ctx context.Context, round int) error {
	if round == 0 {
		return nil
	}
	return sleep(ctx, 25*time.Millisecond<<min(round, 4))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
