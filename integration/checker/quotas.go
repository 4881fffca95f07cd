package checker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

// numbered is a quota store whose reservations have numbers for ids: where they are kept,
// and in which order they expire, is a matter of their ids, which the seed must decide too.
type numbered struct {
	quota.Store
	made *int // by all nodes
}

// Use implements quota.Store.
func (n numbered) Use(ctx context.Context, id quota.ID, req quota.Use) (quota.Outcome, error) {
	if req.Reservation != "" {
		*n.made++
		req.Reservation = fmt.Sprintf("rsv_%d", *n.made)
	}
	return n.Store.Use(ctx, id, req)
}

// A consumer uses a quota: at once, or by reservations that it commits, cancels or forgets.
type consumer struct {
	h      *history
	quotas *quota.Manager
	task   *task
	name   string
	id     quota.ID
	seen   *units
	calls  int
}

// units are what the consumers of a history saw of their one quota.
type units struct {
	h       *history
	limit   int64 // the largest that was asked for
	lowered bool
	jobs    []*job
}

// A job is one use of units.
type job struct {
	requestID string
	amount    int64
	reserve   bool
	taken     bool          // known to be
	first     quota.Granted // the first answer
	end       int64         // asked to be used: 0 to cancel, -1 = not ended
	used      int64         // known to be used, once settled
	settled   bool
}

func (c *consumer) work(ctx context.Context, t *task) {
	c.task = t
	ctx = t.context(ctx)
	for c.h.left > 0 {
		switch d := c.h.rng.Float64(); {
		case d < 0.08:
			c.set(ctx)
		case d < 0.16:
			c.call("get")
			q, err := c.quotas.Get(ctx, c.id)
			c.seen.answer(q, err)
		case d < 0.24:
			c.call("sweep")
			_, _ = c.quotas.Sweep(ctx)
		default:
			c.job(ctx)
		}
		t.sleep(c.h.between(0, 60*time.Millisecond))
	}
}

func (c *consumer) call(what string) {
	c.h.left--
	c.h.counts["calls"]++
	c.h.note(what)
}

func (c *consumer) set(ctx context.Context) {
	c.call("set limit")
	limit := c.seen.limit - 20 + c.h.rng.Int64N(60)
	c.seen.lowered = true
	c.seen.limit = max(c.seen.limit, limit)
	_ = c.define(ctx, max(1, limit))
}

func (c *consumer) define(ctx context.Context, limit int64) error {
	q, err := c.quotas.Set(ctx, c.id, quota.Definition{Limit: limit, Window: quota.None})
	c.seen.answer(q, err)
	return err
}

// job takes units and, at times after a pause that its reservation may not survive, ends them.
func (c *consumer) job(ctx context.Context) {
	c.calls++
	j := &job{requestID: fmt.Sprintf("%s-%d", c.name, c.calls), amount: 1 + c.h.rng.Int64N(20), reserve: c.h.chance(0.75), end: -1}
	c.seen.jobs = append(c.seen.jobs, j)
	c.take(ctx, j)
	if c.h.chance(0.15) {
		c.take(ctx, j) // a repetition
	}
	if !j.taken || !j.reserve {
		return
	}
	c.task.sleep(c.h.between(0, 100*time.Millisecond))
	if c.h.chance(0.25) {
		c.h.note("pauses")
		c.task.sleep(c.h.between(0, 6*guard))
	}
	switch d := c.h.rng.Float64(); {
	case d < 0.15: // it crashed
		return
	case d < 0.55:
		j.end = 0
	default:
		j.end = 1 + c.h.rng.Int64N(j.amount)
	}
	c.settle(ctx, j)
	if c.h.chance(0.15) {
		c.settle(ctx, j)
	}
}

// take asks for the job's units: again it must get the first answer.
func (c *consumer) take(ctx context.Context, j *job) {
	if j.reserve {
		c.call("reserve")
		g, err := c.quotas.Reserve(ctx, c.id, quota.ReserveRequest{Amount: j.amount, RequestID: j.requestID, TTL: c.h.between(200*time.Millisecond, 4*guard)})
		c.seen.took(j, g, err)
		return
	}
	c.call("consume")
	q, err := c.quotas.Consume(ctx, c.id, j.amount, j.requestID)
	c.seen.took(j, quota.Granted{Quota: q}, err)
}

func (c *consumer) settle(ctx context.Context, j *job) {
	var (
		q   quota.Quota
		err error
	)
	if j.end == 0 {
		c.call("cancel")
		q, err = c.quotas.Cancel(ctx, c.id, j.first.Reservation)
	} else {
		c.call("commit")
		q, err = c.quotas.Commit(ctx, c.id, j.first.Reservation, j.end)
	}
	c.seen.answer(q, err)
	switch {
	case err == nil:
		c.seen.settledAs(j, j.end)
	case errors.Is(err, quota.ErrExpired):
		c.seen.settledAs(j, 0)
	case !fault(err):
		c.h.violate("every job can be ended", "reservation %s: %v", j.first.Reservation, err)
	}
}

