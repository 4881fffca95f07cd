package probe

import (
	"errors"
	"fmt"
	"strings"
)

// numberChecks probe that numbers are exact.
func numberChecks() []check {
	return []check{
		{"num.38 digits exact", func(t *subject) error {
			k := t.pk()
			big := "12345678901234567890123456789012345678"
			it := t.key(k)
			it["n"], it["d"] = number(big), number("0.1234567890123456789012345678901234567")
			if e := t.put(it); e != nil {
				return e
			}
			g, e := t.get(k)
			if e != nil {
				return e
			}
			if numberOf(g["n"]) != big || numberOf(g["d"]) != "0.1234567890123456789012345678901234567" {
				return fmt.Errorf("n=%s d=%s", numberOf(g["n"]), numberOf(g["d"]))
			}
			return nil
		}},
		{"num.2^53+1 exact: store, SET +1, ADD, compare", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["n"], it["m"] = number("9007199254740993"), number("9007199254740993")
			if e := t.put(it); e != nil {
				return e
			}
			o, e := t.upd(k, update{up: "SET n = n + :one ADD m :one", vals: item{":one": number("1")}, rv: "ALL_NEW"})
			if e != nil {
				return e
			}
			var bad []string
			if numberOf(o.Attributes["n"]) != "9007199254740994" {
				bad = append(bad, "SET+1 -> "+numberOf(o.Attributes["n"]))
			}
			if numberOf(o.Attributes["m"]) != "9007199254740994" {
				bad = append(bad, "ADD -> "+numberOf(o.Attributes["m"]))
			}
			// 2^53+1 vs 2^53 must differ
			k2 := t.pk()
			it2 := t.key(k2)
			it2["n"] = number("9007199254740993")
			if e := t.put(it2); e != nil {
				return e
			}
			if c, e := t.cond(k2, "n = :x", nil, item{":x": number("9007199254740992")}); e != nil || c {
				bad = append(bad, fmt.Sprintf("2^53+1 = 2^53 is %v (%v)", c, e))
			}
			if c, e := t.cond(k2, "n > :x", nil, item{":x": number("9007199254740992")}); e != nil || !c {
				bad = append(bad, fmt.Sprintf("2^53+1 > 2^53 is %v (%v)", c, e))
			}
			if bad != nil {
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"num.epoch-ns fence: 1793577600123456789 + 1 exact", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["n"] = number("1793577600123456789")
			if e := t.put(it); e != nil {
				return e
			}
			o, e := t.upd(k, update{up: "ADD n :one", vals: item{":one": number("1")}, rv: "UPDATED_NEW"})
			if e != nil {
				return e
			}
			if numberOf(o.Attributes["n"]) != "1793577600123456790" {
				return errors.New(numberOf(o.Attributes["n"]))
			}
			return nil
		}},
		{"num.>38 digits / not a number -> ValidationException", func(t *subject) error {
			var bad []string
			for _, v := range []string{"123456789012345678901234567890123456789", "abc", "1e200"} {
				it := t.key(t.pk())
				it["n"] = number(v)
				if x := want(invalid, t.put(it)); x != nil {
					bad = append(bad, v[:3]+": "+x.Error())
				}
			}
			if bad != nil {
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
		{"num.0.1+0.2 = 0.3 and 1.0 normalised to 1", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["n"], it["o"] = number("0.1"), number("1.0")
			if e := t.put(it); e != nil {
				return e
			}
			o, e := t.upd(k, update{up: "ADD n :x", vals: item{":x": number("0.2")}, rv: "ALL_NEW"})
			if e != nil {
				return e
			}
			if numberOf(o.Attributes["n"]) != "0.3" || numberOf(o.Attributes["o"]) != "1" {
				return fmt.Errorf("n=%s o=%s", numberOf(o.Attributes["n"]), numberOf(o.Attributes["o"]))
			}
			return nil
		}},
	}
}
