package dynamosession

import (
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

const (
	maxDeletes   = 25 // items that DynamoDB deletes in one request
	deleteRounds = 8  // requests for what it leaves over, about 2 s
)

// erase removes all items of the user but E. Their record says by now that nothing
// new may come, so one walk finds all there is.
func (s *Store) erase(ctx context.Context, tag string) error {
	pk, user := keytype.UserEpoch.ItemKey(tag)
	in := &dynamodb.QueryInput{
		TableName:                 &s.table,
		ConsistentRead:            aws.Bool(true),
		KeyConditionExpression:    aws.String("#pk = :pk"),
		ProjectionExpression:      aws.String("#pk, #sk"),
		ExpressionAttributeNames:  map[string]string{"#pk": partition, "#sk": sort},
		ExpressionAttributeValues: dynamo.Item{":pk": dynamo.S(pk)},
	}
	for {
		out, err := s.client.Query(ctx, in)
		if err != nil {
			return eraseFault(err)
		}
		var keys []types.WriteRequest
		for _, key := range out.Items {
			if sk, ok := key[sort].(*types.AttributeValueMemberS); ok && sk.Value != user {
				keys = append(keys, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: key}})
			}
		}
		for batch := range slices.Chunk(keys, maxDeletes) {
			if err := s.delete(ctx, batch); err != nil {
				return eraseFault(err)
			}
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return nil
		}
	}
}

// delete repeats what the store left over under load.
func (s *Store) delete(ctx context.Context, batch []types.WriteRequest) error {
	for round := range deleteRounds {
		if err := dynamo.BackOff(ctx, round); err != nil {
			return err
		}
		out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{s.table: batch}})
		if err != nil {
			return err
		}
		if batch = out.UnprocessedItems[s.table]; len(batch) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d items left over", len(batch))
}

// eraseFault says that the user is disabled and some of the items are there still.
// What failed is told in words only: of the whole it would say that nothing happened.
func eraseFault(err error) error {
	return fmt.Errorf("erase: %w: %v", keytype.ErrOutcomeUnknown, err) //nolint:errorlint // see above
}
