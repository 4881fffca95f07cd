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
	Elsewhere   Elsewhere // nil: every process over the durable store goes through this cache
}

// Elsewhere reports that processes over the same durable store may go through another
// cache than the caller's, and for how long at most after a change these may answer with what was before it.
type Elsewhere func() (yes bool, bound time.Duration)

// The bounds of work that nobody waits for, and of the wait for a free read.
const (
	maxTouches   = 64
	touchTimeout = 2 * time.Second
	queueTime    = 100 * time.Millisecond
	tellTime     = 250 * time.Millisecond // at least, to tell the cache of a change
	staleWait    = 250 * time.Millisecond // for the durable store, by who has a stale answer
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
// read and nothing else. While others go through another cache this one is not asked,
// and no change is said to be propagated.
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
	if opts.Elsewhere == nil {
		opts.Elsewhere = nowhere
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

// Bound is how long after a change an answer may be what it was before it.
func (t *ReadThrough) Bound() time.Duration {
	return t.opts.Fresh + t.opts.StaleGrace + 2*t.opts.Skew
}

func nowhere() (bool, time.Duration) { return false, 0 }

// Verify implements Store. Warm, it costs one command of the cache and no durable
// read; cold, one command, one Load and one fill. A verdict is degraded where the
// cache did not answer or is not asked (it is the durable store's then, and exact), or the durable
// store did not (it is up to Fresh + StaleGrace old then).
func (t *ReadThrough) Verify(ctx context.Context, op VerifyOp) (Verdict, error) {
	seen, err := t.look(ctx, op)
	if ctx.Err() != nil {
		return Verdict{}, ctx.Err()
	}
	cacheDown := err != nil
	verdict, agreed := seen.verdict(op)
	if seen.Found == FoundFresh && agreed {
		if seen.TouchDurably {
			t.touch(ctx, op.Key, seen.Record.Seen)
		}
		return verdict, nil
	}
	wait, cancel := ctx, context.CancelFunc(func() {})
	if seen.Found == FoundStale && agreed {
		wait, cancel = context.WithTimeout(ctx, staleWait)
	}
	defer cancel()
	fromStore, err := t.verifyDurably(wait, op, seen)
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

// errElsewhere is why a cache is not asked.
var errElsewhere = errors.New("session: others go through another cache")

// look asks the cache, if it is the one that all processes go through.
func (t *ReadThrough) look(ctx context.Context, op VerifyOp) (Cached, error) {
	if yes, _ := t.opts.Elsewhere(); yes {
		return Cached{}, errElsewhere
	}
	seen, err := t.cache.Verify(ctx, op, t.terms)
	if err != nil {
		return Cached{}, err
	}
	return seen, nil
}

// verdict is what the copies amount to. It counts only where
// this package's transition agrees with the cache's own judgement: a defect in one
// of the two costs a read, and is never an answer.
func (c Cached) verdict(op VerifyOp) (v Verdict, agreed bool) {
	if c.Found == FoundNothing {
		return Verdict{}, false
	}
	op.NoTouch = true
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
	if t.concernsCache(ctx, op.Tag, outcome, err) {
		p = t.propagate(ctx, op.Tag)
	}
	return s, p, outcome, err
}

// Revoke implements Store. It also tells the cache of a session that had ended
// before: whoever ended it may not have.
func (t *ReadThrough) Revoke(ctx context.Context, op RevokeOp) (Propagation, Outcome, error) {
	p, outcome, err := t.durable.Revoke(ctx, op)
	if t.concernsCache(ctx, op.Tag, outcome, err) {
		p = t.propagate(ctx, op.Tag)
	}
	return p, outcome, err
}

// Change implements Store.
func (t *ReadThrough) Change(ctx context.Context, op ChangeOp) (Changed, Outcome, error) {
	c, outcome, err := t.durable.Change(ctx, op)
	if t.concernsCache(ctx, op.User.Tag, outcome, err) {
		c.Propagation = t.propagate(ctx, op.User.Tag)
	}
	return c, outcome, err
}

// concernsCache reports whether the cache is to be told before the caller is. Of a
// change that may have happened it is told later: nobody is promised that it was, and
// to read the store that has just failed would double the caller's wait.
func (t *ReadThrough) concernsCache(ctx context.Context, tag string, outcome Outcome, err error) bool {
	if errors.Is(err, keytype.ErrOutcomeUnknown) {
		ctx := context.WithoutCancel(ctx)
		t.background.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, t.opts.ReadTimeout)
			defer cancel()
			_ = t.tell(ctx, tag) // where it fails, the copies run out
		})
	}
	return err == nil && outcome == Done
}

// propagate tells the cache after a durable change. The change stands whatever comes
// of it, and so it does not end with a caller who leaves. It has what is left of the
// request's time, and a moment where that is over.
func (t *ReadThrough) propagate(ctx context.Context, tag string) Propagation {
	until := time.Now().Add(t.opts.ReadTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	if soonest := time.Now().Add(tellTime); until.Before(soonest) {
		until = soonest
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	err := t.tell(ctx, tag)
	elsewhere, bound := t.opts.Elsewhere()
	now := instant(t.opts.Now().UnixMilli())
	if err != nil || elsewhere {
		return Propagation{EffectiveBy: now.Add(max(bound, t.Bound()))}
	}
	return Propagation{Propagated: true, EffectiveBy: now}
}

// tell hands the cache the user's version.
func (t *ReadThrough) tell(ctx context.Context, tag string) error {
	u, err := t.durable.LoadUser(ctx, tag)
	if err != nil {
		return err
	}
	return t.cache.Bump(ctx, tag, u.Version, t.terms)
}
