package dynamoquota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

// Due implements quota.Store. The index lags behind the table by moments. No shard
// comes always last, behind one that fills the limit.
func (s *Store) Due(ctx context.Context, cutoff time.Time, limit int) (all []quota.Due, err error) {
	first := int(s.looks.Add(1) % dueShards)
	for n := range dueShards {
		if len(all) == limit {
			break
		}
		found, unread, e := s.dueIn(ctx, shard((first+n)%dueShards), cutoff, limit-len(all))
		all = append(all, found...)
		if err = errors.Join(err, unread); e != nil {
			return all, errors.Join(err, fmt.Errorf("query %s: %w", byDue, e))
		}
	}
	return all, err
}

// dueIn also returns what was wrong with items that it skipped.
func (s *Store) dueIn(ctx context.Context, shard string, cutoff time.Time, limit int) (found []quota.Due, unread, err error) {
	in := &dynamodb.QueryInput{
		TableName: &s.tables.reservations, IndexName: aws.String(byDue), Limit: aws.Int32(int32(limit)), //nolint:gosec // a sweep's batch
		KeyConditionExpression:    aws.String("#due_shard = :shard AND #due <= :cutoff"),
		ExpressionAttributeNames:  map[string]string{"#due_shard": dueShard, "#due": due},
		ExpressionAttributeValues: dynamo.Item{":shard": dynamo.S(shard), ":cutoff": dynamo.S(dueAt(cutoff))},
	}
	for {
		out, err := s.client.Query(ctx, in, dynamo.Track)
		if err != nil {
			return found, unread, dynamo.ReadFault("query", err)
		}
		for _, item := range out.Items {
			d, err := dueOf(item)
			switch {
			case err != nil:
				unread = errors.Join(unread, err)
			case len(found) < limit:
				found = append(found, d)
			}
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(found) == limit || len(in.ExclusiveStartKey) == 0 {
			return found, unread, nil
		}
	}
}

func dueOf(item dynamo.Item) (quota.Due, error) {
	r := dynamo.Read(item, format)
	pk := r.Str("pk")
	key, ok := keytype.QuotaReservation.Split(pk)
	switch err := r.Err(); {
	case err != nil:
		return quota.Due{}, damage(fmt.Errorf("dynamoquota: reservation %q: %w", pk, err))
	case !ok:
		return quota.Due{}, damage(fmt.Errorf("dynamoquota: reservation with the key %q", pk))
	}
	return quota.Due{ID: quota.ID{Tenant: key[0], Name: key[1], Subject: key[2]}, Reservation: key[3]}, nil
}
