package doctor

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// Needs are the actions that a node takes on items of each key type, as the policy in
// infra/terraform/iam.tf allows them. A test compares the two.
var Needs = map[string][]string{
	"session":           {"GetItem", "UpdateItem", "ConditionCheckItem", "Query", "BatchWriteItem"},
	"session_data":      {"GetItem", "UpdateItem"},
	"user_epoch":        {"GetItem", "UpdateItem", "ConditionCheckItem"},
	"tenant_epoch":      {"GetItem", "UpdateItem"},
	"deployment":        {"GetItem", "UpdateItem"},
	"lease":             {"GetItem", "UpdateItem", "ConditionCheckItem", "BatchGetItem"},
	"fence_floor":       {"GetItem"},
	"protected_record":  {"GetItem", "UpdateItem"},
	"quota":             {"GetItem", "UpdateItem", "ConditionCheckItem"},
	"quota_reservation": {"GetItem", "UpdateItem"},
	"quota_receipt":     {"GetItem", "UpdateItem"},
	"idempotency":       {"GetItem", "UpdateItem"},
	"api_key":           {"GetItem", "PutItem", "UpdateItem"},
	"audit_event":       {"PutItem", "Query"},
}

// nobody is in the keys of the items that are asked for: no such item exists, and none is made.
const nobody = "coordsvc-doctor"

// never is a condition that no item fulfils.
const never = "attribute_exists(pk) AND attribute_not_exists(pk)"

// Permissions tries each action that a node needs, on items that do not exist and
// under conditions that never hold, and each index.
func Permissions(ctx context.Context, client *dynamodb.Client, prefix string, tables ...dynamo.Table) (all []Finding) {
	for _, kind := range keytype.All() {
		if kind.Table == "" || kind.Within != nil {
			continue
		}
		name := kind.TableName(prefix)
		t := tables[slices.IndexFunc(tables, func(t dynamo.Table) bool { return t.Name == name })]
		for _, action := range Needs[kind.Name] {
			all = append(all, permission(kind.Name+" "+action, try(ctx, client, action, name, itemKey(kind, t))))
		}
	}
	for _, t := range tables {
		for _, index := range t.Indexes {
			all = append(all, permission(t.Name+" "+index.Name, query(ctx, client, t.Name, index.Name, index.PartitionKey)))
		}
	}
	return all
}

func permission(subject string, err error) Finding {
	detail := "allowed"
	switch {
	case denied(err):
		detail = short(err)
	case err != nil && !refused(err):
		return Finding{"permission", subject, Unknown, short(err), "mend what is wrong with the table first"}
	}
	return found("permission", subject, Fault, denied(err), detail, "attach the policy of infra/terraform to the node's role")
}

// refused: the condition did not hold, as was meant.
func refused(err error) bool {
	if _, failed := dynamo.FailedCondition(err); failed {
		return true
	}
	cancelled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(cancelled.CancellationReasons, func(r types.CancellationReason) bool { return aws.ToString(r.Code) == "ConditionalCheckFailed" })
}

// itemKey is the key of an item of the type that does not exist.
func itemKey(kind *keytype.Type, t dynamo.Table) dynamo.Item {
	parts := make([]string, len(kind.Parts))
	for i := range parts {
		parts[i] = nobody
	}
	if kind.Sort != "" {
		partition, sort := kind.ItemKey(parts...)
		return dynamo.Item{"pk": dynamo.S(partition), "sk": dynamo.S(sort)}
	}
	key := dynamo.Item{"pk": dynamo.S(kind.Key(parts...))}
	if t.SortKey != "" {
		key["sk"] = dynamo.S(nobody)
	}
	return key
}

func try(ctx context.Context, client *dynamodb.Client, action, table string, key dynamo.Item) (err error) {
	switch action {
	case "GetItem":
		_, err = client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &table, Key: key})
	case "PutItem":
		_, err = client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: key, ConditionExpression: aws.String(never)})
	case "UpdateItem":
		_, err = client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &table, Key: key, ConditionExpression: aws.String(never)})
	case "ConditionCheckItem":
		_, err = client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
			{ConditionCheck: &types.ConditionCheck{TableName: &table, Key: key, ConditionExpression: aws.String(never)}},
		}})
	case "BatchGetItem":
		_, err = client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{table: {Keys: []dynamo.Item{key}}}})
	case "BatchWriteItem": // removes what is not there
		_, err = client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{
			table: {{DeleteRequest: &types.DeleteRequest{Key: key}}},
		}})
	case "Query":
		err = query(ctx, client, table, "", "pk")
	}
	return err
}

func query(ctx context.Context, client *dynamodb.Client, table, index, partition string) error {
	in := &dynamodb.QueryInput{
		TableName: &table, KeyConditionExpression: aws.String("#p = :p"),
		ExpressionAttributeNames: map[string]string{"#p": partition}, ExpressionAttributeValues: dynamo.Item{":p": dynamo.S(nobody)},
	}
	if index != "" {
		in.IndexName = &index
	}
	_, err := client.Query(ctx, in)
	return err
}
