// Package dynamoaudit decides how audit events lie in DynamoDB: a tenant's month
// is spread over several partition keys, in each of which its events lie by id.
package dynamoaudit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// format is the item's format number; it changes with the attributes.
const format = 1

// shards is the number of partition keys of a tenant's month. DynamoDB takes
// 1,000 small writes a second under one partition key and cannot split it at a
// sort key that only grows; a tenant whose users all log in again after being
// logged out writes more. Reading asks all of them, so there are not more. A
// change of the number needs a new format: events would not be found.
const shards = 8

// client is what the store uses of the SDK's client. Nothing here updates or
// deletes, so the service's role for this table needs neither.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
}

// A Store is an audit.Store in one DynamoDB table.
type Store struct {
	client client
	table  string
}

// New makes a store on the table of the prefix, which must exist.
func New(client client, prefix string) *Store {
	return &Store{client: client, table: keytype.AuditEvent.TableName(prefix)}
}

// Table says what the store needs of its table.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{Name: keytype.AuditEvent.TableName(prefix), PartitionKey: "pk", SortKey: "sk", TTL: "ttl"}
}

// Append implements audit.Store.
func (s *Store) Append(ctx context.Context, e audit.Event) error {
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:                           &s.table,
		Item:                                item(e),
		ConditionExpression:                 aws.String("attribute_not_exists(#pk)"),
		ExpressionAttributeNames:            map[string]string{"#pk": "pk"},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, dynamo.Track)
	if old, taken := dynamo.FailedCondition(err); taken {
		return s.confirm(ctx, e, old)
	}
	return dynamo.Fault("append event", err)
}

// errIDTaken is met when the random source repeats itself.
var errIDTaken = fmt.Errorf("dynamoaudit: another event has the id: %w", keytype.ErrUnavailable)

// confirm says whether what stands under the event's id is the event: then an
// earlier try stored it. An engine may not hand out the item: then it is read.
func (s *Store) confirm(ctx context.Context, e audit.Event, stands dynamo.Item) error {
	if len(stands) == 0 {
		out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &s.table, Key: key(e.Tenant, e.ID), ConsistentRead: aws.Bool(true),
		})
		if err != nil {
			return dynamo.ReadFault("confirm event", err)
		}
		stands = out.Item
	}
	got, err := event(stands)
	switch {
	case err != nil:
		return fmt.Errorf("append event: %w: %w", keytype.ErrUnavailable, err)
	case got != e:
		return fmt.Errorf("append event: %w", errIDTaken)
	}
	return nil
}

// Page implements audit.Store, month by month, with strongly consistent reads. A
// tenant without events costs shards queries for each month of the span, 120 for
// the whole retention.
func (s *Store) Page(ctx context.Context, tenant string, oldest, before audit.ID, limit int) ([]audit.Event, error) {
	var events []audit.Event
	for month := range months(before.Time(), oldest.Time()) {
		found, err := s.month(ctx, tenant, month, before, limit-len(events))
		if err != nil {
			return nil, err
		}
		if events = append(events, found...); len(events) == limit {
			break
		}
	}
	tooOld := slices.IndexFunc(events, func(e audit.Event) bool { return e.ID.Compare(oldest) < 0 })
	if tooOld >= 0 {
		events = events[:tooOld]
	}
	return events, nil
}

