package dynamoquota_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

func TestDynamoDB(t *testing.T) {
	e := engine.DynamoDB(t)
	quotatest.Run(t, func(t *testing.T) quota.Store { return open(t, e.Client(), e.Prefix(t)) })
}

// open makes the tables and a store over them.
func open(t *testing.T, client *dynamodb.Client, prefix string) quota.Store {
	t.Helper()
	if err := dynamo.Create(t.Context(), client, dynamoquota.Tables(prefix)...); err != nil {
		t.Fatal(err)
	}
	return dynamoquota.New(client, prefix)
}
