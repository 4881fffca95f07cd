package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
)

// keyHeader names a request: its repetition gets the first answer again.
const keyHeader = "Idempotency-Key"

// The times of a request with a key.
const (
	receiptTTL  = 24 * time.Hour  // its answer is kept for so long
	lockMargin  = 2 * time.Second // its lock outlasts the time that the request has
	receiptTime = 2 * time.Second // to store the answer, also when the caller is gone
)

// A Sealer keeps stored answers, which may hold secrets, from whoever reads the store.
type Sealer interface {
	Seal(purpose, tenant string, plaintext []byte) string
	Open(purpose, tenant, sealed string) ([]byte, error)
}

// keyless are the POST routes that do not take the header: those whose body has a
// request id of its own, those that only ask, and those whose answer says what is so
// now: whether a token passes, or that the caller holds a lease, a lock or a claim. An
// earlier yes would be given to somebody who has lost it.
var keyless = []string{
	"/v1/sessions/verify", "/v1/ratelimit/check", "/v1/ratelimit/peek", "/v1/ratelimit/refund", "/v1/ratelimit/token-leases",
	"/v1/leases/:resource/acquire", "/v1/leases/acquire-set", "/v1/leases/:resource/force-release",
	"/v1/quotas/:name/:subject/consume", "/v1/quotas/:name/:subject/reserve", "/v1/idempotency/:key/claim",
	"/v1/fences/:resource/admit", "/v1/leases/:resource/renew", "/v1/leases/renew-set",
	"/v1/locks/:name/acquire", "/v1/locks/:name/renew", "/v1/idempotency/:key/extend",
}

func (r route) takesKey() bool {
	return r.method == http.MethodPost && !slices.Contains(keyless, r.path)
}

// repeatable has the routes that take the header look for it.
func (s *server) repeatable(routes []route) []route {
	for i, r := range routes {
		if r.takesKey() {
			routes[i].handle = (&once{s, r.handle}).handle
		}
	}
	return routes
}

// once has a request with a key completed at most once: its answer is stored, and is
// the answer to every repetition. It is not executed once: where the answer could
// not be stored after the effect, a repetition after the lock has another one. A
// refusal, which has no effect, is not stored, though the key stays the request's; a fault, which may have one, leaves the lock.
type once struct {
	s    *server
	next handler
}

func (o *once) handle(c echo.Context, key auth.Key) error {
	name, given, err := idempotencyKey(c.Request().Header)
	if err != nil {
		return err
	}
	if !given {
		return o.next(c, key)
	}
	if o.s.Receipts == nil {
		return &refusal{code: api.CodeFeatureUnavailable, detail: "this mode does not have what the header Idempotency-Key needs"}
	}
	body, err := readBody(c)
	if err != nil {
		return err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(body)) // for the handler
	r := &repetition{s: o.s, c: c, tenant: key.Tenant, name: name, fingerprint: fingerprint(c, key, body)}
	ctx := c.Request().Context()
	claimed, err := r.claim(ctx)
	switch {
	case err != nil:
		return err
	case claimed.Completed:
		return r.replay(claimed.Response)
	}
	r.claimID = claimed.ID
	return r.execute(ctx, func(c echo.Context) error { return o.next(c, key) })
}

// idempotencyKey reads the header.
func idempotencyKey(h http.Header) (name string, given bool, err error) {
	values := h.Values(keyHeader)
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, keytype.CheckID(keyHeader, values[0])
	default:
		return "", true, malformed(keyHeader, "appears twice")
	}
}

