package dynamofence_test

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
)

// A shop is a caller with a table of its own beside ours.
type shop struct {
	*testing.T
	client *dynamodb.Client
	prefix string
	table  string
	leases *lease.Manager
	now    time.Time
}

func newShop(t *testing.T) *shop {
	e := engine.DynamoDB(t)
	s := &shop{T: t, client: e.Client(), prefix: e.Prefix(t), now: time.Now()}
	s.table = s.prefix + "orders"
	if err := dynamo.Create(t.Context(), s.client, dynamolease.Table(s.prefix), dynamo.Table{Name: s.table, PartitionKey: "id"}); err != nil {
		t.Fatal(err)
	}
	s.leases = lease.New(dynamolease.New(s.client, s.prefix), lease.Options{Now: func() time.Time { return s.now }})
	return s
}

func (s *shop) acquire() lease.Grant {
	s.Helper()
	s.now = s.now.Add(time.Minute) // whoever held it has lost it
	g, err := s.leases.Acquire(s.Context(), "t", "r", lease.AcquireRequest{Owner: "w", TTL: time.Second})
	if err != nil {
		s.Fatal(err)
	}
	return g
}

func (s *shop) key() map[string]types.AttributeValue { return dynamo.Item{"id": dynamo.S("o-17")} }

func TestL15GuardInACallersOwnUpdate(t *testing.T) {
	s := newShop(t)
	update := func(token fencing.Token) error {
		guard := dynamofence.Condition(token)
		_, err := s.client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: s.key(), UpdateExpression: aws.String("SET " + guard.Set), ConditionExpression: &guard.Condition,
			ExpressionAttributeNames: guard.Names, ExpressionAttributeValues: guard.Values,
		})
		return err
	}
	for _, step := range []struct {
		why     string
		token   fencing.Token
		refused bool
	}{{"the first", 5, false}, {"again", 5, false}, {"stale", 4, true}, {"larger", 7, false}, {"stale now", 5, true}} {
		if err := update(step.token); dynamofence.Refused(err) != step.refused || (err != nil) != step.refused {
			t.Errorf("%s: %v", step.why, err)
		}
	}
}

// A caller's transaction that carries the check is refused from the takeover on,
// although its own item has never seen the new holder.
func TestL31HeldInACallersOwnTransaction(t *testing.T) {
	s := newShop(t)
	ship := func(g lease.Grant) error {
		guard := dynamofence.Condition(g.Token)
		_, err := s.client.TransactWriteItems(t.Context(), &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
			{Update: &types.Update{
				TableName: &s.table, Key: s.key(), UpdateExpression: aws.String("SET " + guard.Set), ConditionExpression: &guard.Condition,
				ExpressionAttributeNames: guard.Names, ExpressionAttributeValues: guard.Values,
			}},
			dynamofence.Held(s.prefix, "t", "r", g.Token, g.ID),
		}})
		return err
	}
	a := s.acquire()
	if err := ship(a); err != nil {
		t.Errorf("the holder: %v", err)
	}
	b := s.acquire()
	if err := ship(a); !dynamofence.Refused(err) {
		t.Errorf("the holder before: %v", err)
	}
	if err := ship(b); err != nil {
		t.Errorf("the new holder: %v", err)
	}
	if err := s.leases.Release(t.Context(), "t", "r", lease.Holder{ID: b.ID, Token: b.Token}); err != nil {
		t.Fatal(err)
	}
	if err := ship(b); !dynamofence.Refused(err) {
		t.Errorf("after the release: %v", err)
	}
}

func TestL32AConflictIsNoRefusal(t *testing.T) {
	canceled := func(codes ...string) error {
		e := &types.TransactionCanceledException{}
		for _, c := range codes {
			e.CancellationReasons = append(e.CancellationReasons, types.CancellationReason{Code: &c})
		}
		return e
	}
	for _, err := range []error{nil, errors.New("x"), canceled("TransactionConflict", "None"), canceled("ThrottlingError"), canceled()} {
		if dynamofence.Refused(err) {
			t.Errorf("%v counts as a refusal", err)
		}
	}
	if !dynamofence.Refused(canceled("None", "ConditionalCheckFailed", "TransactionConflict")) {
		t.Error("a failed condition among the reasons is none")
	}
}
