package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

const quotaRoute = "/v1/quotas/{name}/{subject}"

// A Reservation holds units until they are committed or canceled, or it expires.
type Reservation struct {
	api.QuotaReserved
	Until time.Time // by this process's clock, counted from when the request was sent
}

// SetQuota sets how many units the subject has per window.
func (c *Client) SetQuota(ctx context.Context, name, subject string, req api.SetQuota) (q api.Quota, err error) {
	_, err = c.do(ctx, call{method: http.MethodPut, route: quotaRoute, ids: []string{name, subject}, body: req, repeat: exact}, &q)
	return q, err
}

// Quota reads what is left; not_found where the quota was never set.
func (c *Client) Quota(ctx context.Context, name, subject string) (q api.Quota, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, route: quotaRoute, ids: []string{name, subject}, repeat: exact}, &q)
	return q, err
}

// ConsumeQuota uses units, or is refused with quota_exceeded and how many are Available.
// A RequestID takes them once, however often it is sent.
func (c *Client) ConsumeQuota(ctx context.Context, name, subject string, req api.ConsumeQuota) (q api.Quota, err error) {
	if req.RequestID == "" {
		req.RequestID = rand.Text()
	}
	_, err = c.do(ctx, call{method: http.MethodPost, route: quotaRoute + "/consume", ids: []string{name, subject}, body: req, repeat: exact}, &q)
	return q, err
}

// ReserveQuota sets units aside. What is not committed in time returns by itself.
func (c *Client) ReserveQuota(ctx context.Context, name, subject string, req api.ReserveQuota) (r Reservation, err error) {
	if req.RequestID == "" {
		req.RequestID = rand.Text()
	}
	got, err := c.do(ctx, call{method: http.MethodPost, route: quotaRoute + "/reserve", ids: []string{name, subject}, body: req, repeat: exact}, &r.QuotaReserved)
	if err == nil {
		r.Until = got.sent.Add(ms(r.ValidForMS))
	}
	return r, err
}

// CommitQuota uses what was reserved, or as much of it as Amount names, and returns the rest.
func (c *Client) CommitQuota(ctx context.Context, name, subject, reservation string, req api.CommitQuota) (q api.Quota, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: quotaRoute + "/reservations/{id}/commit", ids: []string{name, subject, reservation}, body: req, repeat: exact}, &q)
	return q, err
}

// CancelQuota returns what was reserved.
func (c *Client) CancelQuota(ctx context.Context, name, subject, reservation string) (q api.Quota, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, route: quotaRoute + "/reservations/{id}/cancel", ids: []string{name, subject, reservation}, repeat: exact}, &q)
	return q, err
}
