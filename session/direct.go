package session

import (
	"context"
	"time"
)

// A Direct is the Store of a process without a cache, over a durable store that other
// processes may read through one. A change that it makes shows there later.
type Direct struct {
	Durable
	elsewhere Elsewhere
	now       func() time.Time
}

// NewDirect makes one; now is time.Now where nil.
func NewDirect(durable Durable, elsewhere Elsewhere, now func() time.Time) *Direct {
	if now == nil {
		now = time.Now
	}
	return &Direct{durable, elsewhere, now}
}

// Rotate implements Store.
func (d *Direct) Rotate(ctx context.Context, op RotateOp) (Session, Propagation, Outcome, error) {
	s, p, outcome, err := d.Durable.Rotate(ctx, op)
	return s, d.dated(p), outcome, err
}

// Revoke implements Store.
func (d *Direct) Revoke(ctx context.Context, op RevokeOp) (Propagation, Outcome, error) {
	p, outcome, err := d.Durable.Revoke(ctx, op)
	return d.dated(p), outcome, err
}

// Change implements Store.
func (d *Direct) Change(ctx context.Context, op ChangeOp) (Changed, Outcome, error) {
	c, outcome, err := d.Durable.Change(ctx, op)
	c.Propagation = d.dated(c.Propagation)
	return c, outcome, err
}

// dated is asked after the change: who begins to cache later reads what is after it.
func (d *Direct) dated(p Propagation) Propagation {
	if yes, bound := d.elsewhere(); yes {
		return Propagation{EffectiveBy: instant(d.now().UnixMilli()).Add(bound)}
	}
	return p
}
