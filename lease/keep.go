package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
)

// leaser is what a lease is kept with: a *Manager, or a client of one.
type leaser interface {
	Acquire(ctx context.Context, tenant, resource string, req AcquireRequest) (Grant, error)
	Renew(ctx context.Context, tenant, resource string, holder Holder, ttl time.Duration) (Grant, error)
	Release(ctx context.Context, tenant, resource string, holder Holder) error
}

// A Kept lease is renewed in the background until it is released, or lost.
type Kept struct {
	leaser leaser
	place  place
	grant  Grant
	ttl    time.Duration

	work   context.Context
	end    context.CancelCauseFunc
	expiry *time.Timer // ends work
	ended  chan struct{}
	last   struct {
		sync.Mutex
		err   error     // of the latest renewal, nil after one that succeeded
		until time.Time // the lease ends then, unless it is renewed again
	}
}

// Keep takes the resource as Acquire does and holds it until Release. It renews when a
// third of the lease's time has passed, and goes on trying whatever fails or does not
// answer, until its own deadline or a refusal.
//
// The work that needs the resource runs under Context. That ends once: when the lease
// is lost, when ctx ends, or by Release. Its deadline is counted on the monotonic
// clock from before the latest request that succeeded was sent, and leaves a tenth of
// the lease's time for the work to stop before anybody else can take the resource.
// What a paused process cannot see in time, only the fence refuses: send the Token
// with each write.
func Keep(ctx context.Context, l leaser, tenant, resource string, req AcquireRequest) (*Kept, error) {
	sent := time.Now()
	g, err := l.Acquire(ctx, tenant, resource, req)
	if err != nil {
		return nil, err
	}
	k := &Kept{leaser: l, place: place{tenant, resource}, grant: g, ttl: req.TTL, ended: make(chan struct{})}
	if time.Since(sent) > g.ValidFor/3 { // it waited: what is left of the time cannot be known
		sent = time.Now()
		if g, err = k.renew(ctx, g.ValidFor); err != nil {
			return nil, errors.Join(err, k.giveBack(ctx))
		}
	}
	k.last.until = sent.Add(g.ValidFor)
	k.work, k.end = context.WithCancelCause(ctx)
	k.expiry = time.AfterFunc(time.Until(sent.Add(usable(g.ValidFor))), k.expire)
	go k.keep(sent, g.ValidFor)
	return k, nil
}

// Context is the work's. Its cause says how it ended: ErrLost or ErrExpired where the
// lease is lost.
func (k *Kept) Context() context.Context { return k.work }

// Token is the grant's fencing token.
func (k *Kept) Token() fencing.Token { return k.grant.Token }

// LeaseID is the grant's, as protected writes ask for it.
func (k *Kept) LeaseID() string { return k.grant.ID }

// Release ends the work's context, and the lease. It may be called again, and that
// another grant is the latest by now is no error.
func (k *Kept) Release(ctx context.Context) error {
	k.end(nil)
	k.expiry.Stop()
	select {
	case <-k.ended:
	case <-ctx.Done(): // a renewal does not end: one that comes late is refused
	}
	if errors.Is(k.lost(), ErrLost) {
		return nil
	}
	err := k.leaser.Release(ctx, k.place.tenant, k.place.resource, k.holder())
	if err != nil && !errors.Is(err, ErrLost) {
		return err
	}
	return nil // or somebody else has it since
}

// giveBack releases also where ctx has ended. It waits for as long as the lease lasts:
// then it is free without. The bounds are for a lease that ends too soon to be asked,
// and for one that lasts for hours.
func (k *Kept) giveBack(ctx context.Context) error {
	k.last.Lock()
	rest := time.Until(k.last.until)
	k.last.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(max(rest, patience(k.ttl)), time.Minute))
	defer cancel()
	if k.work != nil {
		return k.Release(ctx)
	}
	return k.leaser.Release(ctx, k.place.tenant, k.place.resource, k.holder())
}

// lost is why the lease was lost, nil where it was not.
func (k *Kept) lost() error {
	cause := context.Cause(k.work)
	if errors.Is(cause, ErrLost) || errors.Is(cause, ErrExpired) {
		return cause
	}
	return nil
}

func (k *Kept) wasLost() bool { return k.lost() != nil }

func (k *Kept) holder() Holder { return Holder{ID: k.grant.ID, Token: k.grant.Token} }

// usable is how long the work may go on of the time that the lease is valid.
func usable(valid time.Duration) time.Duration { return valid - valid/10 }

// expire is the deadline: no renewal has succeeded in time.
func (k *Kept) expire() {
	k.last.Lock()
	defer k.last.Unlock()
	if k.last.err != nil {
		k.end(fmt.Errorf("%w: %w", ErrExpired, k.last.err))
		return
	}
	k.end(ErrExpired)
}

// keep renews until the work's context ends.
func (k *Kept) keep(sent time.Time, valid time.Duration) {
	defer close(k.ended)
	next := time.NewTimer(time.Until(sent.Add(valid / 3)))
	defer next.Stop()
	for {
		select {
		case <-k.work.Done():
			return
		case <-next.C:
		}
		sent := time.Now()
		g, err := k.renew(k.work, valid) // which ends at the deadline
		k.last.Lock()
		k.last.err = err
		k.last.Unlock()
		switch {
		case errors.Is(err, ErrLost) || errors.Is(err, ErrExpired):
			k.end(err)
			return
		case err != nil:
			next.Reset(retryPause(valid))
		default:
			valid = g.ValidFor
			k.last.Lock()
			k.last.until = sent.Add(valid)
			k.last.Unlock()
			if !k.expiry.Reset(time.Until(sent.Add(usable(valid)))) {
				k.expiry.Stop() // it was too late: the work has been told
				return
			}
			next.Reset(max(valid/3, retryPause(k.ttl)) - time.Since(sent))
		}
	}
}

// renew is one try.
func (k *Kept) renew(ctx context.Context, valid time.Duration) (Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, patience(valid))
	defer cancel()
	return k.leaser.Renew(ctx, k.place.tenant, k.place.resource, k.holder(), k.ttl)
}

// patience is how long one try may take. It leaves room for two that never answer and
// a third one before the deadline; a lease of less than a second has fewer.
func patience(valid time.Duration) time.Duration {
	return min(max(valid/6, 200*time.Millisecond), 10*time.Second)
}

// retryPause leaves room for a dozen tries before the deadline.
func retryPause(valid time.Duration) time.Duration {
	return min(max(valid/20, 5*time.Millisecond), time.Second)
}
