package probe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// writeChecks probe single-item writes and what they return.
func writeChecks() []check {
	return []check{
		{"put.attribute_not_exists once then CCF", func(t *subject) error {
			it := t.key(t.pk())
			in := &dynamodb.PutItemInput{TableName: &t.table, Item: it, ConditionExpression: new("attribute_not_exists(pk)")}
			if _, e := t.client.PutItem(t.ctx, in); e != nil {
				return e
			}
			_, e := t.client.PutItem(t.ctx, in)
			var c *types.ConditionalCheckFailedException
			if !errors.As(e, &c) {
				return want(conditionFail, e)
			}
			return nil
		}},
		{"put.CCF returns ALL_OLD item", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["owner"] = text("me")
			if e := t.put(it); e != nil {
				return e
			}
			_, e := t.client.PutItem(t.ctx, &dynamodb.PutItemInput{TableName: &t.table, Item: t.key(k), ConditionExpression: new("attribute_not_exists(pk)"), ReturnValuesOnConditionCheckFailure: "ALL_OLD"})
			return refusedWith(e, "owner", "me")
		}},
		{"upd.CCF returns ALL_OLD item", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["own"] = text("me")
			if e := t.put(it); e != nil {
				return e
			}
			_, e := t.upd(k, update{up: "SET x = :v", cond: "own = :o", vals: item{":v": number("1"), ":o": text("you")}, rvccf: true})
			return refusedWith(e, "own", "me")
		}},
		{"del.CCF returns ALL_OLD item; then conditional delete", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["own"] = text("me")
			if e := t.put(it); e != nil {
				return e
			}
			_, e := t.client.DeleteItem(t.ctx, &dynamodb.DeleteItemInput{TableName: &t.table, Key: t.key(k), ConditionExpression: new("own = :o"), ExpressionAttributeValues: item{":o": text("you")}, ReturnValuesOnConditionCheckFailure: "ALL_OLD"})
			if x := refusedWith(e, "own", "me"); x != nil {
				return x
			}
			o, e := t.client.DeleteItem(t.ctx, &dynamodb.DeleteItemInput{TableName: &t.table, Key: t.key(k), ConditionExpression: new("own = :o"), ExpressionAttributeValues: item{":o": text("me")}, ReturnValues: "ALL_OLD"})
			if e != nil {
				return e
			}
			if textOf(o.Attributes["own"]) != "me" {
				return fmt.Errorf("ALL_OLD attrs %v", o.Attributes)
			}
			g, e := t.get(k)
			if e != nil || len(g) != 0 {
				return fmt.Errorf("still there: %v: %w", g, e)
			}
			return nil
		}},
		{"upd.SET if_not_exists(#v,:zero)+:one (upsert)", func(t *subject) error {
			k := t.pk()
			for i := 1; i <= 3; i++ {
				o, e := t.upd(k, update{up: "SET #o = :o, #v = if_not_exists(#v,:zero) + :one", names: map[string]string{"#v": "version", "#o": "owner"}, vals: item{":zero": number("0"), ":one": number("1"), ":o": text("x")}, rv: "ALL_NEW"})
				if e != nil {
					return e
				}
				if numberOf(o.Attributes["version"]) != fmt.Sprint(i) {
					return fmt.Errorf("i=%d got %v", i, numberOf(o.Attributes["version"]))
				}
			}
			return nil
		}},
		{"upd.ADD number + string set, DELETE from set", func(t *subject) error {
			k := t.pk()
			if _, e := t.upd(k, update{up: "ADD n :n, ss :s", vals: item{":n": number("5"), ":s": &types.AttributeValueMemberSS{Value: []string{"a", "b"}}}}); e != nil {
				return fmt.Errorf("ADD: %w", e)
			}
			o, e := t.upd(k, update{up: "ADD n :n, ss :s", vals: item{":n": number("-7"), ":s": &types.AttributeValueMemberSS{Value: []string{"c"}}}, rv: "ALL_NEW"})
			if e != nil {
				return e
			}
			ss, _ := o.Attributes["ss"].(*types.AttributeValueMemberSS)
			if numberOf(o.Attributes["n"]) != "-2" || ss == nil || len(ss.Value) != 3 {
				return fmt.Errorf("after ADD %v %v", numberOf(o.Attributes["n"]), o.Attributes["ss"])
			}
			o, e = t.upd(k, update{up: "DELETE ss :s", vals: item{":s": &types.AttributeValueMemberSS{Value: []string{"a", "c"}}}, rv: "ALL_NEW"})
			if e != nil {
				return fmt.Errorf("DELETE: %w", e)
			}
			ss, _ = o.Attributes["ss"].(*types.AttributeValueMemberSS)
			if ss == nil || len(ss.Value) != 1 || ss.Value[0] != "b" {
				return fmt.Errorf("after DELETE %v", o.Attributes["ss"])
			}
			return nil
		}},
		{"upd.SET+REMOVE+ADD in one expression; list_append; nested path; minus", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["gone"] = text("x")
			it["l"] = &types.AttributeValueMemberL{Value: []value{text("1")}}
			it["m"] = &types.AttributeValueMemberM{Value: item{"a": number("1")}}
			it["q"] = number("10")
			if e := t.put(it); e != nil {
				return e
			}
			o, e := t.upd(k, update{up: "SET l = list_append(l, :l), m.b = :b, q = q - :one REMOVE gone ADD cnt :one", vals: item{":l": &types.AttributeValueMemberL{Value: []value{text("2")}}, ":b": text("bb"), ":one": number("1")}, rv: "ALL_NEW"})
			if e != nil {
				return e
			}
			a := o.Attributes
			l, _ := a["l"].(*types.AttributeValueMemberL)
			m, _ := a["m"].(*types.AttributeValueMemberM)
			if l == nil || len(l.Value) != 2 || m == nil || textOf(m.Value["b"]) != "bb" || numberOf(a["q"]) != "9" || a["gone"] != nil || numberOf(a["cnt"]) != "1" {
				return fmt.Errorf("got %v", show(a))
			}
			return nil
		}},
		{"rv.ALL_NEW / UPDATED_NEW / ALL_OLD / UPDATED_OLD / NONE", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["a"], it["b"] = number("1"), number("2")
			if e := t.put(it); e != nil {
				return e
			}
			var bad []string
			o, e := t.upd(k, update{up: "SET a = :v", vals: item{":v": number("11")}, rv: "UPDATED_NEW"})
			if e != nil || len(o.Attributes) != 1 || numberOf(o.Attributes["a"]) != "11" {
				bad = append(bad, fmt.Sprintf("UPDATED_NEW: %v %v", e, show(attributes(o))))
			}
			o, e = t.upd(k, update{up: "SET a = :v", vals: item{":v": number("12")}, rv: "UPDATED_OLD"})
			if e != nil || len(o.Attributes) != 1 || numberOf(o.Attributes["a"]) != "11" {
				bad = append(bad, fmt.Sprintf("UPDATED_OLD: %v %v", e, show(attributes(o))))
			}
			o, e = t.upd(k, update{up: "SET a = :v", vals: item{":v": number("13")}, rv: "ALL_NEW"})
			if e != nil || len(o.Attributes) != 4 || numberOf(o.Attributes["a"]) != "13" {
				bad = append(bad, fmt.Sprintf("ALL_NEW: %v %v", e, show(attributes(o))))
			}
			o, e = t.upd(k, update{up: "SET a = :v", vals: item{":v": number("14")}, rv: "ALL_OLD"})
			if e != nil || len(o.Attributes) != 4 || numberOf(o.Attributes["a"]) != "13" {
				bad = append(bad, fmt.Sprintf("ALL_OLD: %v %v", e, show(attributes(o))))
			}
			o, e = t.upd(k, update{up: "SET a = :v", vals: item{":v": number("15")}})
			if e != nil || len(o.Attributes) != 0 {
				bad = append(bad, fmt.Sprintf("NONE: %v %v", e, show(attributes(o))))
			}
			po, e := t.client.PutItem(t.ctx, &dynamodb.PutItemInput{TableName: &t.table, Item: t.key(k), ReturnValues: "ALL_OLD"})
			if e != nil || numberOf(po.Attributes["a"]) != "15" {
				bad = append(bad, fmt.Sprintf("Put ALL_OLD: %v", e))
			}
			if bad != nil {
				return errors.New(strings.Join(bad, " | "))
			}
			return nil
		}},
	}
}
