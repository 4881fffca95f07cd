package dynamolease_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

func TestDynamoDB(t *testing.T) {
	e := engine.DynamoDB(t)
	leasetest.Run(t, func(t *testing.T) leasetest.Stores { return open(t, e.Client(), e.Prefix(t)) })
}

// open makes the tables and both stores over them.
func open(t *testing.T, client *dynamodb.Client, prefix string) leasetest.Stores {
	t.Helper()
	if err := dynamo.Create(t.Context(), client, dynamolease.Table(prefix), dynamofence.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return leasetest.Stores{Leases: dynamolease.New(client, prefix), Fences: dynamofence.New(client, prefix)}
}
