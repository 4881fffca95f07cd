package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// A Grant is a lease as it was granted or renewed. Send its FencingToken with each write.
type Grant struct {
	api.LeaseGrant
	// Until is when it ends by this process's clock, counted from when the request was
	// sent: after a wait in line it is that much too early, which RenewLease mends.
	Until time.Time
}

// AcquireLease takes the resource, or is refused with lease_held. Whoever sends the
// same owner and RequestID again gets the same grant again.
func (c *Client) AcquireLease(ctx context.Context, resource string, req api.AcquireLease) (Grant, error) {
	req.RequestID = orNew(req.RequestID)
	r := call{method: http.MethodPost, route: "/v1/leases/{resource}/acquire", ids: []string{resource}, body: req, repeat: exact}
	if req.WaitMS != nil {
		r.wait = ms(*req.WaitMS)
	}
	return c.grant(ctx, r)
}

// RenewLease moves the grant's end to ttl from now. Where it is too late the error is
// also lease.ErrLost or lease.ErrExpired.
func (c *Client) RenewLease(ctx context.Context, resource string, req api.RenewLease) (Grant, error) {
	return c.grant(ctx, call{method: http.MethodPost, route: "/v1/leases/{resource}/renew", ids: []string{resource}, body: req, repeat: exact})
}

func (c *Client) grant(ctx context.Context, r call) (g Grant, err error) {
	got, err := c.do(ctx, r, &g.LeaseGrant)
	if err == nil {
		g.Until = got.sent.Add(ms(g.ValidForMS))
	}
	return g, err
}

// ReleaseLease ends the grant; again is no error. Where another grant is the latest the
// error is also lease.ErrLost.
func (c *Client) ReleaseLease(ctx context.Context, resource string, req api.ReleaseLease) error {
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/leases/{resource}/release", ids: []string{resource}, body: req, repeat: exact}, nil)
	return err
}

// Lease tells who has the resource now; not_found where it was never leased.
func (c *Client) Lease(ctx context.Context, resource string) (l api.Lease, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, route: "/v1/leases/{resource}", ids: []string{resource}, repeat: exact}, &l)
	return l, err
}

// Leases lists what the owner holds, in a fixed order. It may lag behind grants and
// releases; Lease does not. The sequence is read as [Client.Sessions] is.
func (c *Client) Leases(ctx context.Context, owner string) iter.Seq2[api.Lease, error] {
	r := call{method: http.MethodGet, route: "/v1/leases", query: url.Values{"owner": {owner}}, repeat: exact}
	if err := keytype.CheckID("owner", owner); err != nil {
		return failed[api.Lease](err)
	}
	return pages(ctx, c, r, func(p api.LeaseList) ([]api.Lease, string) { return p.Leases, p.NextCursor })
}

// AcquireLeaseSet takes several resources or none of them, as AcquireLease does one. The
// grants are in the order of the request.
func (c *Client) AcquireLeaseSet(ctx context.Context, req api.AcquireLeaseSet) ([]Grant, error) {
	req.RequestID = orNew(req.RequestID)
	return c.grants(ctx, "/v1/leases/acquire-set", req)
}

// RenewLeaseSet moves the ends of several grants or of none.
func (c *Client) RenewLeaseSet(ctx context.Context, req api.RenewLeaseSet) ([]Grant, error) {
	return c.grants(ctx, "/v1/leases/renew-set", req)
}

func (c *Client) grants(ctx context.Context, route string, body any) ([]Grant, error) {
	var answer api.LeaseGrants
	got, err := c.do(ctx, call{method: http.MethodPost, route: route, body: body, repeat: exact}, &answer)
	if err != nil {
		return nil, err
	}
	grants := make([]Grant, len(answer.Leases))
	for i, g := range answer.Leases {
		grants[i] = Grant{g, got.sent.Add(ms(g.ValidForMS))}
	}
	return grants, nil
}

// ReleaseLeaseSet ends several grants or none; again is no error.
func (c *Client) ReleaseLeaseSet(ctx context.Context, req api.ReleaseLeaseSet) error {
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/leases/release-set", body: req, repeat: exact}, nil)
	return err
}

// KeepLease takes the resource and renews it in the background, as lease.Keep does in
// the process: when a third of its time has passed, through whatever fails. Work that
// needs the resource runs under Context, which ends before anybody else can have it,
// and sends Token with each write. Release ends both.
func (c *Client) KeepLease(ctx context.Context, resource string, req api.AcquireLease) (*lease.Kept, error) {
	return lease.Keep(ctx, leases{c, req}, "", resource, lease.AcquireRequest{TTL: ms(req.TTLMS)})
}

// leases has lease.Keep talk to the service, which knows the tenant by the key.
type leases struct {
	c   *Client
	req api.AcquireLease
}

func (l leases) Acquire(ctx context.Context, _, resource string, _ lease.AcquireRequest) (lease.Grant, error) {
	g, err := l.c.AcquireLease(ctx, resource, l.req)
	return g.held(), err
}

func (l leases) Renew(ctx context.Context, _, resource string, holder lease.Holder, ttl time.Duration) (lease.Grant, error) {
	g, err := l.c.RenewLease(ctx, resource, api.RenewLease{LeaseID: holder.ID, FencingToken: int64(holder.Token), TTLMS: ttl.Milliseconds()})
	return g.held(), err
}

func (l leases) Release(ctx context.Context, _, resource string, holder lease.Holder) error {
	return l.c.ReleaseLease(ctx, resource, api.ReleaseLease{LeaseID: holder.ID, FencingToken: int64(holder.Token)})
}

// held is what lease.Keep needs of a grant. It counts the time from before its call,
// which is no later than when the answered try was sent.
func (g Grant) held() lease.Grant {
	return lease.Grant{
		Lease: lease.Lease{Resource: g.Resource, Owner: g.Owner, Token: fencing.Token(g.FencingToken)},
		ID:    g.LeaseID, ValidFor: ms(g.ValidForMS),
	}
}
