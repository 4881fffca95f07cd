package probe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// transactionChecks probe transactions and batches.
func transactionChecks() []check {
	return []check{
		{"tx.Put+Update+ConditionCheck+Delete commit", func(t *subject) error {
			a, b, c, d := t.pk(), t.pk(), t.pk(), t.pk()
			for _, k := range []string{b, c, d} {
				it := t.key(k)
				it["v"] = number("1")
				if e := t.put(it); e != nil {
					return e
				}
			}
			_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
				{Put: &types.Put{TableName: &t.table, Item: t.key(a), ConditionExpression: new("attribute_not_exists(pk)")}},
				{Update: &types.Update{TableName: &t.table, Key: t.key(b), UpdateExpression: new("SET v = v + :one"), ConditionExpression: new("v = :one"), ExpressionAttributeValues: item{":one": number("1")}}},
				{ConditionCheck: &types.ConditionCheck{TableName: &t.table, Key: t.key(c), ConditionExpression: new("v = :one"), ExpressionAttributeValues: item{":one": number("1")}}},
				{Delete: &types.Delete{TableName: &t.table, Key: t.key(d), ConditionExpression: new("attribute_exists(pk)")}},
			}})
			if e != nil {
				return e
			}
			ga, _ := t.get(a)
			gb, _ := t.get(b)
			gd, _ := t.get(d)
			if len(ga) != 2 || numberOf(gb["v"]) != "2" || len(gd) != 0 {
				return fmt.Errorf("a=%v b=%v d=%v", show(ga), show(gb), show(gd))
			}
			return nil
		}},
		{"tx.cancel: reason codes, ALL_OLD item, atomic rollback", func(t *subject) error {
			a, b, c := t.pk(), t.pk(), t.pk()
			it := t.key(b)
			it["v"] = number("7")
			if e := t.put(it); e != nil {
				return e
			}
			_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
				{Put: &types.Put{TableName: &t.table, Item: t.key(a)}},
				{Update: &types.Update{TableName: &t.table, Key: t.key(b), UpdateExpression: new("SET v = v + :one"), ConditionExpression: new("v = :one"), ExpressionAttributeValues: item{":one": number("1")}, ReturnValuesOnConditionCheckFailure: "ALL_OLD"}},
				{ConditionCheck: &types.ConditionCheck{TableName: &t.table, Key: t.key(c), ConditionExpression: new("attribute_exists(pk)")}},
			}})
			var tc *types.TransactionCanceledException
			if !errors.As(e, &tc) {
				return want("TransactionCanceledException", e)
			}
			var codes []string
			for _, r := range tc.CancellationReasons {
				codes = append(codes, aws.ToString(r.Code))
			}
			var bad []string
			if strings.Join(codes, ",") != "None,ConditionalCheckFailed,ConditionalCheckFailed" {
				bad = append(bad, fmt.Sprintf("codes=%v", codes))
			}
			if len(tc.CancellationReasons) > 1 && numberOf(tc.CancellationReasons[1].Item["v"]) != "7" {
				bad = append(bad, "no ALL_OLD item in reason")
			}
			if g, _ := t.get(a); len(g) != 0 {
				bad = append(bad, "NOT ATOMIC: put applied")
			}
			if bad != nil {
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"tx.ClientRequestToken idempotent replay", func(t *subject) error {
			k, token := t.pk(), t.token()
			in := func(n string) *dynamodb.TransactWriteItemsInput {
				return &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token, TransactItems: []types.TransactWriteItem{
					{Update: &types.Update{TableName: &t.table, Key: t.key(k), UpdateExpression: new("ADD v :n"), ExpressionAttributeValues: item{":n": number(n)}}},
				}}
			}
			for range 2 {
				if _, e := t.client.TransactWriteItems(t.ctx, in("1")); e != nil {
					return e
				}
			}
			g, _ := t.get(k)
			if numberOf(g["v"]) != "1" {
				return fmt.Errorf("applied twice: v=%s", numberOf(g["v"]))
			}
			return nil
		}},
		{"tx.token reuse with other payload -> IdempotentParameterMismatch", func(t *subject) error {
			k, token := t.pk(), t.token()
			in := func(n string) *dynamodb.TransactWriteItemsInput {
				return &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token, TransactItems: []types.TransactWriteItem{
					{Update: &types.Update{TableName: &t.table, Key: t.key(k), UpdateExpression: new("ADD v :n"), ExpressionAttributeValues: item{":n": number(n)}}},
				}}
			}
			if _, e := t.client.TransactWriteItems(t.ctx, in("1")); e != nil {
				return e
			}
			_, e := t.client.TransactWriteItems(t.ctx, in("2"))
			return want("IdempotentParameterMismatchException", e)
		}},
		{"tx.same item twice -> ValidationException", func(t *subject) error {
			k := t.pk()
			_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
				{Put: &types.Put{TableName: &t.table, Item: t.key(k)}}, {Delete: &types.Delete{TableName: &t.table, Key: t.key(k)}},
			}})
			return want(invalid, e)
		}},
		{"tx.>100 items -> ValidationException", func(t *subject) error {
			var its []types.TransactWriteItem
			for range 101 {
				its = append(its, types.TransactWriteItem{Put: &types.Put{TableName: &t.table, Item: t.key(t.pk())}})
			}
			_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: its})
			return want(invalid, e)
		}},
		{"tx.TransactGetItems (incl. missing)", func(t *subject) error {
			a, b := t.pk(), t.pk()
			if e := t.put(t.key(a)); e != nil {
				return e
			}
			o, e := t.client.TransactGetItems(t.ctx, &dynamodb.TransactGetItemsInput{TransactItems: []types.TransactGetItem{{Get: &types.Get{TableName: &t.table, Key: t.key(a)}}, {Get: &types.Get{TableName: &t.table, Key: t.key(b)}}}})
			if e != nil {
				return e
			}
			if len(o.Responses) != 2 || len(o.Responses[0].Item) != 2 || len(o.Responses[1].Item) != 0 {
				return fmt.Errorf("%+v", o.Responses)
			}
			return nil
		}},
		{"batch.Write 25 + BatchGet; 26 -> ValidationException", func(t *subject) error {
			mk := func(n int) ([]types.WriteRequest, []map[string]value) {
				var w []types.WriteRequest
				var ks []map[string]value
				for range n {
					k := t.key(t.pk())
					w = append(w, types.WriteRequest{PutRequest: &types.PutRequest{Item: k}})
					ks = append(ks, k)
				}
				return w, ks
			}
			w, ks := mk(25)
			o, e := t.client.BatchWriteItem(t.ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{t.table: w}})
			if e != nil {
				return e
			}
			if len(o.UnprocessedItems) != 0 {
				return fmt.Errorf("unprocessed %v", o.UnprocessedItems)
			}
			g, e := t.client.BatchGetItem(t.ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{t.table: {Keys: ks, ConsistentRead: new(true)}}})
			if e != nil {
				return e
			}
			if len(g.Responses[t.table]) != 25 {
				return fmt.Errorf("got %d", len(g.Responses[t.table]))
			}
			w, _ = mk(26)
			_, e = t.client.BatchWriteItem(t.ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{t.table: w}})
			return want(invalid, e)
		}},
	}
}
