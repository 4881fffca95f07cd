package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// An action is what a moderator decided about an account. It may be delivered to
// any worker, any number of times.
type action struct {
	ID      string `json:"id"` // the caller's: the same however often it is sent
	Account string `json:"account"`
	State   string `json:"state"` // what the account becomes
	Weight  int64  `json:"weight"`
}

// A record is an account as the service keeps it.
type record struct {
	State     string   `json:"state"`
	Moderator string   `json:"moderator"`
	Actions   []string `json:"actions"` // carried out, the latest last: as many as may still be delivered again
}

const keptActions = 50

const (
	maxWait  = 5 * time.Second // in line for a lease, within one try
	farewell = time.Second
)

// A receipt is the answer to an action, the same to everybody who asks.
type receipt struct {
	Action  string `json:"action"`
	State   string `json:"state"`
	Worker  string `json:"worker"`
	Token   int64  `json:"fencing_token"`
	Version int64  `json:"version"` // of the record
}

// A worker carries actions out.
type worker struct {
	service *client.Client
	name    string
	hold    time.Duration                      // of claims and leases: how long a crash may hold others up
	say     func(worker, step, outcome string) // for people
	stalled func()                             // before the write: a pause of the process. nil = none
}

var (
	errNotAllowed = errors.New("the session is not active, or not by a second factor")
	errLimited    = errors.New("rate_limited: the moderator has done as much as one may for now")
	errSuperseded = errors.New("another run of the action has taken over")
)

// enforce carries the action out, unless it is done already. Its errors are
// errNotAllowed and errLimited, before anything has happened; errSuperseded,
// idempotency_in_flight and lease_held, after which the action should be
// delivered again; and failures, after which it must be.
func (w *worker) enforce(ctx context.Context, session string, a action) (receipt, error) {
	moderator, err := w.verify(ctx, session)
	if err != nil {
		return receipt{}, err
	}
	if err := w.checkLimit(ctx, moderator, a); err != nil {
		return receipt{}, err
	}
	// A run's calls carry its name, so that those that are sent again are the same
	// calls. Another run of the action has another name, and does not share its claim.
	run := w.name + "/" + rand.Text()
	claim, err := w.claim(ctx, run, moderator, a)
	if err != nil {
		return receipt{}, err
	}
	var r receipt
	if claim.State == api.Completed {
		return r, json.Unmarshal(claim.Response, &r)
	}
	r, err = w.apply(ctx, run, moderator, a)
	if err != nil {
		w.abandon(ctx, a, claim)
		return receipt{}, err
	}
	return r, w.complete(ctx, a, claim, r)
}

// verify: who asks, and may they? The answer is at most 12 s behind a revocation.
func (w *worker) verify(ctx context.Context, session string) (moderator string, err error) {
	v, err := w.service.VerifySession(ctx, api.VerifySession{Token: session, MinAAL: new(int64(2))})
	if err != nil {
		return "", err
	}
	if !v.Active {
		return "", errNotAllowed
	}
	w.say(w.name, "verify", "session of "+v.Session.UserID+", level 2")
	return v.Session.UserID, nil
}

// checkLimit: how much may one moderator do? The request id makes the repetition of a
// lost answer charge once, and so does a redelivery within ten minutes.
func (w *worker) checkLimit(ctx context.Context, moderator string, a action) error {
	d, err := w.service.Check(ctx, api.RateLimitRequest{
		Policy: "default", Descriptors: api.Descriptors{"tenant": "moderation", "user": moderator},
		Cost: &a.Weight, RequestID: &a.ID,
	})
	switch {
	case err != nil:
		return err
	case !d.Allowed && d.Degraded:
		return fmt.Errorf("nobody can tell whether the limit is met: %s", d.DegradedReason)
	case !d.Allowed:
		return errLimited
	}
	w.say(w.name, "limit", "allowed")
	return nil
}

