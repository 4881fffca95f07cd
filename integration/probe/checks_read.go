package probe

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// readChecks probe queries, scans and reads.
func readChecks() []check {
	return []check{
		{"query.table pagination + order + begins_with/BETWEEN + filter", func(t *subject) error {
			k := t.pk()
			for i := range 23 {
				if e := t.put(item{"pk": text(k), "sk": text(fmt.Sprintf("s#%03d", i)), "i": integer(i)}); e != nil {
					return e
				}
			}
			var bad []string
			for _, fwd := range []bool{true, false} {
				var got []string
				var lek item
				pages := 0
				for {
					o, e := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, KeyConditionExpression: new("pk = :p AND begins_with(sk, :b)"), ExpressionAttributeValues: item{":p": text(k), ":b": text("s#")}, Limit: new(int32(5)), ExclusiveStartKey: lek, ScanIndexForward: new(fwd), ConsistentRead: new(true)})
					if e != nil {
						return e
					}
					pages++
					for _, x := range o.Items {
						got = append(got, textOf(x["sk"]))
					}
					lek = o.LastEvaluatedKey
					if len(lek) == 0 || pages > 30 {
						break
					}
				}
				ok := sort.SliceIsSorted(got, func(i, j int) bool { return (got[i] < got[j]) == fwd && got[i] != got[j] })
				if len(got) != 23 || pages != 5 || !ok {
					bad = append(bad, fmt.Sprintf("fwd=%v n=%d pages=%d sorted=%v", fwd, len(got), pages, ok))
				}
			}
			o, e := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, KeyConditionExpression: new("pk = :p AND sk BETWEEN :a AND :b"), FilterExpression: new("i >= :five"), ExpressionAttributeValues: item{":p": text(k), ":a": text("s#003"), ":b": text("s#010"), ":five": number("5")}})
			if e != nil {
				return e
			}
			if o.Count != 6 || o.ScannedCount != 8 {
				bad = append(bad, fmt.Sprintf("filter Count=%d(6) Scanned=%d(8)", o.Count, o.ScannedCount))
			}
			// Filter + Limit: limit applies before the filter
			o, e = t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, KeyConditionExpression: new("pk = :p"), FilterExpression: new("i >= :x"), Limit: new(int32(4)), ExpressionAttributeValues: item{":p": text(k), ":x": number("20")}})
			if e != nil {
				return e
			}
			if o.Count != 0 || o.ScannedCount != 4 || len(o.LastEvaluatedKey) == 0 {
				bad = append(bad, fmt.Sprintf("limit-before-filter Count=%d(0) Scanned=%d(4) LEK=%v", o.Count, o.ScannedCount, len(o.LastEvaluatedKey)))
			}
			o, e = t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, KeyConditionExpression: new("pk = :p"), Select: "COUNT", ExpressionAttributeValues: item{":p": text(k)}})
			if e != nil || o.Count != 23 || len(o.Items) != 0 {
				bad = append(bad, fmt.Sprintf("Select COUNT: %v", e))
			}
			if bad != nil {
				return errors.New(strings.Join(bad, " | "))
			}
			return nil
		}},
		{"query.GSI pagination, numeric order, LEK has table+index keys", func(t *subject) error {
			g := t.pk()
			vals := []string{"-5", "3", "20", "100", "7", "-50", "0.5", "7"} // 7 twice: tie broken by table key
			for i, v := range vals {
				if e := t.put(item{"pk": text(fmt.Sprintf("%s-%d", g, i)), "sk": text("a"), "gpk": text(g), "gsk": number(v), "pay": text("x")}); e != nil {
					return e
				}
			}
			var got []string
			var lek item
			pages := 0
			for {
				o, e := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, IndexName: new("gsi1"), KeyConditionExpression: new("gpk = :g"), ExpressionAttributeValues: item{":g": text(g)}, Limit: new(int32(3)), ExclusiveStartKey: lek})
				if e != nil {
					return e
				}
				pages++
				for _, x := range o.Items {
					got = append(got, numberOf(x["gsk"]))
					if textOf(x["pay"]) != "x" {
						return errors.New("projection ALL missing attr")
					}
				}
				lek = o.LastEvaluatedKey
				if len(lek) == 0 || pages > 10 {
					break
				}
				if len(lek) != 4 {
					return fmt.Errorf("LEK keys=%d want 4: %v", len(lek), show(lek))
				}
			}
			if strings.Join(got, ",") != "-50,-5,0.5,3,7,7,20,100" {
				return fmt.Errorf("order %v pages=%d", got, pages)
			}
			o, e := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, IndexName: new("gsi1"), KeyConditionExpression: new("gpk = :g AND gsk > :n"), ExpressionAttributeValues: item{":g": text(g), ":n": number("5")}})
			if e != nil || o.Count != 4 {
				return fmt.Errorf("gsk > 5: count=%d want 4: %w", count(o), e)
			}
			return nil
		}},
		{"query.GSI sparse + KEYS_ONLY + follows updates/deletes", func(t *subject) error {
			g, k := t.pk(), t.pk()
			if e := t.put(item{"pk": text(k), "sk": text("a"), "gpk": text(g), "gsk": number("1"), "pay": text("x")}); e != nil {
				return e
			}
			q := func(ix string) (*dynamodb.QueryOutput, error) {
				return t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, IndexName: &ix, KeyConditionExpression: new("gpk = :g"), ExpressionAttributeValues: item{":g": text(g)}})
			}
			o, e := q("gsi2")
			if e != nil {
				return e
			}
			if len(o.Items) != 1 || o.Items[0]["pay"] != nil || len(o.Items[0]) != 3 {
				return fmt.Errorf("KEYS_ONLY returned %v", o.Items)
			}
			if _, e := t.upd(k, update{up: "REMOVE gpk"}); e != nil {
				return e
			}
			if o, e = q("gsi1"); e != nil || o.Count != 0 {
				return fmt.Errorf("after REMOVE count=%d: %w", count(o), e)
			}
			return nil
		}},
		{"query.GSI ConsistentRead -> ValidationException", func(t *subject) error {
			_, e := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: &t.table, IndexName: new("gsi1"), ConsistentRead: new(true), KeyConditionExpression: new("gpk = :g"), ExpressionAttributeValues: item{":g": text("x")}})
			return want(invalid, e)
		}},
		{"get.ConsistentRead + ProjectionExpression", func(t *subject) error {
			k := t.pk()
			if e := t.put(item{"pk": text(k), "sk": text("a"), "name": text("n"), "b": text("b")}); e != nil {
				return e
			}
			o, e := t.client.GetItem(t.ctx, &dynamodb.GetItemInput{TableName: &t.table, Key: t.key(k), ConsistentRead: new(true), ProjectionExpression: new("#n, pk"), ExpressionAttributeNames: map[string]string{"#n": "name"}})
			if e != nil {
				return e
			}
			if len(o.Item) != 2 || textOf(o.Item["name"]) != "n" {
				return fmt.Errorf("%v", show(o.Item))
			}
			return nil
		}},
		{"scan.filter + pagination", func(t *subject) error {
			tag := t.pk()
			for range 12 {
				k := t.key(t.pk())
				k["tag"] = text(tag)
				if e := t.put(k); e != nil {
					return e
				}
			}
			n, pages := 0, 0
			var lek item
			for {
				o, e := t.client.Scan(t.ctx, &dynamodb.ScanInput{TableName: &t.table, FilterExpression: new("tag = :t"), ExpressionAttributeValues: item{":t": text(tag)}, Limit: new(int32(20)), ExclusiveStartKey: lek})
				if e != nil {
					return e
				}
				n += int(o.Count)
				pages++
				lek = o.LastEvaluatedKey
				if len(lek) == 0 || pages > 500 {
					break
				}
			}
			if n != 12 || pages < 3 {
				return fmt.Errorf("n=%d pages=%d", n, pages)
			}
			return nil
		}},
	}
}
