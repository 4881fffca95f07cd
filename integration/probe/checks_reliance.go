package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// DynamoDB's limits, in bytes.
const (
	maxPartitionKey = 2048
	maxSortKey      = 1024
	maxItem         = 400 * 1024
)

// relianceChecks probe what coordsvc's own stores lean on beyond the common.
func relianceChecks() []check {
	return []check{
		{"rely.nested if_not_exists(a, if_not_exists(b, :c)) + :one", func(t *subject) error {
			for _, step := range []struct {
				why  string
				item item
				want string
			}{
				{"neither: the value", item{}, "8"},
				{"b alone", item{"b": number("20")}, "21"},
				{"a and b: a", item{"a": number("1"), "b": number("20")}, "2"},
			} {
				k := t.pk()
				it := t.key(k)
				for name, v := range step.item {
					it[name] = v
				}
				if e := t.put(it); e != nil {
					return e
				}
				o, e := t.upd(k, update{up: "SET a = if_not_exists(a, if_not_exists(b, :c)) + :one", vals: item{":c": number("7"), ":one": number("1")}, rv: "UPDATED_NEW"})
				if e != nil {
					return fmt.Errorf("%s: %w", step.why, e)
				}
				if got := numberOf(o.Attributes["a"]); got != step.want {
					return fmt.Errorf("%s: got %s, want %s", step.why, got, step.want)
				}
			}
			return nil
		}},
		{"rely.100 race one conditional update (1 winner), losers get the winner's item", func(t *subject) error {
			k := t.pk()
			var winner atomic.Int64
			var wins atomic.Int64
			losers := make([]string, 100)
			err := together(100, func(i int) error {
				_, e := t.upd(k, update{up: "SET #o = :o", cond: "attribute_not_exists(#o)", names: map[string]string{"#o": "owner"}, vals: item{":o": integer(i)}, rvccf: true})
				var c *types.ConditionalCheckFailedException
				switch {
				case e == nil:
					wins.Add(1)
					winner.Store(int64(i))
					return nil
				case errors.As(e, &c):
					losers[i] = numberOf(c.Item["owner"])
					return nil
				default:
					return e
				}
			})
			if err != nil {
				return err
			}
			if wins.Load() != 1 {
				return fmt.Errorf("%d winners", wins.Load())
			}
			for i, saw := range losers {
				if int64(i) != winner.Load() && saw != fmt.Sprint(winner.Load()) {
					return fmt.Errorf("loser %d was shown owner %s, the winner is %d", i, saw, winner.Load())
				}
			}
			return nil
		}},
		{"rely.failed condition on a missing item carries no item", func(t *subject) error {
			_, e := t.upd(t.pk(), update{up: "SET x = :v", cond: "attribute_exists(pk)", vals: item{":v": number("1")}, rvccf: true})
			var c *types.ConditionalCheckFailedException
			if !errors.As(e, &c) {
				return want(conditionFail, e)
			}
			if len(c.Item) != 0 {
				return fmt.Errorf("item %s", show(c.Item))
			}
			return nil
		}},
		{"rely.canceled transaction: ConditionCheck, Put, Delete reasons carry ALL_OLD items", func(t *subject) error {
			a, b, c := t.pk(), t.pk(), t.pk()
			for _, k := range []string{a, b, c} {
				it := t.key(k)
				it["own"] = text("of " + k)
				if e := t.put(it); e != nil {
					return e
				}
			}
			nobody := item{":o": text("nobody")}
			_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
				{ConditionCheck: &types.ConditionCheck{TableName: &t.table, Key: t.key(a), ConditionExpression: new("own = :o"), ExpressionAttributeValues: nobody, ReturnValuesOnConditionCheckFailure: "ALL_OLD"}},
				{Put: &types.Put{TableName: &t.table, Item: t.key(b), ConditionExpression: new("own = :o"), ExpressionAttributeValues: nobody, ReturnValuesOnConditionCheckFailure: "ALL_OLD"}},
				{Delete: &types.Delete{TableName: &t.table, Key: t.key(c), ConditionExpression: new("own = :o"), ExpressionAttributeValues: nobody, ReturnValuesOnConditionCheckFailure: "ALL_OLD"}},
			}})
			var tc *types.TransactionCanceledException
			if !errors.As(e, &tc) {
				return want("TransactionCanceledException", e)
			}
			for i, k := range []string{a, b, c} {
				if i >= len(tc.CancellationReasons) {
					return fmt.Errorf("%d reasons for 3 items", len(tc.CancellationReasons))
				}
				if r := tc.CancellationReasons[i]; aws.ToString(r.Code) != "ConditionalCheckFailed" || textOf(r.Item["own"]) != "of "+k {
					return fmt.Errorf("reason %d: %s %s", i, aws.ToString(r.Code), show(r.Item))
				}
			}
			return nil
		}},
		{"rely.client token of a canceled transaction is free again", func(t *subject) error {
			k := t.pk()
			in := &dynamodb.TransactWriteItemsInput{ClientRequestToken: new(t.token()), TransactItems: []types.TransactWriteItem{
				{Update: &types.Update{TableName: &t.table, Key: t.key(k), UpdateExpression: new("SET v = :n"), ConditionExpression: new("attribute_exists(pk)"), ExpressionAttributeValues: item{":n": number("1")}}},
			}}
			_, e := t.client.TransactWriteItems(t.ctx, in)
			if x := want("TransactionCanceledException", e); x != nil {
				return x
			}
			if e := t.put(t.key(k)); e != nil {
				return e
			}
			if _, e := t.client.TransactWriteItems(t.ctx, in); e != nil {
				return fmt.Errorf("once the condition holds: %w", e)
			}
			return nil
		}},
		{"rely.keys of 2,048 and 1,024 bytes, not one more", func(t *subject) error {
			put := func(pk, sk int) error {
				return t.put(item{"pk": text(strings.Repeat("k", pk)), "sk": text(strings.Repeat("s", sk))})
			}
			if e := put(maxPartitionKey, maxSortKey); e != nil {
				return fmt.Errorf("longest keys: %w", e)
			}
			if e := want(invalid, put(maxPartitionKey+1, 1)); e != nil {
				return fmt.Errorf("partition key of %d bytes: %w", maxPartitionKey+1, e)
			}
			if e := want(invalid, put(1, maxSortKey+1)); e != nil {
				return fmt.Errorf("sort key of %d bytes: %w", maxSortKey+1, e)
			}
			return nil
		}},
		{"rely.item of exactly 400 KB, not one byte more", func(t *subject) error {
			put := func(bytes int) error {
				it := t.key(t.pk())
				size := 0 // names and values, as UTF-8
				for name, v := range it {
					size += len(name) + len(textOf(v))
				}
				it["blob"] = text(strings.Repeat("x", bytes-size-len("blob")))
				return t.put(it)
			}
			if e := put(maxItem); e != nil {
				return fmt.Errorf("%d bytes: %w", maxItem, e)
			}
			if e := want(invalid, put(maxItem+1)); e != nil {
				return fmt.Errorf("%d bytes: %w", maxItem+1, e)
			}
			return nil
		}},
		{"rely.answers and refusals carry a Date near now", func(t *subject) error {
			k := t.pk()
			o, e := t.upd(k, update{up: "SET x = :v", vals: item{":v": number("1")}})
			if e != nil {
				return e
			}
			if e := nearNow(rawResponse(o.ResultMetadata)); e != nil {
				return fmt.Errorf("answer: %w", e)
			}
			_, e = t.upd(k, update{up: "SET x = :v", cond: "x <> :v", vals: item{":v": number("1")}})
			var re *smithyhttp.ResponseError
			if !errors.As(e, &re) {
				return fmt.Errorf("refusal without a response: %w", e)
			}
			if e := nearNow(re.Response); e != nil {
				return fmt.Errorf("refusal: %w", e)
			}
			return nil
		}},
		{"rely.a canceled call may have been applied, never by half", func(t *subject) error {
			for range 50 {
				k, l := t.pk(), t.pk()
				ctx, cancel := context.WithTimeout(t.ctx, 500*time.Microsecond)
				_, _ = t.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
					{Put: &types.Put{TableName: &t.table, Item: t.key(k)}}, {Put: &types.Put{TableName: &t.table, Item: t.key(l)}},
				}}) // any outcome will do
				cancel()
				o, e := t.client.TransactGetItems(t.ctx, &dynamodb.TransactGetItemsInput{TransactItems: []types.TransactGetItem{
					{Get: &types.Get{TableName: &t.table, Key: t.key(k)}}, {Get: &types.Get{TableName: &t.table, Key: t.key(l)}},
				}})
				if e != nil {
					return e
				}
				if (len(o.Responses[0].Item) == 0) != (len(o.Responses[1].Item) == 0) {
					return errors.New("one put of two was applied")
				}
			}
			return nil
		}},
	}
}

func rawResponse(md middleware.Metadata) *smithyhttp.Response {
	r, _ := awsmiddleware.GetRawResponse(md).(*smithyhttp.Response)
	return r
}

// nearNow wants a Date header within two seconds of this machine's clock.
func nearNow(r *smithyhttp.Response) error {
	if r == nil {
		return errors.New("no raw response")
	}
	date, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		return fmt.Errorf("date header %q: %w", r.Header.Get("Date"), err)
	}
	if off := time.Since(date).Abs(); off > 2*time.Second {
		return fmt.Errorf("date is off by %s", off)
	}
	return nil
}
