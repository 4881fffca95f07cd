package dynamo_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
)

// Every operation that a store uses is counted, under the name of its table.
func TestMeterCountsEachOperation(t *testing.T) {
	e := engine.DynamoDB(t)
	table := dynamo.Table{Name: e.Prefix(t) + "metered", PartitionKey: "pk"}
	units := map[string]float64{}
	client := e.Client(dynamo.Meter(func(of, operation string, n float64) {
		if of != table.Name {
			t.Errorf("%s in the table %q", operation, of)
		}
		units[operation] += n
	}))
	if err := dynamo.Create(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	key := dynamo.Item{"pk": dynamo.S("a")}
	change := func(pk, condition string) dynamo.Change {
		return dynamo.Change{Table: table.Name, Key: dynamo.Item{"pk": dynamo.S(pk)}, Format: 1, Set: "#n = :n", Condition: condition, Values: dynamo.Item{":n": dynamo.N(1)}}
	}
	for name, do := range map[string]func() error{
		"UpdateItem": func() error {
			_, err := dynamo.Update(t.Context(), client, change("a", "attribute_not_exists(#n)"))
			return err
		},
		"GetItem": func() error { _, err := dynamo.Get(t.Context(), client, table.Name, key); return err },
		"PutItem": func() error {
			_, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table.Name, Item: key})
			return err
		},
		"BatchGetItem": func() error {
			_, err := dynamo.GetAll(t.Context(), client, table.Name, []string{"a", "b"})
			return err
		},
		"BatchWriteItem": func() error {
			_, err := client.BatchWriteItem(t.Context(), &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{
				table.Name: {{PutRequest: &types.PutRequest{Item: key}}},
			}})
			return err
		},
		"Query": func() error {
			_, err := client.Query(t.Context(), &dynamodb.QueryInput{
				TableName: &table.Name, KeyConditionExpression: aws.String("pk = :pk"), ExpressionAttributeValues: dynamo.Item{":pk": dynamo.S("a")},
			})
			return err
		},
		"TransactWriteItems": func() error {
			_, err := dynamo.Transact(t.Context(), client, engine.FreshPrefix(), change("b", "attribute_not_exists(#n)"))
			return err
		},
	} {
		before := maps.Clone(units)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if units[name] <= before[name] || len(units) != len(before)+1 {
			t.Errorf("%s: counted %v, before it %v", name, units, before)
		}
	}
	t.Log(slices.Sorted(maps.Keys(units)), fmt.Sprint(units))
	before := maps.Clone(units)
	if r, err := dynamo.Update(t.Context(), client, change("b", "attribute_not_exists(#n)")); err != nil || r.Applied {
		t.Fatalf("the second write of b: %+v, %v", r, err)
	}
	if !maps.Equal(units, before) {
		t.Errorf("a refused write, whose answer says nothing: %v, before it %v", units, before)
	}
}