// month returns the month's events before the id, at most limit, newest first. It
// asks every shard for as many, since they may all lie in one.
func (s *Store) month(ctx context.Context, tenant, month string, before audit.ID, limit int) ([]audit.Event, error) {
	var found [shards][]audit.Event
	var errs [shards]error
	var wg sync.WaitGroup
	for n := range shards {
		wg.Go(func() { found[n], errs[n] = s.shard(ctx, partition(tenant, month, n), before, limit) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	events := slices.Concat(found[:]...)
	slices.SortFunc(events, func(a, b audit.Event) int { return b.ID.Compare(a.ID) })
	return events[:min(limit, len(events))], nil
}

// shard returns one partition key's events before the id, at most limit, newest first.
func (s *Store) shard(ctx context.Context, partition string, before audit.ID, limit int) ([]audit.Event, error) {
	var events []audit.Event
	pages := dynamodb.NewQueryPaginator(s.client, &dynamodb.QueryInput{
		TableName:                 &s.table,
		KeyConditionExpression:    aws.String("#pk = :pk AND #sk < :before"),
		ExpressionAttributeNames:  map[string]string{"#pk": "pk", "#sk": "sk"},
		ExpressionAttributeValues: dynamo.Item{":pk": dynamo.S(partition), ":before": dynamo.S(before.String())},
		ScanIndexForward:          aws.Bool(false),
		ConsistentRead:            aws.Bool(true),
		Limit:                     aws.Int32(int32(limit)), //nolint:gosec // a page's length
	})
	for pages.HasMorePages() && len(events) < limit {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, dynamo.ReadFault("read events", err)
		}
		for _, it := range page.Items {
			e, err := event(it)
			if err != nil {
				return nil, fmt.Errorf("read events: %w: %w", keytype.ErrUnavailable, err)
			}
			events = append(events, e)
		}
	}
	return events, nil
}

const monthFormat = "2006-01"

// months yields the months from the newer instant's down to the older one's.
func months(newer, older time.Time) iter.Seq[string] {
	first := func(t time.Time) time.Time { return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC) }
	return func(yield func(string) bool) {
		for m := first(newer); !m.Before(first(older)); m = m.AddDate(0, -1, 0) {
			if !yield(m.Format(monthFormat)) {
				return
			}
		}
	}
}

// partition is the partition key of a tenant's month and shard.
func partition(tenant, month string, shard int) string {
	return keytype.AuditEvent.Key(tenant, fmt.Sprintf("%s.%d", month, shard))
}

// key places an event. The shard follows from the id, so that an append that is
// repeated meets itself; the id's last bits count up within a millisecond, so
// that a burst goes round all shards.
func key(tenant string, id audit.ID) dynamo.Item {
	shard := int(id[len(id)-1]) % shards
	return dynamo.Item{
		"pk": dynamo.S(partition(tenant, id.Time().Format(monthFormat), shard)),
		"sk": dynamo.S(id.String()),
	}
}

// item spells an event. The instant, in Unix milliseconds, is for those who
// export the table; the service reads it from the id.
func item(e audit.Event) dynamo.Item {
	it := key(e.Tenant, e.ID)
	it[dynamo.FormatName] = dynamo.N(format)
	it["ttl"] = dynamo.N(e.At().Add(audit.Retention).Unix() + 1) // not before its last millisecond
	it["at"] = dynamo.N(e.At().UnixMilli())
	it["repeats"] = dynamo.N(e.Repeats)
	for name, text := range map[string]string{
		"tenant": e.Tenant, "actor": e.Actor, "action": string(e.Action), "user": e.User, "subject": e.Subject,
		"reason": e.Reason, "request_id": e.RequestID, "outcome": string(e.Outcome),
	} {
		if text != "" {
			it[name] = dynamo.S(text)
		}
	}
	return it
}

// event undoes item.
func event(it dynamo.Item) (audit.Event, error) {
	r := dynamo.Read(it, format)
	id, err := audit.ParseID(r.Str("sk"))
	e := audit.Event{
		ID:        id,
		Tenant:    r.Str("tenant"),
		Actor:     r.Str("actor"),
		Action:    audit.Action(r.Str("action")),
		User:      r.Str("user"),
		Subject:   r.Str("subject"),
		Reason:    r.Str("reason"),
		RequestID: r.Str("request_id"),
		Outcome:   audit.Outcome(r.Str("outcome")),
		Repeats:   int(r.Int("repeats")),
	}
	if err := errors.Join(r.Err(), err); err != nil {
		return audit.Event{}, fmt.Errorf("read event: %w", err)
	}
	return e, nil
}
