package dynamosession_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
)

// A loaded client leaves over all that it is to delete, and tells of each request.
type loaded struct {
	*dynamodb.Client
	asked func()
}

func (l *loaded) BatchWriteItem(_ context.Context, in *dynamodb.BatchWriteItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.BatchWriteItemOutput, error) {
	l.asked()
	return &dynamodb.BatchWriteItemOutput{UnprocessedItems: in.RequestItems}, nil
}

// L32: an erasure that was begun says that its outcome is unknown, and nothing else; a
// store under load is not pressed.
func TestL32EraseThatIsNotFinished(t *testing.T) {
	e := engine.DynamoDB(t)
	prefix := e.Prefix(t)
	if err := dynamo.Create(t.Context(), e.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var requests atomic.Int64
	m := session.New(dynamosession.New(&loaded{e.Client(), func() {
		if requests.Add(1) == 1 {
			time.AfterFunc(100*time.Millisecond, leave)
		}
	}}, prefix), session.Options{RouteKey: make([]byte, 32)})
	if _, _, err := m.Create(ctx, "t", session.CreateRequest{UserID: "ann"}); err != nil {
		t.Fatal(err)
	}
	_, err := m.Erase(ctx, "t", "ann")
	if !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("erased in part: %v", err)
	}
	if n := requests.Load(); n < 1 || n > 3 {
		t.Errorf("%d requests in 100 ms", n)
	}
}

// An epoch of another format is told in words that say so.
func TestRaiseTenantEpochOfAnotherFormat(t *testing.T) {
	e := engine.DynamoDB(t)
	table := dynamosession.Table(e.Prefix(t))
	if err := dynamo.Create(t.Context(), e.Client(), table); err != nil {
		t.Fatal(err)
	}
	pk, sk := keytype.TenantEpoch.ItemKey("t")
	item := dynamo.Item{table.PartitionKey: dynamo.S(pk), table.SortKey: dynamo.S(sk), dynamo.FormatName: dynamo.N(2), "epoch": dynamo.N(5)}
	if _, err := e.Client().PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table.Name, Item: item}); err != nil {
		t.Fatal(err)
	}
	store := dynamosession.New(e.Client(), strings.TrimSuffix(table.Name, keytype.Session.TableName("")))
	if _, err := store.RaiseTenantEpoch(t.Context(), "t"); !errors.Is(err, keytype.ErrUnavailable) || strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v", err)
	}
}