// fingerprint is of all that makes a request the one that it is. The caller is part of
// it: another one, who may be allowed less, gets no stored answer.
func fingerprint(c echo.Context, key auth.Key, body []byte) string {
	h := sha256.New()
	for _, part := range append([]string{c.Request().Method, c.Path(), key.Tenant, key.ID, string(body)}, c.ParamValues()...) {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A repetition is a request with a key, whether it came before or not.
type repetition struct {
	s           *server
	c           echo.Context
	tenant      string
	name        string // the header's value
	fingerprint string
	claimID     string
}

// claim finds out whether the request is to be executed. A fault is one that had no
// effect: whatever became of the claim, the request itself did not happen.
func (r *repetition) claim(ctx context.Context) (idempotency.Claimed, error) {
	claimed, err := r.s.Receipts.Claim(ctx, r.tenant, r.name, idempotency.ClaimRequest{
		Fingerprint: r.fingerprint, LockTTL: max(idempotency.MinTTL, r.s.Timeout+lockMargin), TTL: receiptTTL,
	})
	_, inFlight := errors.AsType[*idempotency.InFlightError](err)
	switch {
	case err == nil || inFlight || errors.Is(err, idempotency.ErrClockSkew):
		return claimed, err
	case errors.Is(err, idempotency.ErrMismatch):
		return claimed, &refusal{code: api.CodeIdempotencyMismatch, detail: "the Idempotency-Key came with another request, or from another caller, before, which may have been refused: a corrected request needs a new key"}
	default:
		return claimed, fmt.Errorf("claim the key of the request: %w: %v", keytype.ErrUnavailable, err) //nolint:errorlint // of the request itself it would say that it may have happened
	}
}

// execute answers, and stores the answer before it goes out.
func (r *repetition) execute(ctx context.Context, handle func(echo.Context) error) error {
	answer, err := r.record(handle)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiptTime)
	defer cancel()
	if err != nil {
		r.refused(ctx, err)
		return err
	}
	err = r.s.Receipts.Complete(ctx, r.tenant, r.name, r.claimID, r.seal(answer))
	if errors.Is(err, idempotency.ErrLost) {
		// It took longer than its lock: the answer that counts is, or will be, another's.
		return fmt.Errorf("superseded: %w", keytype.ErrOutcomeUnknown)
	}
	if err != nil { // the caller need not repeat what it has the answer to
		r.s.Log.WarnContext(ctx, "an answer was not stored", r.s.named(ctx, r.c, "route", r.c.Path(), "error", err)...)
	}
	return answer.send(r.c)
}

// refused lets the next one claim at once, where nothing has happened.
func (r *repetition) refused(ctx context.Context, refusal error) {
	var p api.Problem
	r.s.describe(refusal, r.c, &p) //nolint:contextcheck // it looks up what kind of request it is
	if kinds[p.Code].status >= http.StatusInternalServerError {
		return
	}
	if err := r.s.Receipts.Abandon(ctx, r.tenant, r.name, r.claimID); err != nil {
		r.s.Log.WarnContext(ctx, "a claim was not abandoned", r.s.named(ctx, r.c, "route", r.c.Path(), "error", err)...)
	}
}

// record runs the handler without letting its answer out.
func (r *repetition) record(handle func(echo.Context) error) (receipt, error) {
	outer := r.c.Response()
	inner := &recorder{header: outer.Header().Clone()}
	r.c.SetResponse(echo.NewResponse(inner, r.c.Echo()))
	defer r.c.SetResponse(outer) // a panic is answered, too
	if err := handle(r.c); err != nil {
		return receipt{}, err
	}
	answer := receipt{Status: inner.status, Header: http.Header{}, Body: inner.body.String()}
	for name, values := range inner.header {
		if !slices.Equal(values, outer.Header().Values(name)) {
			answer.Header[name] = values
		}
	}
	return answer, nil
}

// replay gives the stored answer again.
func (r *repetition) replay(response string) error {
	answer, err := r.open(response)
	if err != nil { // sealed with a key that is gone, or that only other nodes have by now
		r.s.Log.WarnContext(r.c.Request().Context(), "a stored answer was not opened", r.s.named(r.c.Request().Context(), r.c, "route", r.c.Path(), "error", err)...)
		return &refusal{code: api.CodeStoreUnavailable, detail: "the request was carried out, and this node cannot read its stored answer: repeat it with the same Idempotency-Key"}
	}
	return answer.send(r.c)
}

// purpose binds a sealed answer to its request.
func (r *repetition) purpose() string { return "receipt " + r.name + " " + r.fingerprint }

// seal is the answer as it is stored, a JSON string.
func (r *repetition) seal(answer receipt) string {
	raw, _ := json.Marshal(answer) // strings and numbers alone
	return `"` + r.s.Sealer.Seal(r.purpose(), r.tenant, raw) + `"`
}

func (r *repetition) open(response string) (answer receipt, err error) {
	var sealed string
	if err := json.Unmarshal([]byte(response), &sealed); err != nil {
		return answer, err
	}
	raw, err := r.s.Sealer.Open(r.purpose(), r.tenant, sealed)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(raw, &answer)
}

// A receipt is an answer to be given again.
type receipt struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"` // what the handler set
	Body   string      `json:"body"`
}

func (a receipt) send(c echo.Context) error {
	for name, values := range a.Header {
		c.Response().Header()[name] = values
	}
	c.Response().WriteHeader(a.Status)
	if a.Body == "" {
		return nil
	}
	_, err := io.WriteString(c.Response(), a.Body)
	return err
}

// A recorder keeps an answer to itself.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
