package checker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// A Service is a running one, whose clients speak HTTP to it.
type Service struct {
	URL    func() string // of the API: another one after a restart
	Key    string        // of the API
	Offset time.Duration // of its clock
}

// Services runs a history of about so many calls on one resource of running services, in
// real time: nobody can run it again. Beyond says that clocks differ by more than the
// services' guard. What the services' own retries do is not seen from outside: it takes an
// order in which tokens grow, and in which marks and records are exactly as answered.
func Services(ctx context.Context, nodes []Service, resource string, seed uint64, calls int, beyond bool) Result {
	h := newHistory("services", seed, Mutant{})
	h.real, h.begun, h.beyond, h.left, h.tenant = true, time.Now(), beyond, calls, resource
	seen := newSightings(h)
	h.turn.Lock()
	for i := range clients {
		s := nodes[i%len(nodes)]
		r := &remoteStore{h: h, service: s, resource: resource, http: &http.Client{Timeout: 10 * time.Second}}
		n := &node{h: h, leases: r, fences: r, offset: h.begun.Sub(epoch) + s.Offset, steady: true}
		c := &leaseClient{node: n, name: string(rune('a' + i)), seen: seen}
		h.start(h.between(0, 50*time.Millisecond), func(t *task) { c.work(ctx, t) })
	}
	h.turn.Unlock()
	h.run()
	h.linearize(ascent{})
	seen.judge()
	return h.result()
}

// An ascent is a register of which only the client's side is known: a try that nobody
// saw may have raised the token.
type ascent struct {
	token   fencing.Token // at least
	mark    fencing.Position
	records [len(keys)]protected
}

func unchanged(state any) (any, any) { return state, nil }

// reaches is a call that was answered with a token, which is not below any before.
func reaches(state, got any) (bool, any) {
	a, token := state.(ascent), got.(fencing.Token)
	if token == 0 { // a refusal: what nobody saw may be the reason
		return true, a
	}
	ok := token >= a.token
	a.token = max(a.token, token)
	return ok, a
}

// remoteStore is a running service, as the clients of a history use one.
type remoteStore struct {
	h        *history
	service  Service
	resource string
	http     *http.Client
}

// An answered is what came back.
type answered struct {
	status int
	Code   string `json:"code"`

	LeaseID      string          `json:"lease_id"`
	FencingToken fencing.Token   `json:"fencing_token"`
	ExpiresAt    time.Time       `json:"expires_at"`
	ValidForMS   int64           `json:"valid_for_ms"`
	HighWater    fencing.Token   `json:"high_water"`
	Sequence     int64           `json:"sequence"`
	Version      int64           `json:"version"`
	Value        json.RawMessage `json:"value"`
	Mode         fencing.Mode    `json:"mode"`
}

// refusals are the errors that the codes stand for.
var refusals = map[string]error{
	"lease_held": &lease.HeldError{}, "request_expired": lease.ErrRequestExpired, "lease_lost": lease.ErrLost, "lease_expired": lease.ErrExpired,
	"clock_skew": lease.ErrClockSkew, "not_found": lease.ErrNotFound, "stale_fencing_token": &fencing.StaleError{},
	"sequence_reused": fencing.ErrSequenceReused, "invalid_value": fencing.ErrNotGranted,
	"store_unavailable": keytype.ErrUnavailable, "outcome_unknown": keytype.ErrOutcomeUnknown,
}

// send makes one request. A process that is gone was not asked; one that goes away may
// have done what it was asked for.
func (r *remoteStore) send(ctx context.Context, method, path string, body any) (a answered, err error) {
	var raw []byte
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return a, err
		}
	}
	taskOf(ctx).away(func() { a, err = r.exchange(ctx, method, r.service.URL()+path, raw) })
	if err != nil {
		return a, err
	}
	if a.status >= 300 {
		if refused, known := refusals[a.Code]; known {
			if errors.Is(refused, lease.ErrClockSkew) {
				r.h.note("refusals for a clock that is off")
			}
			return a, refused
		}
		return a, fmt.Errorf("%s %s: status %d, code %q", method, path, a.status, a.Code)
	}
	return a, nil
}

func (r *remoteStore) exchange(ctx context.Context, method, url string, body []byte) (a answered, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+r.service.Key)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.http.Do(req)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return a, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	if err != nil {
		return a, fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, err)
	}
	a.status = resp.StatusCode
	if len(raw) == 0 {
		return a, nil
	}
	return a, json.Unmarshal(raw, &a)
}

