// Package probe decides whether an engine behaves like DynamoDB where
// coordination needs it to: conditions, what a refused write returns,
// transactions, exact numbers, atomicity under concurrency.
//
// Its expectations follow AWS's documentation; they were not checked against AWS.
package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// A Result is one check's outcome.
type Result struct {
	Name   string
	Detail string // why it failed
	OK     bool
	Dur    time.Duration
}

// TTLCheck is the name of the one check that waits for an engine's own time.
const TTLCheck = "ttl.expired items actually deleted"

type check struct {
	name string
	f    func(t *subject) error
}

// Run makes a table with the given name and runs every check on it. Checks are
// independent of each other, but for the table: if it cannot be made, its is the
// only result. A ttlWait above zero also waits as long for expired items to
// vanish.
func Run(ctx context.Context, client *dynamodb.Client, table string, ttlWait time.Duration) []Result {
	t := &subject{client: client, table: table, ctx: ctx}
	results := []Result{t.run(check{"ctl.CreateTable PAY_PER_REQUEST + 2 GSIs", createTable})}
	if !results[0].OK {
		return results
	}
	checks := slices.Concat(
		[]check{{"ctl.TableExists waiter (TableStatus ACTIVE)", waitActive}},
		controlChecks(), writeChecks(), conditionChecks(), transactionChecks(), readChecks(),
		numberChecks(), validationChecks(), relianceChecks(), concurrencyChecks(),
	)
	if ttlWait > 0 {
		checks = append(checks, check{TTLCheck, func(t *subject) error { return expiredGone(t, time.Now().Add(ttlWait)) }})
	}
	for _, c := range checks {
		results = append(results, t.run(c))
	}
	return results
}

// run turns a check's panic into a failure: an engine may return anything.
// unread is in the SDK's error where the connection broke while it read an error
// body, as happens now and then where an engine answers before it has read the
// request: that says nothing of the engine, so the check is made once more.
const unread = "failed to copy error respon"

func (t *subject) try(c check) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return c.f(t)
}

func (t *subject) run(c check) Result {
	begin := time.Now()
	err := t.try(c)
	if err != nil && strings.Contains(err.Error(), unread) {
		err = t.try(c)
	}
	r := Result{Name: c.name, OK: err == nil, Dur: time.Since(begin)}
	if err != nil {
		r.Detail = err.Error()
	}
	return r
}

func tableInput(name string) *dynamodb.CreateTableInput {
	return &dynamodb.CreateTableInput{
		TableName: &name, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: new("pk"), AttributeType: "S"},
			{AttributeName: new("sk"), AttributeType: "S"},
			{AttributeName: new("gpk"), AttributeType: "S"},
			{AttributeName: new("gsk"), AttributeType: "N"},
		},
		KeySchema: []types.KeySchemaElement{{AttributeName: new("pk"), KeyType: "HASH"}, {AttributeName: new("sk"), KeyType: "RANGE"}},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{
			{
				IndexName: new("gsi1"), KeySchema: []types.KeySchemaElement{{AttributeName: new("gpk"), KeyType: "HASH"}, {AttributeName: new("gsk"), KeyType: "RANGE"}},
				Projection: &types.Projection{ProjectionType: "ALL"},
			},
			{
				IndexName: new("gsi2"), KeySchema: []types.KeySchemaElement{{AttributeName: new("gpk"), KeyType: "HASH"}},
				Projection: &types.Projection{ProjectionType: "KEYS_ONLY"},
			},
		},
	}
}

func createTable(t *subject) error {
	_, err := t.client.CreateTable(t.ctx, tableInput(t.table))
	return err
}

func waitActive(t *subject) error {
	return dynamodb.NewTableExistsWaiter(t.client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay = 50 * time.Millisecond
		o.MaxDelay = time.Second
	}).
		Wait(t.ctx, &dynamodb.DescribeTableInput{TableName: &t.table}, 5*time.Second)
}

// expiredGone wants expired items deleted by the deadline, and no other.
func expiredGone(t *subject, deadline time.Time) error {
	now := int(time.Now().Unix())
	err := errors.Join(
		t.put(item{"pk": text("ttl-old"), "sk": text("a"), "ttl": integer(now - 3600)}),
		t.put(item{"pk": text("ttl-soon"), "sk": text("a"), "ttl": integer(now + 2)}),
		t.put(item{"pk": text("ttl-future"), "sk": text("a"), "ttl": integer(now + 36000)}),
	)
	if err != nil {
		return err
	}
	for {
		a, e1 := t.get("ttl-old")
		b, e2 := t.get("ttl-soon")
		f, e3 := t.get("ttl-future")
		if e := errors.Join(e1, e2, e3); e != nil {
			return e
		}
		if len(f) == 0 {
			return errors.New("future item deleted")
		}
		if len(a) == 0 && len(b) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("old gone=%v soon gone=%v", len(a) == 0, len(b) == 0)
		}
		time.Sleep(250 * time.Millisecond)
	}
}
