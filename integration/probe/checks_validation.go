package probe

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// validationChecks probe that wrong requests are refused and right values come back.
func validationChecks() []check {
	return []check{
		{"val.reserved word -> ValidationException", func(t *subject) error {
			_, e := t.upd(t.pk(), update{up: "SET owner = :o, ttl = :t", vals: item{":o": text("x"), ":t": number("1")}})
			return want(invalid, e)
		}},
		{"val.reserved word in condition (status) -> ValidationException", func(t *subject) error {
			_, e := t.upd(t.pk(), update{up: "SET x = :o", cond: "attribute_not_exists(status)", vals: item{":o": text("x")}})
			return want(invalid, e)
		}},
		{"val.empty string key -> ValidationException", func(t *subject) error {
			return want(invalid, t.put(item{"pk": text(""), "sk": text("a")}))
		}},
		{"val.empty string non-key OK", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["e"] = text("")
			if e := t.put(it); e != nil {
				return e
			}
			g, e := t.get(k)
			if e != nil || g["e"] == nil || textOf(g["e"]) != "" {
				return fmt.Errorf("%v: %w", show(g), e)
			}
			return nil
		}},
		{"val.missing sort key / wrong key type -> ValidationException", func(t *subject) error {
			var bad []string
			if x := want(invalid, t.put(item{"pk": text("a")})); x != nil {
				bad = append(bad, "missing sk: "+x.Error())
			}
			if x := want(invalid, t.put(item{"pk": number("1"), "sk": text("a")})); x != nil {
				bad = append(bad, "pk type: "+x.Error())
			}
			_, e := t.client.GetItem(t.ctx, &dynamodb.GetItemInput{TableName: &t.table, Key: item{"pk": text("a")}})
			if x := want(invalid, e); x != nil {
				bad = append(bad, "get: "+x.Error())
			}
			if x := want(invalid, t.put(item{"pk": text(t.pk()), "sk": text("a"), "gpk": text("g"), "gsk": text("notnum")})); x != nil {
				bad = append(bad, "gsi key type: "+x.Error())
			}
			if bad != nil {
				return errors.New(strings.Join(bad, " | "))
			}
			return nil
		}},
		{"val.item > 400KB -> ValidationException", func(t *subject) error {
			it := t.key(t.pk())
			it["blob"] = text(strings.Repeat("x", 401*1024))
			return want(invalid, t.put(it))
		}},
		{"val.update grows item > 400KB -> ValidationException", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["blob"] = text(strings.Repeat("x", 300*1024))
			if e := t.put(it); e != nil {
				return e
			}
			_, e := t.upd(k, update{up: "SET b2 = :b", vals: item{":b": text(strings.Repeat("y", 150*1024))}})
			return want(invalid, e)
		}},
		{"val.syntax errors -> ValidationException", func(t *subject) error {
			k := t.pk()
			var bad []string
			for _, u := range []update{
				{up: "SET", vals: item{}},
				{up: "SET x = ", vals: item{}},
				{up: "SET x :v", vals: item{":v": number("1")}},
				{up: "SETT x = :v", vals: item{":v": number("1")}},
				{up: "SET x = :v", cond: "pk =", vals: item{":v": number("1")}},
				{up: "SET x = :v", cond: "(pk = :v", vals: item{":v": number("1")}},
				{up: "SET x = :v", cond: "nosuchfn(pk)", vals: item{":v": number("1")}},
				{up: "SET x = :v", cond: "pk = :v AND", vals: item{":v": number("1")}},
			} {
				if len(u.vals) == 0 {
					u.vals = nil
				}
				_, e := t.upd(k, u)
				if want(invalid, e) != nil {
					bad = append(bad, fmt.Sprintf("%q/%q -> %s", u.up, u.cond, codeOf(e)))
				}
			}
			if bad != nil {
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"val.unused / undefined placeholders -> ValidationException", func(t *subject) error {
			k := t.pk()
			var bad []string
			for n, u := range map[string]update{
				"unused :w":    {up: "SET x = :v", vals: item{":v": number("1"), ":w": number("2")}},
				"undefined :w": {up: "SET x = :w", vals: item{":v": number("1")}},
				"undefined #n": {up: "SET #n = :v", vals: item{":v": number("1")}},
				"unused #n":    {up: "SET x = :v", names: map[string]string{"#n": "y"}, vals: item{":v": number("1")}},
			} {
				_, e := t.upd(k, u)
				if want(invalid, e) != nil {
					bad = append(bad, n+" -> "+codeOf(e))
				}
			}
			if bad != nil {
				sort.Strings(bad)
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"val.update key attr / overlapping paths -> ValidationException", func(t *subject) error {
			var bad []string
			for n, u := range map[string]update{
				"SET pk":        {up: "SET pk = :v", vals: item{":v": text("1")}},
				"SET x,x":       {up: "SET x = :v, x = :v", vals: item{":v": text("1")}},
				"SET x REMOVEx": {up: "SET x = :v REMOVE x", vals: item{":v": text("1")}},
			} {
				_, e := t.upd(t.pk(), u)
				if want(invalid, e) != nil {
					bad = append(bad, n+" -> "+codeOf(e))
				}
			}
			if bad != nil {
				sort.Strings(bad)
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"val.type errors: missing operand, ADD to string, empty set", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["s"] = text("x")
			if e := t.put(it); e != nil {
				return e
			}
			var bad []string
			for n, u := range map[string]update{
				"SET nope = nope + 1": {up: "SET nope = nope + :v", vals: item{":v": number("1")}},
				"SET s = s + 1":       {up: "SET s = s + :v", vals: item{":v": number("1")}},
				"ADD s 1":             {up: "ADD s :v", vals: item{":v": number("1")}},
				"empty SS":            {up: "SET q = :v", vals: item{":v": &types.AttributeValueMemberSS{Value: []string{}}}},
				"dup SS":              {up: "SET q = :v", vals: item{":v": &types.AttributeValueMemberSS{Value: []string{"a", "a"}}}},
			} {
				_, e := t.upd(k, u)
				if want(invalid, e) != nil {
					bad = append(bad, n+" -> "+codeOf(e))
				}
			}
			if bad != nil {
				sort.Strings(bad)
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"types.B/BS/NS/L/M/NULL/BOOL round trip", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["b"] = &types.AttributeValueMemberB{Value: []byte{0, 1, 255}}
			it["bs"] = &types.AttributeValueMemberBS{Value: [][]byte{{1}, {2}}}
			it["ns"] = &types.AttributeValueMemberNS{Value: []string{"1", "2"}}
			it["l"] = &types.AttributeValueMemberL{Value: []value{text("a"), &types.AttributeValueMemberM{Value: item{"x": number("1")}}}}
			it["nul"] = &types.AttributeValueMemberNULL{Value: true}
			it["boo"] = &types.AttributeValueMemberBOOL{Value: false}
			it["uni"] = text("héllo ✓ <&>")
			if e := t.put(it); e != nil {
				return e
			}
			g, e := t.get(k)
			if e != nil {
				return e
			}
			b, _ := g["b"].(*types.AttributeValueMemberB)
			ns, _ := g["ns"].(*types.AttributeValueMemberNS)
			l, _ := g["l"].(*types.AttributeValueMemberL)
			bo, _ := g["boo"].(*types.AttributeValueMemberBOOL)
			nu, _ := g["nul"].(*types.AttributeValueMemberNULL)
			bs, _ := g["bs"].(*types.AttributeValueMemberBS)
			if b == nil || !bytes.Equal(b.Value, []byte{0, 1, 255}) || ns == nil || len(ns.Value) != 2 || l == nil || len(l.Value) != 2 || bo == nil || bo.Value || nu == nil || bs == nil || textOf(g["uni"]) != "héllo ✓ <&>" {
				return fmt.Errorf("%v", show(g))
			}
			return nil
		}},
		{"misc.ReturnConsumedCapacity TOTAL", func(t *subject) error {
			o, e := t.client.PutItem(t.ctx, &dynamodb.PutItemInput{TableName: &t.table, Item: t.key(t.pk()), ReturnConsumedCapacity: "TOTAL"})
			if e != nil {
				return e
			}
			if o.ConsumedCapacity == nil || aws.ToFloat64(o.ConsumedCapacity.CapacityUnits) != 1 {
				return fmt.Errorf("%+v", o.ConsumedCapacity)
			}
			return nil
		}},
	}
}
