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

// maxDeletes is how many items DynamoDB deletes in one request.
const maxDeletes = 25

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
	for range maxRounds {
		out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{s.table: batch}})
		if err != nil {
			return err
		}
		if batch = out.UnprocessedItems[s.table]; len(batch) == 0 {
			return nil
		}
	}
	return errContended
}

// eraseFault says that the user is disabled and some of the items are there still.
func eraseFault(err error) error {
	return fmt.Errorf("erase: %w: %w", keytype.ErrOutcomeUnknown, err)
}
