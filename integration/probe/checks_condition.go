package probe

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// conditionChecks probe condition expressions.
func conditionChecks() []check {
	return []check{
		{"cond.lease: attribute_not_exists OR (expires<:now AND owner<>:o) OR owner=:o", func(t *subject) error {
			k := t.pk()
			acq := func(o string, now, exp int) (bool, error) {
				_, e := t.upd(k, update{
					up:    "SET #o = :o, expires = :e, fence = if_not_exists(fence,:z) + :one",
					cond:  "attribute_not_exists(pk) OR (expires < :now AND #o <> :o) OR #o = :o",
					names: map[string]string{"#o": "owner"}, vals: item{":o": text(o), ":e": integer(exp), ":now": integer(now), ":z": number("0"), ":one": number("1")},
				})
				if e == nil {
					return true, nil
				}
				if codeOf(e) == conditionFail {
					return false, nil
				}
				return false, e
			}
			for i, x := range []struct {
				o        string
				now, exp int
				w        bool
			}{{"A", 100, 110, true}, {"B", 105, 115, false}, {"A", 106, 116, true}, {"B", 117, 127, true}, {"A", 118, 128, false}} {
				g, e := acq(x.o, x.now, x.exp)
				if e != nil {
					return e
				}
				if g != x.w {
					return fmt.Errorf("step %d got %v want %v", i, g, x.w)
				}
			}
			g, e := t.get(k)
			if e != nil || numberOf(g["fence"]) != "3" || textOf(g["owner"]) != "B" {
				return fmt.Errorf("final %v: %w", show(g), e)
			}
			return nil
		}},
		{"cond.operators: <,<=,>=,<>,BETWEEN,IN,NOT,attr-attr,precedence", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["a"], it["b"], it["s"] = number("9"), number("10"), text("hello")
			if e := t.put(it); e != nil {
				return e
			}
			v := item{":1": number("9"), ":2": number("10"), ":3": number("100"), ":h": text("hello"), ":x": text("x")}
			return t.conds(k, v, []verdict{
				{"a < :2", true},
				{"a < b", true},
				{"b < a", false},
				{"a <= :1", true},
				{"b >= :3", false},
				{"s <> :x", true},
				{"a BETWEEN :1 AND :2", true},
				{"b BETWEEN :2 AND :3", true},
				{"a BETWEEN :2 AND :3", false},
				{"s IN (:x, :h)", true},
				{"s IN (:x)", false},
				{"NOT s = :x", true},
				{"NOT (a = :1 AND b = :2)", false},
				{"s = :x AND a = :1 OR b = :2", true},
				{"s = :x AND (a = :1 OR b = :2)", false},
				{"nosuch < :3", false},
				{"nosuch <> :3", true},
				{"s < :3", false},
			})
		}},
		{"cond.functions: size,begins_with,contains,attribute_type,attribute_exists", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["s"], it["n"] = text("hello"), number("5")
			it["ss"] = &types.AttributeValueMemberSS{Value: []string{"a", "b"}}
			it["l"] = &types.AttributeValueMemberL{Value: []value{text("q"), number("2"), text("z")}}
			it["m"] = &types.AttributeValueMemberM{Value: item{"k": text("v")}}
			if e := t.put(it); e != nil {
				return e
			}
			v := item{":2": number("2"), ":3": number("3"), ":5": number("5"), ":h": text("he"), ":a": text("a"), ":S": text("S"), ":N": text("N"), ":l": text("ell"), ":v": text("v")}
			return t.conds(k, v, []verdict{
				{"size(s) = :5", true},
				{"size(ss) < :3", true},
				{"size(ss) < :2", false},
				{"size(l) = :3", true},
				{"size(nosuch) < :3", false},
				{"begins_with(s, :h)", true},
				{"begins_with(s, :l)", false},
				{"contains(s, :l)", true},
				{"contains(ss, :a)", true},
				{"contains(ss, :h)", false},
				{"contains(l, :2)", true},
				{"attribute_type(s, :S)", true},
				{"attribute_type(s, :N)", false},
				{"attribute_exists(m.k)", true},
				{"attribute_not_exists(m.j)", true},
				{"m.k = :v", true},
				{"l[1] = :2", true},
			})
		}},
		{"cond.failure leaves item untouched / creates nothing", func(t *subject) error {
			k := t.pk()
			_, e := t.upd(k, update{up: "SET x = :v", cond: "attribute_exists(pk)", vals: item{":v": number("1")}})
			if x := want(conditionFail, e); x != nil {
				return x
			}
			g, e := t.get(k)
			if e != nil {
				return e
			}
			if len(g) != 0 {
				return fmt.Errorf("created %v", show(g))
			}
			return nil
		}},
	}
}
