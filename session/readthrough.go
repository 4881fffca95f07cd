package session

import (
	"context"
	"errors"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// ReadThroughOptions set the bounds of a read-through. Zero fields have the defaults.
type ReadThroughOptions struct {
	Fresh time.Duration // F, 10 s: how long a copy counts
	Skew  time.Duration // σ, 1 s: how far any clock is from the true time. Fresh/2 > 2·Skew
	// StaleGrace is for how much longer a copy answers, as degraded, while the durable
	// store does not. Every bound grows by as much. 0 = not at all.
	StaleGrace  time.Duration
	MaxReads    int           // durable reads under way at once, 256
	ReadTimeout time.Duration // of one durable read, 5 s
	Now         func() time.Time
}

// The bounds of work that nobody waits for, and of the wait for a free read.
const (
	maxTouches   = 64
	touchTimeout = 2 * time.Second
	queueTime    = 100 * time.Millisecond
)

// A ReadThrough is the Store that answers verifies from a cache where it can, and
// everything else from the durable store.
//
// A change shows in every verify that starts Fresh + StaleGrace + 2·Skew after it was
// acknowledged, whatever the cache loses; and in every later one if it was propagated
// and the cache loses nothing. The first rests on copies that count from before their
// read began, on reading the user's record before the session's, and on versions that
// must be equal; the second on fills and flights that are refused once they are older
// than half of Fresh, and on the bump. A cache that does not answer costs a durable
// read and nothing else.
type ReadThrough struct {
	Store   // what no cache answers
	durable Durable
	cache   Cache
	opts    ReadThroughOptions
	terms   Terms
	flights flights
	touches touches

	background crew
}

// NewReadThrough puts the cache before the durable store. It panics where Fresh/2 is
// not above 2·Skew: nothing it promises would hold.
func NewReadThrough(durable Durable, cache Cache, opts ReadThroughOptions) *ReadThrough {
	opts.Fresh = orDefault(opts.Fresh, 10*time.Second)
	opts.Skew = orDefault(opts.Skew, time.Second)
	opts.ReadTimeout = orDefault(opts.ReadTimeout, 5*time.Second)
	if opts.MaxReads == 0 {
		opts.MaxReads = 256
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Fresh/2 <= 2*opts.Skew {
		panic("session: half of Fresh must be more than twice Skew")
	}
	return &ReadThrough{
		Store: durable, durable: durable, cache: cache, opts: opts,
		terms:   Terms{Fresh: opts.Fresh, Stale: opts.StaleGrace},
		flights: flights{under: map[Key]*flight{}, slots: make(chan struct{}, opts.MaxReads)},
		touches: touches{under: map[Key]bool{}},
	}
}

// Verify implements Store. Warm, it costs one command of the cache and no durable
// read; cold, one command, one Load and one fill. A verdict is degraded where the
// cache did not answer (it is the durable store's then, and exact), or the durable
// store did not (it is up to Fresh + StaleGrace old then).
func (t *ReadThrough) Verify(ctx context.Context, op VerifyOp) (Verdict, error) {
	seen, err := t.cache.Verify(ctx, op, t.terms)
	if ctx.Err() != nil {
		return Verdict{}, ctx.Err()
	}
	cacheDown := err != nil
	if cacheDown {
		seen = Cached{}
	}
	verdict, agreed := seen.verdict(op)
	if seen.Found == FoundFresh && agreed {
		if seen.TouchDurably {
			t.touch(ctx, op.Key, seen.Record.Seen)
		}
		return verdict, nil
	}
	fromStore, err := t.verifyDurably(ctx, op, seen)
	switch {
	case err == nil:
		fromStore.Source, fromStore.Degraded = FromStore, cacheDown
		return fromStore, nil
	case seen.Found == FoundStale && agreed && ctx.Err() == nil:
		verdict.Degraded = true
		return verdict, nil
	}
	return Verdict{}, err
}

// verdict is what the copies amount to at the cache's instant. It counts only where
// this package's transition agrees with the cache's own judgement: a defect in one
// of the two costs a read, and is never an answer.
func (c Cached) verdict(op VerifyOp) (v Verdict, agreed bool) {
	if c.Found == FoundNothing {
		return Verdict{}, false
	}
	op.Now, op.NoTouch = instant(c.At), true
	_, v = Verify(c.User, c.Record, op, CacheTracking(c.Record.Idle))
	v.Source = FromCache
	if t := DurableTracking(c.Record.Idle); v.Active { // the durable store has the last word on that
		v.Session.IdleExpiresAt = instant(min(c.Record.Absolute, c.DurableSeen+c.Record.Idle+t.Slack))
	}
	return v, v.Reason == c.Reason && !c.Reason.mayTurn()
}

// verifyDurably judges by what a flight reads. One that had begun before this call
// may have read before a change that this call must see. So its answer counts only
// if it is of the version at least that the cache knows of, and its no only if no
// write can have changed that since; else this call reads for itself.
func (t *ReadThrough) verifyDurably(ctx context.Context, op VerifyOp, seen Cached) (Verdict, error) {
	for mayJoin := true; ; mayJoin = false {
		f, joined := t.fly(ctx, op, seen.At, mayJoin)
		select {
		case <-f.done:
		case <-ctx.Done():
			return Verdict{}, ctx.Err()
		}
		if f.err != nil {
			return Verdict{}, f.err
		}
		if joined && f.user.Version < seen.Version {
			continue
		}
		used, verdict := Verify(f.user, f.record, op, DurableTracking(f.record.Idle))
		if joined && verdict.Reason.mayTurn() {
			continue
		}
		if used.Seen != f.record.Seen {
			t.touch(ctx, op.Key, used.Seen)
		}
		return verdict, nil
	}
}

// Create implements Store. A login that ended an idle session raised the version.
func (t *ReadThrough) Create(ctx context.Context, op CreateOp) (Session, Outcome, error) {
	s, outcome, err := t.durable.Create(ctx, op)
	if err == nil && outcome == Done && op.MaxSessions > 0 {
		t.propagate(ctx, op.User.Tag)
	}
	return s, outcome, err
}

// Rotate implements Store.
func (t *ReadThrough) Rotate(ctx context.Context, op RotateOp) (Session, Propagation, Outcome, error) {
	s, p, outcome, err := t.durable.Rotate(ctx, op)
	if concernsCache(outcome, err) {
		p = t.propagate(ctx, op.Tag)
	}
	return s, p, outcome, err
}

// Revoke implements Store. It also tells the cache of a session that had ended
// before: whoever ended it may not have.
func (t *ReadThrough) Revoke(ctx context.Context, op RevokeOp) (Propagation, Outcome, error) {
	p, outcome, err := t.durable.Revoke(ctx, op)
	if concernsCache(outcome, err) {
		p = t.propagate(ctx, op.Tag)
	}
	return p, outcome, err
}

// Change implements Store.
func (t *ReadThrough) Change(ctx context.Context, op ChangeOp) (Changed, Outcome, error) {
	c, outcome, err := t.durable.Change(ctx, op)
	if concernsCache(outcome, err) {
		c.Propagation = t.propagate(ctx, op.User.Tag)
	}
	return c, outcome, err
}

// concernsCache reports whether the cache is to be told: also of a change that may have happened.
func concernsCache(outcome Outcome, err error) bool {
	if err != nil {
		return errors.Is(err, keytype.ErrOutcomeUnknown)
	}
	return outcome == Done
}

// propagate tells the cache after a durable change. The change stands whatever comes
// of it, and so it does not end with the caller's patience.
func (t *ReadThrough) propagate(ctx context.Context, tag string) Propagation {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.ReadTimeout)
	defer cancel()
	u, err := t.durable.LoadUser(ctx, tag)
	if err == nil {
		err = t.cache.Bump(ctx, tag, u.Version, t.terms)
	}
	now := instant(t.opts.Now().UnixMilli())
	if err != nil {
		return Propagation{EffectiveBy: now.Add(t.opts.Fresh + t.opts.StaleGrace + 2*t.opts.Skew)}
	}
	return Propagation{Propagated: true, EffectiveBy: now}
}
