package dynamoquota

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

// Due implements quota.Store. The index lags behind the table by moments.
func (s *Store) Due(ctx context.Context, cutoff time.Time, limit int) ([]quota.Due, error) {
	var all []quota.Due
	for n := range dueShards {
		if len(all) == limit {
			break
		}
		found, err := s.dueIn(ctx, shard(n), cutoff, limit-len(all))
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", byDue, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s *Store) dueIn(ctx context.Context, shard string, cutoff time.Time, limit int) (found []quota.Due, err error) {
	out, err := s.client.Query(ctx, &dynamodb.QueryInput{
		TableName: &s.tables.reservations, IndexName: aws.String(byDue), Limit: aws.Int32(int32(limit)), //nolint:gosec // a sweep's batch
		KeyConditionExpression:    aws.String("#due_shard = :shard AND #due <= :cutoff"),
		ExpressionAttributeNames:  map[string]string{"#due_shard": dueShard, "#due": due},
		ExpressionAttributeValues: dynamo.Item{":shard": dynamo.S(shard), ":cutoff": dynamo.S(dueAt(cutoff))},
	}, dynamo.Track)
	if err != nil {
		return nil, dynamo.ReadFault("query", err)
	}
	for _, item := range out.Items {
		r := dynamo.Read(item, format)
		key, ok := keytype.QuotaReservation.Split(r.Str("pk"))
		if err := r.Err(); err != nil || !ok {
			return nil, damage(fmt.Errorf("dynamoquota: reservation with the key %q: %w", r.Str("pk"), err))
		}
		found = append(found, quota.Due{ID: quota.ID{Tenant: key[0], Name: key[1], Subject: key[2]}, Reservation: key[3]})
	}
	return found, nil
}
