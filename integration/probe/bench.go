package probe

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// A BenchResult tells how fast an engine renews leases.
type BenchResult struct {
	Goroutines int
	OpsPerSec  float64
	P50, P99   time.Duration
	N          int
}

// Bench measures conditional updates in the shape of a lease's renewal for d, each
// goroutine on an item of its own, in a table that it makes.
func Bench(ctx context.Context, client *dynamodb.Client, table string, goroutines int, d time.Duration) (BenchResult, error) {
	t := &subject{client: client, table: table, ctx: ctx}
	if err := createTable(t); err != nil {
		return BenchResult{}, fmt.Errorf("create table: %w", err)
	}
	if err := waitActive(t); err != nil {
		return BenchResult{}, fmt.Errorf("wait for table: %w", err)
	}
	for i := range goroutines {
		if err := t.put(item{"pk": text(fmt.Sprintf("b%d", i)), "sk": text("a"), "own": text("me"), "v": number("0")}); err != nil {
			return BenchResult{}, fmt.Errorf("put: %w", err)
		}
	}
	took := make([][]time.Duration, goroutines)
	begin := time.Now()
	err := together(goroutines, func(i int) error {
		for time.Since(begin) < d {
			s := time.Now()
			if err := renew(t, fmt.Sprintf("b%d", i), s); err != nil {
				return err
			}
			took[i] = append(took[i], time.Since(s))
		}
		return nil
	})
	elapsed := time.Since(begin)
	if err != nil {
		return BenchResult{}, fmt.Errorf("renew: %w", err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	return BenchResult{goroutines, float64(len(all)) / elapsed.Seconds(), all[len(all)/2], all[len(all)*99/100], len(all)}, nil
}

func renew(t *subject, pk string, now time.Time) error {
	_, err := t.upd(pk, update{
		up:   "SET expires = :e, v = if_not_exists(v,:z) + :one",
		cond: "own = :me AND (attribute_not_exists(dead) OR dead <> :one)",
		vals: item{":e": integer(int(now.UnixMilli())), ":z": number("0"), ":one": number("1"), ":me": text("me")},
	})
	return err
}