// ask makes a request and records it: a refusal is an answer.
func (r *remoteStore) ask(ctx context.Context, of call, seen func(answered, error) any, method, path string, body any) (answered, error) {
	var refused error
	a, err := record(ctx, r.h, of, func(a answered) any { return seen(a, refused) }, func(ctx context.Context) (answered, error) {
		a, err := r.send(ctx, method, path, body)
		if err != nil && a.status > 0 && !fault(err) && refusals[a.Code] != nil {
			refused, err = err, nil
		}
		return a, err
	})
	return a, errors.Join(refused, err)
}

// tokenOf is the token of a grant, 0 of a refusal.
func tokenOf(a answered, refused error) any {
	if refused != nil {
		return fencing.Token(0)
	}
	return a.FencingToken
}

func (r *remoteStore) lease(op string) string { return "/v1/leases/" + r.resource + op }

func (a answered) grant(err error) (lease.Grant, error) {
	return lease.Grant{
		Lease: lease.Lease{Token: a.FencingToken, ExpiresAt: a.ExpiresAt}, ID: a.LeaseID,
		ValidFor: time.Duration(a.ValidForMS) * time.Millisecond,
	}, err
}

func (r *remoteStore) Acquire(ctx context.Context, _, _ string, req lease.AcquireRequest) (lease.Grant, error) {
	body := map[string]any{"owner": req.Owner, "ttl_ms": req.TTL.Milliseconds()}
	if req.RequestID != "" {
		body["request_id"] = req.RequestID
	}
	if !req.NotAfter.IsZero() {
		body["not_after"] = req.NotAfter.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if req.MaxHold > 0 {
		body["max_ttl_ms"] = req.MaxHold.Milliseconds()
	}
	of := call{name: "acquire " + req.RequestID, step: unchanged, accept: reaches}
	a, err := r.ask(ctx, of, tokenOf, http.MethodPost, r.lease("/acquire"), body)
	return a.grant(err)
}

func holderBody(h lease.Holder) map[string]any {
	return map[string]any{"lease_id": h.ID, "fencing_token": h.Token}
}

func (r *remoteStore) Renew(ctx context.Context, _, _ string, h lease.Holder, ttl time.Duration) (lease.Grant, error) {
	body := holderBody(h)
	body["ttl_ms"] = ttl.Milliseconds()
	of := call{name: fmt.Sprintf("renew token %d", h.Token), step: unchanged, accept: reaches}
	a, err := r.ask(ctx, of, tokenOf, http.MethodPost, r.lease("/renew"), body)
	return a.grant(err)
}

func (r *remoteStore) Release(ctx context.Context, _, _ string, h lease.Holder) error {
	of := call{name: fmt.Sprintf("release token %d", h.Token), step: unchanged, accept: reaches}
	_, err := r.ask(ctx, of, func(_ answered, refused error) any { return tokenOf(answered{FencingToken: h.Token}, refused) }, http.MethodPost, r.lease("/release"), holderBody(h))
	return err
}

func (r *remoteStore) ForceRelease(ctx context.Context, _, _ string, from fencing.Token, requestID string) (fencing.Token, error) {
	of := call{name: fmt.Sprintf("force token %d", from), step: unchanged, accept: reaches}
	a, err := r.ask(ctx, of, tokenOf, http.MethodPost, r.lease("/force-release"), map[string]any{"fencing_token": from, "reason": "test", "request_id": requestID})
	return a.FencingToken, err
}

func (r *remoteStore) Get(ctx context.Context, _, _ string) (lease.Lease, error) {
	a, err := r.ask(ctx, call{name: "get", step: unchanged, accept: reaches}, tokenOf, http.MethodGet, r.lease(""), nil)
	return lease.Lease{Token: a.FencingToken, ExpiresAt: a.ExpiresAt}, err
}

// A marked is an answer about a mark.
type marked struct {
	mark  fencing.Position
	stale bool
	other bool // another refusal
}

func markedOf(a answered, refused error) any {
	_, stale := errors.AsType[*fencing.StaleError](refused)
	if refused != nil {
		return marked{stale: stale, other: !stale}
	}
	return marked{mark: fencing.Position{Token: a.HighWater, Sequence: a.Sequence}}
}

func (r *remoteStore) Admit(ctx context.Context, _, _ string, at fencing.Position) (fencing.Position, error) {
	admit := func(state any) (ascent, fencing.Admission) {
		a := state.(ascent)
		next, out := fencing.State{Granted: max(a.token, at.Token), Mark: a.mark}.Admit(at)
		a.mark = next.Mark
		return a, out
	}
	of := call{
		name: fmt.Sprintf("admit %+v", at),
		step: func(state any) (any, any) { next, out := admit(state); return next, out },
		accept: func(state, got any) (bool, any) {
			next, out := admit(state)
			m := got.(marked)
			if m.stale {
				return out.Verdict == fencing.Stale, next
			}
			return !m.other && out.Verdict == fencing.Accepted && out.Mark == m.mark, next
		},
	}
	body := map[string]any{"fencing_token": at.Token}
	if at.Sequence > 0 {
		body["sequence"] = at.Sequence
	}
	a, err := r.ask(ctx, of, markedOf, http.MethodPost, "/v1/fences/"+r.resource+"/admit", body)
	return fencing.Position{Token: a.HighWater, Sequence: a.Sequence}, err
}

func (r *remoteStore) Mark(ctx context.Context, _, _ string) (fencing.Position, error) {
	of := call{name: "mark", step: unchanged, accept: func(state, got any) (bool, any) {
		return state.(ascent).mark == got.(marked).mark, state
	}}
	a, err := r.ask(ctx, of, markedOf, http.MethodGet, "/v1/fences/"+r.resource, nil)
	return fencing.Position{Token: a.HighWater, Sequence: a.Sequence}, err
}

// A replaced is an answer to a write.
type replaced struct {
	at      fencing.Position
	version int64
	refused bool
	stale   bool
}

func (r *remoteStore) Write(ctx context.Context, _, _, key string, req fencing.WriteRequest) (fencing.Record, error) {
	i := index(key)
	write := func(state any) (ascent, fencing.Written) {
		a := state.(ascent)
		next, out := a.records[i].record().Write(
			fencing.State{Granted: req.Token, Holder: req.LeaseID}, // as the writer says: what nobody saw may have ended that
			fencing.Write{Position: req.Position, Mode: req.Mode, LeaseID: req.LeaseID, Value: req.Value})
		if out.Verdict == fencing.Accepted {
			a.records[i] = protectedOf(next)
		}
		return a, out
	}
	of := call{
		name: "write " + name(key, req),
		step: func(state any) (any, any) { next, _ := write(state); return next, nil },
		accept: func(state, got any) (bool, any) {
			next, out := write(state)
			w := got.(replaced)
			done := out.Verdict == fencing.Accepted || out.Verdict == fencing.Replayed
			switch {
			case w.refused && w.stale && req.Mode == fencing.Leased:
				return true, state
			case w.refused:
				return !done, state
			default:
				return done && out.Record.Position == w.at && out.Record.Version == w.version, next
			}
		},
	}
	body := map[string]any{"fencing_token": req.Token, "mode": req.Mode, "value": json.RawMessage(req.Value)}
	if req.LeaseID != "" {
		body["lease_id"] = req.LeaseID
	}
	if req.Sequence > 0 {
		body["sequence"] = req.Sequence
	}
	seen := func(a answered, refused error) any {
		_, stale := errors.AsType[*fencing.StaleError](refused)
		if refused != nil {
			return replaced{refused: true, stale: stale}
		}
		return replaced{at: fencing.Position{Token: a.FencingToken, Sequence: a.Sequence}, version: a.Version}
	}
	a, err := r.ask(ctx, of, seen, http.MethodPut, "/v1/protected/"+r.resource+"/"+key, body)
	return fencing.Record{Position: fencing.Position{Token: a.FencingToken, Sequence: a.Sequence}, Version: a.Version, Value: req.Value, Mode: req.Mode}, err
}

func (r *remoteStore) Read(ctx context.Context, _, _, key string) (fencing.Record, error) {
	i := index(key)
	of := call{name: "read " + key, step: unchanged, accept: func(state, got any) (bool, any) { return state.(ascent).records[i] == got.(protected), state }}
	seen := func(a answered, refused error) any {
		if refused != nil {
			return protected{}
		}
		return protected{fencing.Position{Token: a.FencingToken, Sequence: a.Sequence}, string(a.Value), a.Version, a.Mode}
	}
	a, err := r.ask(ctx, of, seen, http.MethodGet, "/v1/protected/"+r.resource+"/"+key, nil)
	return fencing.Record{Position: fencing.Position{Token: a.FencingToken, Sequence: a.Sequence}, Version: a.Version, Value: a.Value, Mode: a.Mode}, err
}
