package dynamo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// createTimeout bounds the wait for one new table: AWS takes some seconds.
const createTimeout = 2 * time.Minute

// A Table says what a store needs of its table.
type Table struct {
	Name         string
	PartitionKey string // a string attribute
	SortKey      string // a string attribute, empty where the table has none
	TTL          string // the attribute with the second after which DynamoDB may remove an item, empty = never
	Indexes      []Index
}

// An Index is another way to a table's items. It lags behind the table.
type Index struct {
	Name         string
	PartitionKey string // a string attribute
	SortKey      string // a string attribute, empty where the index has none
	KeysOnly     bool   // it holds the keys alone, else the items whole
}

func (x Index) projection() types.ProjectionType {
	if x.KeysOnly {
		return types.ProjectionTypeKeysOnly
	}
	return types.ProjectionTypeAll
}

// admin is what creation and checking use of the client.
type admin interface {
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	UpdateTimeToLive(context.Context, *dynamodb.UpdateTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// A MissingError names tables that do not exist.
type MissingError struct{ Tables []string }

func (e *MissingError) Error() string {
	return "dynamo: missing tables: " + strings.Join(e.Tables, ", ")
}

// Create makes the tables that do not exist, billed on demand, and waits until
// all are active. A table that exists is left as it is if its keys and indexes
// are the ones wanted, else an error names it and the difference. Where a table
// has a TTL attribute, removal by it is switched on.
func Create(ctx context.Context, client admin, tables ...Table) error {
	for _, t := range tables {
		if err := t.create(ctx, client); err != nil {
			return fmt.Errorf("create table %s: %w", t.Name, err)
		}
	}
	return nil
}

// Check returns nil where all tables exist with the keys and indexes wanted, a
// [*MissingError] where some do not exist, and keytype.ErrUnavailable in the
// chain where that could not be found out.
func Check(ctx context.Context, client admin, tables ...Table) error {
	var missing []string
	for _, t := range tables {
		out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &t.Name})
		if _, absent := errors.AsType[*types.ResourceNotFoundException](err); absent {
			missing = append(missing, t.Name)
			continue
		}
		if err != nil {
			return ReadFault("describe table "+t.Name, err)
		}
		if err := t.compare(out.Table); err != nil {
			return fmt.Errorf("check table %s: %w", t.Name, err)
		}
	}
	if missing != nil {
		return &MissingError{missing}
	}
	return nil
}

func (t Table) create(ctx context.Context, client admin) error {
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:              &t.Name,
		BillingMode:            types.BillingModePayPerRequest,
		KeySchema:              keySchema(t.PartitionKey, t.SortKey),
		AttributeDefinitions:   t.attributes(),
		GlobalSecondaryIndexes: t.indexes(),
	})
	if _, exists := errors.AsType[*types.ResourceInUseException](err); err != nil && !exists {
		return Fault("create", err)
	}
	wait := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 100*time.Millisecond, 2*time.Second
	})
	out, err := wait.WaitForOutput(ctx, &dynamodb.DescribeTableInput{TableName: &t.Name}, createTimeout)
	if err != nil {
		return ReadFault("wait until active", err)
	}
	if err := t.compare(out.Table); err != nil {
		return err
	}
	return t.enableTTL(ctx, client)
}

// enableTTL asks first: switching on what is on is an error in DynamoDB.
func (t Table) enableTTL(ctx context.Context, client admin) error {
	if t.TTL == "" {
		return nil
	}
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &t.Name})
	if err != nil {
		return ReadFault("describe TTL", err)
	}
	if d := out.TimeToLiveDescription; d != nil &&
		(d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling) {
		if name := aws.ToString(d.AttributeName); name != t.TTL {
			return fmt.Errorf("dynamo: TTL is on attribute %q, want %q", name, t.TTL)
		}
		return nil
	}
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               &t.Name,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &t.TTL, Enabled: aws.Bool(true)},
	})
	return Fault("enable TTL", err)
}

func (t Table) compare(got *types.TableDescription) error {
	want := describe(keySchema(t.PartitionKey, t.SortKey), t.attributes())
	if have := describe(got.KeySchema, got.AttributeDefinitions); have != want {
		return fmt.Errorf("dynamo: keys are %s, want %s", have, want)
	}
	for _, x := range t.Indexes {
		have, want := "none", describe(keySchema(x.PartitionKey, x.SortKey), t.attributes())
		for _, g := range got.GlobalSecondaryIndexes {
			if aws.ToString(g.IndexName) == x.Name {
				have = describe(g.KeySchema, got.AttributeDefinitions)
			}
		}
		if have != want {
			return fmt.Errorf("dynamo: index %s: keys are %s, want %s", x.Name, have, want)
		}
	}
	return nil
}

func (t Table) indexes() []types.GlobalSecondaryIndex {
	var all []types.GlobalSecondaryIndex
	for _, x := range t.Indexes {
		all = append(all, types.GlobalSecondaryIndex{
			IndexName:  &x.Name,
			KeySchema:  keySchema(x.PartitionKey, x.SortKey),
			Projection: &types.Projection{ProjectionType: x.projection()},
		})
	}
	return all
}

// attributes defines every key attribute once, as DynamoDB demands.
func (t Table) attributes() []types.AttributeDefinition {
	names := []string{t.PartitionKey, t.SortKey}
	for _, x := range t.Indexes {
		names = append(names, x.PartitionKey, x.SortKey)
	}
	slices.Sort(names)
	var all []types.AttributeDefinition
	for _, name := range slices.Compact(names) {
		if name != "" {
			all = append(all, types.AttributeDefinition{AttributeName: &name, AttributeType: types.ScalarAttributeTypeS})
		}
	}
	return all
}

func keySchema(partitionKey, sortKey string) []types.KeySchemaElement {
	keys := []types.KeySchemaElement{{AttributeName: &partitionKey, KeyType: types.KeyTypeHash}}
	if sortKey != "" {
		keys = append(keys, types.KeySchemaElement{AttributeName: &sortKey, KeyType: types.KeyTypeRange})
	}
	return keys
}

// describe writes keys for comparison and for people, for example "pk S HASH, sk S RANGE".
func describe(keys []types.KeySchemaElement, attributes []types.AttributeDefinition) string {
	var all []string
	for _, k := range keys {
		name, kind := aws.ToString(k.AttributeName), types.ScalarAttributeType("?")
		for _, a := range attributes {
			if aws.ToString(a.AttributeName) == name {
				kind = a.AttributeType
			}
		}
		all = append(all, fmt.Sprintf("%s %s %s", name, kind, k.KeyType))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
