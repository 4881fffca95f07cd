package dynamolease

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/lease"
)

// L4: a node learns of a raised floor within its age, and reads it no more often.
func TestL4NodesLearnTheFloor(t *testing.T) {
	e := engine.DynamoDB(t)
	prefix, wire := e.Prefix(t), &dynamotest.Wire{}
	if err := dynamo.Create(t.Context(), e.Client(), Table(prefix)); err != nil {
		t.Fatal(err)
	}
	operator, node := New(e.Client(), prefix), New(e.Client(wire.Option), prefix)
	now := time.Now()
	node.floor.now = func() time.Time { return now }
	resource := 0
	grant := func(why string, want fencing.Token, requests int) {
		t.Helper()
		resource++
		g, err := lease.New(node, lease.Options{}).Acquire(t.Context(), "t", string(rune('a'+resource)), lease.AcquireRequest{Owner: "w", TTL: time.Second})
		if err != nil || g.Token != want {
			t.Errorf("%s: token %d, %v, want %d", why, g.Token, err, want)
		}
		if sent := len(wire.Take()); sent != requests {
			t.Errorf("%s: %d requests, want %d", why, sent, requests)
		}
	}
	grant("the first looks for a floor", 1, 2)
	if _, err := operator.RaiseFloor(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	now = now.Add(floorAge - 1)
	grant("what it knows is young enough", 1, 1)
	now = now.Add(1)
	grant("now it is too old", 51, 2)
	grant("and young again", 51, 1)
	if floorAge >= lease.FloorDelay {
		t.Errorf("a floor may be used for %v, but is promised after %v", floorAge, lease.FloorDelay)
	}
}

// L1, L3: DynamoDB removes no item of the table: neither a lease nor a mark has an end there.
func TestL1L3TheTableHasNoTTL(t *testing.T) {
	e := engine.DynamoDB(t)
	table := Table(e.Prefix(t))
	if err := dynamo.Create(t.Context(), e.Client(), table); err != nil {
		t.Fatal(err)
	}
	out, err := e.Client().DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &table.Name})
	if err != nil || out.TimeToLiveDescription == nil || out.TimeToLiveDescription.TimeToLiveStatus != types.TimeToLiveStatusDisabled {
		t.Errorf("time to live: %+v, %v", out, err)
	}
}
