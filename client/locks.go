package client

import (
	"context"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// A Lock is an advisory lock, which may be granted twice: nothing refuses its holder's writes.
type Lock struct {
	api.LockGrant
	Until time.Time // by this process's clock, counted from when the request was sent
}

// AcquireLock takes the lock, or is refused with lock_held. It is not tried again once
// it may have happened: the lock would be held against its own caller until it ends.
func (c *Client) AcquireLock(ctx context.Context, name string, req api.AcquireLock) (Lock, error) {
	return c.lock(ctx, call{route: "/v1/locks/{name}/acquire", ids: []string{name}, body: req, repeat: once})
}

// RenewLock moves the lock's end, or is refused with lock_lost.
func (c *Client) RenewLock(ctx context.Context, name string, req api.RenewLock) (Lock, error) {
	return c.lock(ctx, call{route: "/v1/locks/{name}/renew", ids: []string{name}, body: req, repeat: exact})
}

func (c *Client) lock(ctx context.Context, r call) (l Lock, err error) {
	r.method = http.MethodPost
	got, err := c.do(ctx, r, &l.LockGrant)
	if err == nil {
		l.Until = got.sent.Add(ms(l.ValidForMS))
	}
	return l, err
}

// ReleaseLock ends the lock; again is no error. Where somebody else holds it, it is
// refused with lock_lost.
func (c *Client) ReleaseLock(ctx context.Context, name, lockID string) error {
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/locks/{name}/release", ids: []string{name}, body: api.ReleaseLock{LockID: lockID}, repeat: exact}, nil)
	return err
}
