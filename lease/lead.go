package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
)

// campaignPause is how long a candidate waits after a store that failed, or that did not wait.
const campaignPause = time.Second

// Work runs while a lease is held. Its context ends when the lease is lost, and it
// must return then; the token goes with each write.
type Work func(ctx context.Context, token fencing.Token) error

// RunOne takes the resource, runs the work while it keeps it, and releases it. A
// refusal or fault of Acquire means that the work did not run. Where the lease was
// lost while it ran, ErrLost or ErrExpired is in the chain beside the work's own error,
// and somebody else may have begun. A release that does not answer is given up when the
// lease is over, or after a minute, and its error is in the chain.
func RunOne(ctx context.Context, l leaser, tenant, resource string, req AcquireRequest, work Work) error {
	k, err := Keep(ctx, l, tenant, resource, req)
	if err != nil {
		return fmt.Errorf("keep %q: %w", resource, err)
	}
	return k.run(ctx, work)
}

// run also releases where the work panics.
func (k *Kept) run(ctx context.Context, work Work) (err error) {
	defer func() {
		lost := k.lost()
		err = errors.Join(err, lost, k.giveBack(ctx))
	}()
	return work(k.work, k.grant.Token) //nolint:contextcheck // Keep made it from ctx
}

// Lead runs for leader of the resource until it leads, has lead run then, and again
// whenever the lease was lost: at any time one candidate leads at most, as far as
// clocks can be trusted. It returns when lead returns while it still leads, with its
// error, or when ctx ends. The request's Wait and RequestID are Lead's own.
func Lead(ctx context.Context, l leaser, tenant, resource string, req AcquireRequest, lead Work) error {
	req.Wait, req.RequestID = MaxWait, rand.Text()
	for {
		began := time.Now()
		k, err := Keep(ctx, l, tenant, resource, req)
		switch _, held := errors.AsType[*HeldError](err); {
		case ctx.Err() != nil && k == nil:
			return ctx.Err()
		case held:
			if time.Since(began) < campaignPause && !pause(ctx, campaignPause) { // a node that ends lets nobody wait
				return ctx.Err()
			}
			continue
		case errors.Is(err, ErrRequestExpired): // its grant of unknown outcome has come and gone
			req.RequestID = rand.Text()
			continue
		case err != nil:
			if !transient(err) {
				return fmt.Errorf("lead %q: %w", resource, err)
			}
			if !pause(ctx, campaignPause) {
				return ctx.Err()
			}
			continue // under the same request id: where the outcome is unknown, the grant may be its own
		}
		req.RequestID = rand.Text()
		err = k.run(ctx, lead)
		if !k.wasLost() {
			return err
		}
	}
}

// transient: a store that fails now may not fail later, nor a clock be off.
func transient(err error) bool {
	return errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) ||
		errors.Is(err, ErrLost) || errors.Is(err, ErrExpired) || errors.Is(err, ErrClockSkew) || errors.Is(err, context.DeadlineExceeded)
}

// pause reports false where ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
