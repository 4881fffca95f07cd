package quotatest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/histories"
	"github.com/coordsvc/coordsvc/quota"
)

// Agree drives all stores with the same random histories, each of a quota of its
// own, and demands that every answer is the ledger's.
func Agree(t *testing.T, stores map[string]quota.Store) {
	history, seen := 0, map[string]int{}
	wanted := []string{
		"use don", "use exc", "use mis", "use uns", "settle don", "settle exp", "settle mis", "settle too", "settle no ", "settle spa", "set don", "get don", "get uns",
	}
	histories.Check(t, seen, wanted, func(rt *rapid.T) {
		history++
		g := &generator{t: rt, id: quota.ID{Tenant: "t", Name: "n", Subject: fmt.Sprint(history)}, ledger: newLedger(), now: start}
		for range rapid.IntRange(1, 40).Draw(rt, "length") {
			op := g.next()
			want := op.expect(g.ledger)
			seen[op.kind+" "+want[:min(len(want), 3)]]++
			for name, s := range stores {
				if got := op.do(t.Context(), s); got != want {
					rt.Fatalf("%s on %s:\n got %s\nwant %s", op.name, name, got, want)
				}
			}
		}
	})
}

// An operation has the same answer on every store, written out.
type operation struct {
	kind, name string
	do         func(ctx context.Context, s quota.Store) string
	expect     func(l *ledger) string
}

// A generator draws operations that often concern what went before.
type generator struct {
	t      *rapid.T
	id     quota.ID
	ledger *ledger
	now    time.Time
	calls  int
}

func (g *generator) next() operation {
	g.calls++
	g.now = g.now.Add(time.Duration(rapid.SampledFrom([]int{-5, 0, 0, 1, 1, 10, 10, 40, 90, hour, day}).Draw(g.t, "later")) * time.Millisecond)
	now := g.now
	kinds := []string{"set", "use", "use", "use", "use", "settle", "settle", "settle", "get"}
	if g.ledger.def == nil {
		kinds = []string{"set", "set", "set", "use", "get"}
	}
	switch kind := rapid.SampledFrom(kinds).Draw(g.t, "operation"); kind {
	case "set":
		d := quota.Definition{
			Limit:  rapid.Int64Range(1, 20).Draw(g.t, "limit"),
			Window: rapid.SampledFrom([]quota.Window{quota.None, quota.None, quota.Day, quota.Month, quota.Every(100 * time.Millisecond)}).Draw(g.t, "window"),
			Zone:   rapid.SampledFrom([]string{"UTC", "UTC", "Asia/Tokyo"}).Draw(g.t, "zone"),
		}
		return operation{
			kind, fmt.Sprintf("set %+v", d),
			func(ctx context.Context, s quota.Store) string { return show(s.Set(ctx, g.id, d, now)) },
			func(l *ledger) string { return l.set(d, now) },
		}
	case "use":
		return g.use(now)
	case "settle":
		return g.settle(now)
	default:
		return operation{
			kind, "get",
			func(ctx context.Context, s quota.Store) string { return show(s.Get(ctx, g.id, now)) },
			func(l *ledger) string { return l.get(now) },
		}
	}
}

func (g *generator) use(now time.Time) operation {
	req := quota.Use{
		Amount:    rapid.Int64Range(1, 8).Draw(g.t, "amount"),
		RequestID: rapid.SampledFrom([]string{"q1", "q2", "q3", fmt.Sprintf("q%d", g.calls+3)}).Draw(g.t, "request id"),
		Now:       now,
	}
	if rapid.Bool().Draw(g.t, "reserve") {
		req.Reservation = fmt.Sprintf("rsv_%d", g.calls)
		req.TTL = time.Duration(rapid.IntRange(1, 100).Draw(g.t, "ttl")) * time.Millisecond
	}
	return operation{
		"use", fmt.Sprintf("use %+v", req),
		func(ctx context.Context, s quota.Store) string { return show(s.Use(ctx, g.id, req)) },
		func(l *ledger) string { return l.use(req) },
	}
}

func (g *generator) settle(now time.Time) operation {
	known := []string{"rsv_none"}
	for _, e := range g.ledger.entries[max(0, len(g.ledger.entries)-4):] {
		if e.reservation != "" {
			known = append(known, e.reservation)
		}
	}
	req := quota.Settle{
		Reservation: known[len(known)-1],
		Action:      rapid.SampledFrom([]quota.Action{quota.Commit, quota.Commit, quota.Cancel, quota.Lapse}).Draw(g.t, "action"),
		Now:         now,
	}
	if rapid.IntRange(0, 2).Draw(g.t, "another") == 0 {
		req.Reservation = rapid.SampledFrom(known).Draw(g.t, "reservation")
	}
	if req.Action == quota.Commit {
		req.Amount = rapid.Int64Range(0, 8).Draw(g.t, "amount")
	}
	return operation{
		"settle", fmt.Sprintf("settle %+v", req),
		func(ctx context.Context, s quota.Store) string { return show(s.Settle(ctx, g.id, req)) },
		func(l *ledger) string { return l.settle(req) },
	}
}

// show writes out what matters to a caller.
func show(out quota.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	if out.Verdict != quota.Done && out.Verdict != quota.Exceeded {
		return verdicts[out.Verdict]
	}
	a := out.Account
	return answer(verdicts[out.Verdict], a.ID, a.Limit, a.Available, a.Reserved, a.Used, out.Reservation, out.Until)
}

func answer(verdict, frame string, limit, available, reserved, used int64, reservation string, until time.Time) string {
	return fmt.Sprintf("%s %s %d=%d+%d+%d %s %d", verdict, frame, limit, available, reserved, used, reservation, until.UnixMilli())
}
