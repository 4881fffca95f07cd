package probe

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// concurrencyChecks probe that concurrent writes are atomic.
func concurrencyChecks() []check {
	return []check{
		{"conc.64 goroutines CAS increments (exactly 64 successes, final=64)", func(t *subject) error {
			k := t.pk()
			it := t.key(k)
			it["v"] = number("0")
			if e := t.put(it); e != nil {
				return e
			}
			var ok, confl atomic.Int64
			err := together(64, func(int) error {
				for {
					g, e := t.get(k)
					if e != nil {
						return e
					}
					_, e = t.upd(k, update{up: "SET v = v + :one", cond: "v = :cur", vals: item{":one": number("1"), ":cur": g["v"]}})
					if e == nil {
						ok.Add(1)
						return nil
					}
					if codeOf(e) != conditionFail {
						return e
					}
					confl.Add(1)
				}
			})
			if err != nil {
				return err
			}
			g, _ := t.get(k)
			if ok.Load() != 64 || numberOf(g["v"]) != "64" {
				return fmt.Errorf("ok=%d final=%s", ok.Load(), numberOf(g["v"]))
			}
			return nil
		}},
		{"conc.64x20 ADD (final=1280)", func(t *subject) error {
			k := t.pk()
			err := together(64, func(int) error {
				for range 20 {
					if _, e := t.upd(k, update{up: "ADD v :one", vals: item{":one": number("1")}}); e != nil {
						return e
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			g, _ := t.get(k)
			if numberOf(g["v"]) != "1280" {
				return fmt.Errorf("LOST UPDATES: final=%s", numberOf(g["v"]))
			}
			return nil
		}},
		{"conc.64 race one acquire x50 rounds (1 winner each)", func(t *subject) error {
			for r := range 50 {
				k := t.pk()
				var win atomic.Int64
				err := together(64, func(i int) error {
					_, e := t.upd(k, update{up: "SET #o = :o", cond: "attribute_not_exists(pk)", names: map[string]string{"#o": "owner"}, vals: item{":o": integer(i)}})
					if e == nil {
						win.Add(1)
						return nil
					}
					if codeOf(e) != conditionFail {
						return e
					}
					return nil
				})
				if err != nil {
					return err
				}
				if win.Load() != 1 {
					return fmt.Errorf("round %d: %d winners", r, win.Load())
				}
			}
			return nil
		}},
		{"conc.64 race TransactWrite acquire x20 rounds (1 winner)", func(t *subject) error {
			for r := range 20 {
				k, q := t.pk(), t.pk()
				var win atomic.Int64
				err := together(64, func(int) error {
					_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
						{Put: &types.Put{TableName: &t.table, Item: t.key(k), ConditionExpression: new("attribute_not_exists(pk)")}},
						{Update: &types.Update{TableName: &t.table, Key: t.key(q), UpdateExpression: new("ADD used :one"), ExpressionAttributeValues: item{":one": number("1")}}},
					}})
					if e == nil {
						win.Add(1)
						return nil
					}
					var tc *types.TransactionCanceledException
					if !errors.As(e, &tc) {
						return e
					}
					return nil
				})
				if err != nil {
					return err
				}
				g, _ := t.get(q)
				if win.Load() != 1 || numberOf(g["used"]) != "1" {
					return fmt.Errorf("round %d: %d winners used=%s", r, win.Load(), numberOf(g["used"]))
				}
			}
			return nil
		}},
		{"conc.quota transfers: 32 goroutines x10 2-item tx, sum invariant, readers see it", func(t *subject) error {
			ks := []string{t.pk(), t.pk(), t.pk(), t.pk()}
			for _, k := range ks {
				it := t.key(k)
				it["v"] = number("1000")
				if e := t.put(it); e != nil {
					return e
				}
			}
			var skew atomic.Int64
			err := together(33, func(i int) error {
				if i == 32 {
					for range 30 {
						o, e := t.client.TransactGetItems(t.ctx, &dynamodb.TransactGetItemsInput{TransactItems: []types.TransactGetItem{{Get: &types.Get{TableName: &t.table, Key: t.key(ks[0])}}, {Get: &types.Get{TableName: &t.table, Key: t.key(ks[1])}}, {Get: &types.Get{TableName: &t.table, Key: t.key(ks[2])}}, {Get: &types.Get{TableName: &t.table, Key: t.key(ks[3])}}}})
						if e != nil {
							var tc *types.TransactionCanceledException
							if errors.As(e, &tc) {
								continue
							}
							return e
						}
						s := 0
						for _, r := range o.Responses {
							x, e := strconv.Atoi(numberOf(r.Item["v"]))
							if e != nil {
								return e
							}
							s += x
						}
						if s != 4000 {
							skew.Add(1)
						}
					}
					return nil
				}
				for j := range 10 {
					a, b := ks[(i+j)%4], ks[(i+j+1+j%3)%4]
					for {
						_, e := t.client.TransactWriteItems(t.ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
							{Update: &types.Update{TableName: &t.table, Key: t.key(a), UpdateExpression: new("SET v = v - :n"), ConditionExpression: new("v >= :n"), ExpressionAttributeValues: item{":n": number("3")}}},
							{Update: &types.Update{TableName: &t.table, Key: t.key(b), UpdateExpression: new("SET v = v + :n"), ExpressionAttributeValues: item{":n": number("3")}}},
						}})
						if e == nil {
							break
						}
						var tc *types.TransactionCanceledException
						if !errors.As(e, &tc) {
							return e
						}
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			s := 0
			for _, k := range ks {
				g, _ := t.get(k)
				x, e := strconv.Atoi(numberOf(g["v"]))
				if e != nil {
					return e
				}
				s += x
			}
			if s != 4000 || skew.Load() != 0 {
				return fmt.Errorf("sum=%d (4000), skewed reads=%d", s, skew.Load())
			}
			return nil
		}},
	}
}
