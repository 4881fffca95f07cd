package dynamoidempotency_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/idempotency/dynamoidempotency"
	"github.com/coordsvc/coordsvc/idempotency/idempotencytest"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
)

func TestDynamoDB(t *testing.T) {
	e := engine.DynamoDB(t)
	idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return open(t, e.Client(), e.Prefix(t)) })
}

// open makes the table and the store over it.
func open(t *testing.T, client *dynamodb.Client, prefix string) idempotency.Store {
	t.Helper()
	if err := dynamo.Create(t.Context(), client, dynamoidempotency.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return dynamoidempotency.New(client, prefix)
}
