package dynamofence_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/fencing/fencingtest"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
)

func TestDynamoDB(t *testing.T) {
	e := engine.DynamoDB(t)
	fencingtest.Run(t, func(t *testing.T) fencing.Store { return open(t, e.Client(), e.Prefix(t)) })
}

// open makes the tables and a store over them.
func open(t *testing.T, client *dynamodb.Client, prefix string) fencing.Store {
	t.Helper()
	if err := dynamo.Create(t.Context(), client, dynamofence.Table(prefix), dynamolease.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return dynamofence.New(client, prefix)
}