func fault(err error) bool {
	return errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable)
}

// answer judges what a call shows of the quota.
func (u *units) answer(q quota.Quota, err error) {
	if err != nil {
		if unknown(err) {
			u.h.unknown++
			u.h.note("calls of unknown outcome")
		}
		return
	}
	if q.Available+q.Reserved+q.Used != q.Limit || q.Reserved < 0 || q.Used < 0 {
		u.h.violate("available + reserved + used = limit", "%+v", q)
	}
	if q.Used+q.Reserved > u.limit || q.Available < 0 && !u.lowered {
		u.h.violate("never oversold", "%+v, of at most %d", q, u.limit)
	}
}

func (u *units) took(j *job, g quota.Granted, err error) {
	u.answer(g.Quota, err)
	_, exceeded := errors.AsType[*quota.ExceededError](err)
	switch {
	case exceeded && j.taken:
		u.h.violate("a request gets one answer", "%s took %d units, then it was refused", j.requestID, j.amount)
	case exceeded || fault(err):
	case err != nil:
		u.h.violate("faults", "take %d units: %v", j.amount, err)
	case j.taken && (g.Reservation != j.first.Reservation || g.Quota != j.first.Quota):
		u.h.violate("a request gets one answer", "%s got %+v, then %+v", j.requestID, j.first, g)
	case !j.taken:
		j.taken, j.first = true, g
		if g.Available < 0 {
			u.h.violate("never oversold", "%s took %d units and left %+v", j.requestID, j.amount, g.Quota)
		}
		if !j.reserve {
			j.settled, j.used = true, j.amount
		}
	}
}

func (u *units) settledAs(j *job, used int64) {
	if j.settled && j.used != used {
		u.h.violate("a reservation ends once", "%s used %d units, then %d", j.requestID, j.used, used)
	}
	j.settled, j.used = true, used
}

// account asks again whatever nobody knows, lets what was forgotten expire, and
// demands that exactly what the jobs used is used.
func (u *units) account(ctx context.Context, c *consumer) {
	h := u.h
	for f := range h.rates {
		h.rates[f] = 0
	}
	h.start(time.Minute, func(t *task) {
		c.task, ctx = t, t.context(ctx)
		if n, err := c.quotas.Sweep(ctx); err != nil {
			h.violate("harness", "sweep: %d, %v", n, err)
		}
		total := int64(0)
		for _, j := range u.jobs {
			if !j.taken {
				c.take(ctx, j)
			}
			if j.taken && !j.settled {
				if j.end < 0 {
					j.end = 0
				}
				c.settle(ctx, j)
			}
			total += j.used
		}
		q, err := c.quotas.Get(ctx, c.id)
		u.answer(q, err)
		if err != nil || q.Used != total || q.Reserved != 0 {
			h.violate("no unit is lost", "stored is %+v, %v, and the jobs used %d", q, err, total)
		}
		h.counts["units used"] += int(total)
	})
	h.run()
}

// Quotas runs a history of about so many calls on one quota.
func Quotas(ctx context.Context, ground Ground, seed uint64, calls int, mutant Mutant) Result {
	h := newHistory("quotas", seed, mutant)
	h.beyond = h.chance(0.25)
	d, err := ground.data(h, true)
	if err != nil {
		h.violate("harness", "%v", err)
		return h.result()
	}
	defer d.close()
	seen := &units{h: h, limit: 60}
	var team []*consumer
	made := 0
	for i := range clients { // a node each: the steps of one node take turns
		n := &node{h: h, stores: d.node()}
		n.setClock()
		team = append(team, &consumer{
			h: h, name: string(rune('a' + i)), id: quota.ID{Tenant: h.tenant, Name: "n", Subject: "s"}, seen: seen,
			quotas: quota.New(numbered{n.stores.quotas, &made}, quota.Options{Guard: h.guard(), Now: n.now}),
		})
	}
	h.start(0, func(t *task) {
		if err := insist(func() error { return team[0].define(t.context(ctx), seen.limit) }); err != nil {
			h.violate("harness", "set the limit: %v", err)
		}
	})
	h.run()
	h.left = calls
	for _, c := range team {
		h.start(h.between(0, 50*time.Millisecond), func(t *task) { c.work(ctx, t) })
	}
	h.run()
	seen.account(ctx, team[0])
	return h.result()
}
