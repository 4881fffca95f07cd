package dynamolease

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// byOwner finds an owner's leases that have not been released. It holds keys alone, and
// an item changes in it when it is granted or released, never when it is renewed.
var byOwner = dynamo.Index{Name: "by_owner", PartitionKey: ownerKey, SortKey: "pk", KeysOnly: true}

// List implements lease.Store: the index lags, the items that it finds do not.
func (s *Store) List(ctx context.Context, tenant string, op lease.ListOp) ([]lease.Owned, string, error) {
	owned, next, err := s.list(ctx, tenant, op)
	if err != nil {
		return nil, "", fmt.Errorf("list leases: %w", err)
	}
	return owned, next, nil
}

func (s *Store) list(ctx context.Context, tenant string, op lease.ListOp) (owned []lease.Owned, next string, err error) {
	in := &dynamodb.QueryInput{
		TableName: &s.table, IndexName: &byOwner.Name, Limit: aws.Int32(int32(op.Limit)), //nolint:gosec // at most lease.MaxPage
		KeyConditionExpression:    aws.String("#owner_key = :owner_key"),
		ExpressionAttributeNames:  map[string]string{"#owner_key": ownerKey},
		ExpressionAttributeValues: dynamo.Item{":owner_key": ownerOf(tenant, op.Owner)},
	}
	if op.After != "" {
		in.ExclusiveStartKey = key(tenant, op.After)
		in.ExclusiveStartKey[ownerKey] = ownerOf(tenant, op.Owner)
	}
	out, err := s.client.Query(ctx, in)
	if err != nil {
		return nil, "", dynamo.ReadFault("query", err)
	}
	var resources []string
	for _, item := range out.Items {
		parts, ok := keytype.Lease.Split(dynamo.Raw(item).Str("pk"))
		if !ok {
			return nil, "", fmt.Errorf("an item of the index has no lease's key: %w", keytype.ErrUnavailable)
		}
		resources = append(resources, parts[1])
	}
	if len(resources) == 0 {
		return nil, "", nil
	}
	all, err := s.readAll(ctx, tenant, resources)
	if err != nil {
		return nil, "", err
	}
	for i, resource := range resources {
		owned = append(owned, lease.Owned{Resource: resource, State: all[i].lease})
	}
	if len(out.LastEvaluatedKey) > 0 {
		next = resources[len(resources)-1]
	}
	return owned, next, nil
}

// ownerOf is what the index finds a lease by.
func ownerOf(tenant, owner string) types.AttributeValue {
	return dynamo.S(keytype.Lease.Prefix(tenant) + owner)
}