// claim: is the action done, or in somebody's hands? The fingerprint keeps another
// action from being taken for this one.
func (w *worker) claim(ctx context.Context, run, moderator string, a action) (client.Claim, error) {
	raw, err := json.Marshal([]any{moderator, a})
	if err != nil {
		return client.Claim{}, err
	}
	sum := sha256.Sum256(raw)
	c, err := w.service.ClaimKey(ctx, a.ID, api.ClaimKey{
		Fingerprint: hex.EncodeToString(sum[:]), LockTTLMS: w.hold.Milliseconds(),
		TTLMS: (24 * time.Hour).Milliseconds(), RequestID: &run,
	})
	switch {
	case err != nil:
	case c.State == api.Completed:
		w.say(w.name, "claim", "done before: the stored answer")
	default:
		w.say(w.name, "claim", fmt.Sprintf("attempt %d", c.Attempt))
	}
	return c, err
}

// apply changes the account under a lease. From the moment of its grant whoever held
// the lease before is refused, so what is read here stays true until the write.
func (w *worker) apply(ctx context.Context, run, moderator string, a action) (receipt, error) {
	resource := "account/" + a.Account
	lease, err := w.service.AcquireLease(ctx, resource, api.AcquireLease{
		Owner: w.name, TTLMS: w.hold.Milliseconds(), RequestID: &run, WaitMS: new(maxWait.Milliseconds()),
	})
	if client.IsCode(err, api.CodeRequestExpired) { // this run's grant has come and gone while its answers were lost
		return receipt{}, errSuperseded
	}
	if err != nil {
		return receipt{}, err
	}
	defer w.release(ctx, resource, lease)
	w.say(w.name, "lease", fmt.Sprintf("fencing token %d", lease.FencingToken))

	now, version, err := w.read(ctx, resource)
	if err != nil {
		return receipt{}, err
	}
	done := receipt{Action: a.ID, State: a.State, Worker: w.name, Token: lease.FencingToken, Version: version}
	if slices.Contains(now.Actions, a.ID) {
		w.say(w.name, "write", "a run before wrote it, and ended before it said so")
		return done, nil
	}
	if w.stalled != nil {
		w.stalled()
	}
	now.State, now.Moderator = a.State, moderator
	now.Actions = append(now.Actions, a.ID)
	now.Actions = now.Actions[max(0, len(now.Actions)-keptActions):]
	done.Version, err = w.write(ctx, resource, lease, now)
	return done, err
}

func (w *worker) read(ctx context.Context, resource string) (record, int64, error) {
	kept, err := w.service.ReadProtected(ctx, resource, "state")
	if client.IsCode(err, api.CodeNotFound) {
		return record{}, 0, nil
	}
	if err != nil {
		return record{}, 0, err
	}
	var r record
	return r, kept.Version, json.Unmarshal(kept.Value, &r)
}

// write carries the token: a worker that slept through its lease is refused here, and
// nowhere else. The sequence makes a repeated write the same write.
func (w *worker) write(ctx context.Context, resource string, lease client.Grant, r record) (version int64, err error) {
	value, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	written, err := w.service.WriteProtected(ctx, resource, "state", api.WriteProtected{
		FencingToken: lease.FencingToken, LeaseID: &lease.LeaseID, Sequence: new(int64(1)), Value: value,
	})
	if client.IsCode(err, api.CodeStaleFencingToken) {
		w.say(w.name, "write", fmt.Sprintf("refused: token %d is stale", lease.FencingToken))
		return 0, errSuperseded
	}
	if err == nil {
		w.say(w.name, "write", fmt.Sprintf("version %d under token %d", written.Version, lease.FencingToken))
	}
	return written.Version, err
}

// complete stores the answer that every later delivery gets. Whose claim was taken over
// has not completed it, even if it wrote: the other run finds that in the record.
func (w *worker) complete(ctx context.Context, a action, claim client.Claim, r receipt) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	err = w.service.CompleteClaim(ctx, a.ID, claim.ClaimID, raw)
	if client.IsCode(err, api.CodeClaimLost) {
		return errSuperseded
	}
	if err == nil {
		w.say(w.name, "complete", "answer stored")
	}
	return err
}

// abandon and release spare others the wait, and have not much time: the claim and the
// lease end by themselves.
func (w *worker) abandon(ctx context.Context, a action, claim client.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	_ = w.service.AbandonClaim(ctx, a.ID, claim.ClaimID)
}

func (w *worker) release(ctx context.Context, resource string, lease client.Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	_ = w.service.ReleaseLease(ctx, resource, api.ReleaseLease{LeaseID: lease.LeaseID, FencingToken: lease.FencingToken})
}
