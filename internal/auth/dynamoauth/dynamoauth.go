// Package dynamoauth decides how API keys lie in DynamoDB: one item a key, found
// by id for every request, and an index by tenant for listing.
package dynamoauth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// format is the item's format number; it changes with the attributes.
const format = 1

// byTenant is the index that List reads.
const byTenant = "by_tenant"

// client is what the store uses of the SDK's client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
}

// A Store is an auth.Store in one DynamoDB table.
type Store struct {
	client client
	table  string
}

// New makes a store on the table of the prefix, which must exist.
func New(client client, prefix string) *Store {
	return &Store{client: client, table: keytype.APIKey.TableName(prefix)}
}

// Table says what the store needs of its table.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{
		Name:         keytype.APIKey.TableName(prefix),
		PartitionKey: "pk",
		Indexes:      []dynamo.Index{{Name: byTenant, PartitionKey: "tenant", SortKey: "id"}},
	}
}

// Get implements auth.Store with a strongly consistent read.
func (s *Store) Get(ctx context.Context, id string) (auth.Record, bool, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &s.table, Key: key(id), ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return auth.Record{}, false, dynamo.ReadFault("get key", err)
	}
	rec, err := record(out.Item)
	return rec, len(out.Item) > 0, err
}

// Insert implements auth.Store.
func (s *Store) Insert(ctx context.Context, rec auth.Record) (auth.Record, error) {
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:                           &s.table,
		Item:                                item(rec),
		ConditionExpression:                 aws.String("attribute_not_exists(#pk)"),
		ExpressionAttributeNames:            map[string]string{"#pk": "pk"},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, dynamo.Track)
	if err == nil {
		return rec, nil
	}
	stands, found, err := s.standing(ctx, "insert key", rec.ID, err)
	if err == nil && !found {
		err = fmt.Errorf("insert key: %s is taken and not there", rec.ID)
	}
	return stands, err
}

// List implements auth.Store. The index lags behind the table, by a second as a rule.
func (s *Store) List(ctx context.Context, tenant string) ([]auth.Record, error) {
	var recs []auth.Record
	pages := dynamodb.NewQueryPaginator(s.client, &dynamodb.QueryInput{
		TableName:                 &s.table,
		IndexName:                 aws.String(byTenant),
		KeyConditionExpression:    aws.String("#tenant = :tenant"),
		FilterExpression:          aws.String("attribute_not_exists(#revoked)"),
		ExpressionAttributeNames:  map[string]string{"#tenant": "tenant", "#revoked": "revoked"},
		ExpressionAttributeValues: dynamo.Item{":tenant": dynamo.S(tenant)},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, dynamo.ReadFault("list keys", err)
		}
		for _, it := range page.Items {
			rec, err := record(it)
			if err != nil {
				return nil, err
			}
			recs = append(recs, rec)
		}
	}
	return recs, nil
}

// Revoke implements auth.Store.
func (s *Store) Revoke(ctx context.Context, tenant, id string, at time.Time) (bool, error) {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                &s.table,
		Key:                      key(id),
		UpdateExpression:         aws.String("SET #revoked = if_not_exists(#revoked, :at)"),
		ConditionExpression:      aws.String("#tenant = :tenant AND #v = :v"),
		ExpressionAttributeNames: map[string]string{"#revoked": "revoked", "#tenant": "tenant", "#v": dynamo.FormatName},
		ExpressionAttributeValues: dynamo.Item{
			":at": dynamo.N(at.UnixMilli()), ":tenant": dynamo.S(tenant), ":v": dynamo.N(format),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, dynamo.Track)
	if err == nil {
		return true, nil
	}
	rec, found, err := s.standing(ctx, "revoke key", id, err)
	if err == nil && found && rec.Tenant == tenant {
		err = fmt.Errorf("revoke key: %s was refused and is there", id)
	}
	return false, err
}

// standing returns the record that a failed condition met, and passes faults
// on. An engine may not hand out the item: then it is read.
func (s *Store) standing(ctx context.Context, op, id string, err error) (auth.Record, bool, error) {
	old, failed := dynamo.FailedCondition(err)
	switch {
	case !failed:
		return auth.Record{}, false, dynamo.Fault(op, err)
	case len(old) == 0:
		return s.Get(ctx, id)
	}
	rec, err := record(old)
	return rec, true, err
}

func key(id string) dynamo.Item { return dynamo.Item{"pk": dynamo.S(keytype.APIKey.Key(id))} }

// item spells a record. Instants are Unix milliseconds, absent where there is none.
func item(rec auth.Record) dynamo.Item {
	scopes := make([]string, len(rec.Scopes))
	for i, s := range rec.Scopes {
		scopes[i] = string(s)
	}
	it := key(rec.ID)
	it[dynamo.FormatName] = dynamo.N(format)
	it["id"] = dynamo.S(rec.ID)
	it["tenant"] = dynamo.S(rec.Tenant)
	it["name"] = dynamo.S(rec.Name)
	it["scopes"] = &types.AttributeValueMemberSS{Value: scopes}
	it["hash"] = dynamo.B(rec.Hash[:])
	for name, t := range map[string]time.Time{"created": rec.CreatedAt, "expires": rec.ExpiresAt, "revoked": rec.RevokedAt} {
		if !t.IsZero() {
			it[name] = dynamo.N(t.UnixMilli())
		}
	}
	return it
}

// record undoes item; no item is the zero record.
func record(it dynamo.Item) (auth.Record, error) {
	r := dynamo.Read(it, format)
	rec := auth.Record{Key: auth.Key{
		ID:        r.Str("id"),
		Tenant:    r.Str("tenant"),
		Name:      r.Str("name"),
		CreatedAt: instant(r, "created"),
		ExpiresAt: instant(r, "expires"),
		RevokedAt: instant(r, "revoked"),
	}}
	if set, ok := it["scopes"].(*types.AttributeValueMemberSS); ok {
		for _, s := range slices.Sorted(slices.Values(set.Value)) {
			rec.Scopes = append(rec.Scopes, auth.Scope(s))
		}
	}
	copy(rec.Hash[:], r.Bytes("hash"))
	if err := r.Err(); err != nil {
		return auth.Record{}, fmt.Errorf("read key: %w", err)
	}
	return rec, nil
}

func instant(r *dynamo.Reader, name string) time.Time {
	if !r.Has(name) {
		return time.Time{}
	}
	return time.UnixMilli(r.Int(name)).UTC()
}
