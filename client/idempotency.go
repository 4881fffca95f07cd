package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// A Claim says who carries out what the key names: the caller, where State is
// claimed, and nobody any more where it is completed, with the stored Response.
type Claim struct {
	api.KeyClaim
	Until time.Time // when the claim's lock ends by this process's clock, counted from when the request was sent
}

// ClaimKey claims the key, or reads its stored response. While another claim's lock
// lasts it is refused with idempotency_in_flight; the same RequestID gets its claim again.
func (c *Client) ClaimKey(ctx context.Context, key string, req api.ClaimKey) (cl Claim, err error) {
	req.RequestID = orNew(req.RequestID)
	got, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/idempotency/{key}/claim", ids: []string{key}, body: req, repeat: exact}, &cl.KeyClaim)
	if err == nil && cl.ValidForMS != nil {
		cl.Until = got.sent.Add(ms(*cl.ValidForMS))
	}
	return cl, err
}

// ExtendClaim moves the end of the claim's lock, or is refused with claim_lost.
func (c *Client) ExtendClaim(ctx context.Context, key string, req api.ExtendClaim) (cl Claim, err error) {
	var extended api.ClaimExtended
	got, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/idempotency/{key}/extend", ids: []string{key}, body: req, repeat: exact}, &extended)
	if err != nil {
		return cl, err
	}
	cl.KeyClaim = api.KeyClaim{State: api.Claimed, ClaimID: extended.ClaimID, Attempt: extended.Attempt, ValidForMS: &extended.ValidForMS}
	cl.Until = got.sent.Add(ms(extended.ValidForMS))
	return cl, nil
}

// CompleteClaim stores the response that every later claim of the key gets, or is
// refused with claim_lost. The same response again is no error.
func (c *Client) CompleteClaim(ctx context.Context, key, claimID string, response json.RawMessage) error {
	body := api.CompleteClaim{ClaimID: claimID, Response: response}
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/idempotency/{key}/complete", ids: []string{key}, body: body, repeat: exact}, nil)
	return err
}

// AbandonClaim frees the key for the next claim at once.
func (c *Client) AbandonClaim(ctx context.Context, key, claimID string) error {
	body := api.AbandonClaim{ClaimID: claimID}
	_, err := c.do(ctx, call{method: http.MethodPost, route: "/v1/idempotency/{key}/abandon", ids: []string{key}, body: body, repeat: keyed}, nil)
	return err
}
