package dynamo_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

func number(text string) types.AttributeValue { return &types.AttributeValueMemberN{Value: text} }

func TestCreateIsIdempotent(t *testing.T) {
	e := engine.DynamoDB(t)
	client, prefix := e.Client(), e.Prefix(t)
	tables := []dynamo.Table{
		{Name: prefix + "a", PartitionKey: "pk"},
		{Name: prefix + "b", PartitionKey: "pk", SortKey: "sk", TTL: "ttl", Indexes: []dynamo.Index{
			{Name: "by_sk", PartitionKey: "sk", SortKey: "pk"}, {Name: "by_x", PartitionKey: "x"},
		}},
	}
	missing, ok := errors.AsType[*dynamo.MissingError](dynamo.Check(t.Context(), client, tables...))
	if !ok || !slices.Equal(missing.Tables, []string{prefix + "a", prefix + "b"}) {
		t.Errorf("before: got %v, want both tables missing", missing)
	}
	for range 2 {
		if err := dynamo.Create(t.Context(), client, tables...); err != nil {
			t.Fatal(err)
		}
	}
	if err := dynamo.Check(t.Context(), client, tables...); err != nil {
		t.Errorf("after: %v", err)
	}
	ttl, err := client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &tables[1].Name})
	if err != nil || aws.ToString(ttl.TimeToLiveDescription.AttributeName) != "ttl" {
		t.Errorf("TTL: %v, %v", ttl, err)
	}
}

func TestOtherKeysAreRefused(t *testing.T) {
	e := engine.DynamoDB(t)
	client, name := e.Client(), e.Prefix(t)+"a"
	if err := dynamo.Create(t.Context(), client, dynamo.Table{Name: name, PartitionKey: "id", TTL: "expires"}); err != nil {
		t.Fatal(err)
	}
	other := dynamo.Table{Name: name, PartitionKey: "pk", SortKey: "sk"}
	for what, err := range map[string]error{
		"create":        dynamo.Create(t.Context(), client, other),
		"check":         dynamo.Check(t.Context(), client, other),
		"no such index": dynamo.Check(t.Context(), client, dynamo.Table{Name: name, PartitionKey: "id", Indexes: []dynamo.Index{{Name: "x", PartitionKey: "id"}}}),
		"another TTL":   dynamo.Create(t.Context(), client, dynamo.Table{Name: name, PartitionKey: "id", TTL: "ttl"}),
	} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: got %v, want an error that names the table and what is wanted", what, err)
		}
	}
}

func TestCheckWithoutAStore(t *testing.T) {
	s := serve(t, drop)
	err := dynamo.Check(t.Context(), client(s.URL, keys), dynamo.Table{Name: "a", PartitionKey: "pk"})
	expect(t, err, keytype.ErrUnavailable)
}

func TestOtherIndexesAreRefused(t *testing.T) {
	e := engine.DynamoDB(t)
	client, name := e.Client(), e.Prefix(t)+"a"
	with := func(indexes ...dynamo.Index) dynamo.Table {
		return dynamo.Table{Name: name, PartitionKey: "pk", Indexes: indexes}
	}
	if err := dynamo.Create(t.Context(), client, with(dynamo.Index{Name: "by_x", PartitionKey: "x", SortKey: "pk"})); err != nil {
		t.Fatal(err)
	}
	if err := dynamo.Check(t.Context(), client, with()); err != nil {
		t.Errorf("an index more than wanted: %v", err)
	}
	for what, other := range map[string]dynamo.Table{
		"another key": with(dynamo.Index{Name: "by_x", PartitionKey: "x"}),
		"no index":    with(dynamo.Index{Name: "by_y", PartitionKey: "x", SortKey: "pk"}),
	} {
		for _, err := range []error{dynamo.Create(t.Context(), client, other), dynamo.Check(t.Context(), client, other)} {
			if err == nil || !strings.Contains(err.Error(), other.Indexes[0].Name) || !strings.Contains(err.Error(), "want") {
				t.Errorf("%s: got %v, want an error that names the index and what is wanted", what, err)
			}
		}
	}
}
