package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func TestNewNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		url, key string
		posture  api.Posture
		want     string
	}{
		{"127.0.0.1:8080", "k", "", "URL"},
		{"ftp://h", "k", "", "URL"},
		{"http://h?x=1", "k", "", "URL"},
		{"http://u:p@h", "k", "", "URL"},
		{"http://h#", "k", "", "URL"},
		{"http://h", "", "", "APIKey"},
		{"http://h", "k\n", "", "APIKey"}, // as a file has it
		{"http://h", "k\u00a0", "", "APIKey"},
		{"http://h", "k", "open", "OnNoAnswer"},
		{"http://h", "k", api.PostureLocal, "Options.Local"},
	} {
		if _, err := New(tc.url, Options{APIKey: tc.key, OnNoAnswer: tc.posture}); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q, %q, %q: %v", tc.url, tc.key, tc.posture, err)
		}
	}
}

func TestSessions(t *testing.T) {
	c, _ := connect(t, Options{})
	ctx := t.Context()
	active := func(token string) bool {
		t.Helper()
		v, err := c.VerifySession(ctx, api.VerifySession{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		return v.Active
	}
	login := func() api.CreatedSession {
		t.Helper()
		s, err := c.CreateSession(ctx, api.CreateSession{UserID: "a/b"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, second, third := login(), login(), login()
	rotated, err := c.RotateSession(ctx, api.RotateSession{Token: first.Token, AAL: new(int64(2))})
	if err != nil || rotated.Token == first.Token || !active(rotated.Token) {
		t.Errorf("rotate: %v", err)
	}
	if p, err := c.RevokeSession(ctx, rotated.Token); err != nil || !p.CachePropagated || p.EffectiveBy.IsZero() || active(rotated.Token) {
		t.Errorf("revoke: %+v, %v", p, err)
	}
	if p, err := c.RevokeHandle(ctx, second.Session.Handle); err != nil || !p.CachePropagated || active(second.Token) {
		t.Errorf("revoke by handle: %+v, %v", p, err)
	}
	if out, err := c.LogoutAll(ctx, "a/b", api.LogoutAll{}); err != nil || out.SessionVersion != 2 || active(third.Token) {
		t.Errorf("logout-all: %+v, %v", out, err)
	}
	if _, err := c.LogoutAll(ctx, "", api.LogoutAll{}); !isValue(err, "user_id") {
		t.Errorf("no user: %v", err)
	}
}

func isValue(err error, field string) bool {
	e, ok := errors.AsType[*keytype.ValueError](err)
	return ok && e.Field == field
}

func TestRateLimits(t *testing.T) {
	c, f := connect(t, Options{OnNoAnswer: api.PostureFailClosed, CheckTimeout: 5 * time.Second})
	ctx := t.Context()
	req := api.RateLimitRequest{Policy: "one", Descriptors: api.Descriptors{"app": "limits"}}
	if d, err := c.Check(ctx, req); err != nil || !d.Allowed || d.Degraded || d.Source != api.SourceMemory {
		t.Errorf("%+v, %v", d, err)
	}
	f.set()
	d, err := c.Check(ctx, req)
	if err != nil || d.Allowed || d.Limiting != "l" || d.RetryAfterMS == 0 || len(d.Limits) != 1 || d.Degraded || f.sent.Load() != 1 {
		t.Errorf("a refusal: %+v, %v after %d requests", d, err, f.sent.Load())
	}
	if states, err := c.Refund(ctx, api.RateLimitRefund{Policy: "one", Descriptors: req.Descriptors, Cost: 1}); err != nil || states[0].Remaining != 1 {
		t.Errorf("refund: %+v, %v", states, err)
	}
	if d, err := c.Peek(ctx, req); err != nil || !d.Allowed {
		t.Errorf("peek: %+v, %v", d, err)
	}
	slot := api.RateLimitRequest{Policy: "slots", Descriptors: req.Descriptors}
	got, err := c.Check(ctx, slot)
	if err != nil || got.SlotID == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := c.ReleaseSlot(ctx, api.RateLimitRelease{Policy: "slots", Descriptors: req.Descriptors, SlotID: got.SlotID}); err != nil {
		t.Error(err)
	}
	if d, err := c.Check(ctx, slot); err != nil || !d.Allowed {
		t.Errorf("after the release: %+v, %v", d, err)
	}
	if _, err := c.Check(ctx, api.RateLimitRequest{Policy: "none", Descriptors: req.Descriptors}); !IsCode(err, api.CodeNotFound) {
		t.Errorf("an unknown policy: %v", err)
	}
	_, err = c.Check(ctx, api.RateLimitRequest{Policy: "one", Descriptors: req.Descriptors, Cost: new(int64(5))})
	if p, ok := errors.AsType[*ProblemError](err); !ok || p.Code != api.CodeCostExceedsCapacity || p.Limit == nil || *p.Limit != 1 || p.Retryable {
		t.Errorf("a cost that never passes: %v", err)
	}
}

// dead is an address where nobody listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// hung is an address that takes connections and never answers.
func hung(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "http://" + l.Addr().String()
}

// While the service does not answer the client's own posture decides, and says so.
func TestR26PosturesWithoutAnAnswer(t *testing.T) {
	req := api.RateLimitRequest{Policy: "p", Descriptors: api.Descriptors{"app": "a"}}
	rate := ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 2, Per: time.Hour}}
	for name, address := range map[string]string{"nobody listens": dead(t), "it hangs": hung(t)} {
		t.Run(name, func(t *testing.T) {
			of := func(p api.Posture) *Client {
				t.Helper()
				c, err := New(address, Options{APIKey: "k", OnNoAnswer: p, Local: rate, CheckTimeout: 60 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			demand := func(c *Client, req api.RateLimitRequest, allowed bool, source api.DecisionSource) {
				t.Helper()
				d, err := c.Check(t.Context(), req)
				if err != nil || d.Allowed != allowed || d.Source != source || !d.Degraded || d.DegradedReason != noAnswer || d.Policy != "p" || d.Limits == nil {
					t.Errorf("%+v, %v", d, err)
				}
			}
			demand(of(api.PostureFailOpen), req, true, api.SourceFailOpen)
			demand(of(api.PostureFailClosed), req, false, api.SourceFailClosed)
			local := of(api.PostureLocal)
			demand(local, req, true, api.SourceLocal)
			demand(local, req, true, api.SourceLocal)
			demand(local, req, false, api.SourceLocal)
			other := req
			other.Descriptors = api.Descriptors{"app": "b"}
			demand(local, other, true, api.SourceLocal)
			other.Cost = new(int64(100)) // above the burst takes it all
			demand(local, other, false, api.SourceLocal)
			if _, err := of("").Check(t.Context(), req); !errors.Is(err, ErrNoPosture) {
				t.Errorf("without a posture: %v", err)
			}
			if _, err := of(api.PostureFailOpen).Peek(t.Context(), req); err == nil {
				t.Error("a posture answered a peek")
			}
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			if d, err := of(api.PostureFailOpen).Check(canceled, req); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %+v, %v", d, err)
			}
		})
	}
}

// R28: the answer comes before the caller's own deadline.
func TestR28AHungServiceIsAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailOpen, CheckTimeout: time.Hour, HTTP: &http.Client{Transport: hanging{}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		d, err := c.Check(ctx, api.RateLimitRequest{Policy: "p"})
		if took := time.Since(begun); err != nil || !d.Allowed || took > 900*time.Millisecond {
			t.Errorf("%+v, %v after %v", d, err, took)
		}
	})
}

// A proxy's page is no answer, and the caller's own mistakes are no outage.
func TestOnlyAnOutageIsAnsweredByThePosture(t *testing.T) {
	c, f := connect(t, Options{OnNoAnswer: api.PostureFailOpen, CheckTimeout: 5 * time.Second})
	req := api.RateLimitRequest{Policy: "ten", Descriptors: api.Descriptors{"app": "proxied"}}
	f.set(proxied)
	if d, err := c.Check(t.Context(), req); err != nil || d.Source != api.SourceFailOpen {
		t.Errorf("a proxy's 502: %+v, %v", d, err)
	}
	c.opts.APIKey = "csk_wrong"
	if d, err := c.Check(t.Context(), req); !IsCode(err, api.CodeUnauthenticated) {
		t.Errorf("a wrong key: %+v, %v", d, err)
	}
	for name, first := range map[string]line{
		"a gateway has its own problems": {status: 502, body: `{"code":"bad_gateway","message":"m"}`},
		"another service says yes":       {status: 200, body: `{"message":"ok"}`},
		"the service's store fails":      says(api.CodeStoreUnavailable, 503, "1"),
		"the service has a defect":       says(api.CodeInternal, 500, ""),
	} {
		s := &script{lines: []line{first}}
		c, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailOpen, CheckTimeout: time.Minute, HTTP: &http.Client{Transport: s}})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := c.Check(t.Context(), req); err != nil || d.Source != api.SourceFailOpen || len(s.at) != 1 { // it may have been charged
			t.Errorf("%s: %+v, %v after %d requests", name, d, err, len(s.at))
		}
	}
	s := &script{lines: []line{{status: 503, retryAfter: "1", body: `{"type":"urn:coordsvc:problem:store_unavailable","code":"store_unavailable","status":503,"source":"fail_closed","degraded":true,"degraded_reason":"timeout"}`}}}
	closedBy, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailOpen, HTTP: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := closedBy.Check(t.Context(), req); err != nil || d.Allowed || d.Source != api.SourceFailClosed || d.DegradedReason != "timeout" || d.RetryAfterMS != 1000 {
		t.Errorf("the policy's own posture: %+v, %v", d, err)
	}
}

func TestLeasesFencesAndRecords(t *testing.T) {
	c, _ := connect(t, Options{})
	ctx := t.Context()
	const resource = "a/b c"
	g, err := c.AcquireLease(ctx, resource, api.AcquireLease{Owner: "a", TTLMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.AcquireLease(ctx, resource, api.AcquireLease{Owner: "b", TTLMS: 60_000})
	if p, ok := errors.AsType[*ProblemError](err); !ok || p.Code != api.CodeLeaseHeld || !p.Retryable || p.RetryAfter <= 0 || p.HeldUntil == nil {
		t.Errorf("held: %v", err)
	}
	if g, err = c.RenewLease(ctx, resource, api.RenewLease{LeaseID: g.LeaseID, FencingToken: g.FencingToken, TTLMS: 60_000}); err != nil {
		t.Error(err)
	}
	if l, err := c.Lease(ctx, resource); err != nil || !l.Held || l.Resource != resource {
		t.Errorf("%+v, %v", l, err)
	}
	if m, err := c.Admit(ctx, resource, api.Admit{FencingToken: g.FencingToken}); err != nil || m.HighWater != g.FencingToken {
		t.Errorf("%+v, %v", m, err)
	}
	w, err := c.WriteProtected(ctx, resource, "k/1", api.WriteProtected{FencingToken: g.FencingToken, LeaseID: &g.LeaseID, Value: json.RawMessage(`{"a":1}`)})
	if err != nil || w.Version != 1 {
		t.Errorf("%+v, %v", w, err)
	}
	if err := c.ReleaseLease(ctx, resource, api.ReleaseLease{LeaseID: g.LeaseID, FencingToken: g.FencingToken}); err != nil {
		t.Error(err)
	}
	next, err := c.AcquireLease(ctx, resource, api.AcquireLease{Owner: "b", TTLMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.WriteProtected(ctx, resource, "k/1", api.WriteProtected{FencingToken: g.FencingToken, LeaseID: &g.LeaseID, Value: json.RawMessage(`2`)})
	if p, ok := errors.AsType[*ProblemError](err); !ok || p.Code != api.CodeStaleFencingToken || p.HighWater == nil || *p.HighWater != next.FencingToken {
		t.Errorf("a stale holder: %v", err)
	}
	if rec, err := c.ReadProtected(ctx, resource, "k/1"); err != nil || string(rec.Value) != `{"a":1}` {
		t.Errorf("%+v, %v", rec, err)
	}
	if _, err := c.RenewLease(ctx, resource, api.RenewLease{LeaseID: g.LeaseID, FencingToken: g.FencingToken, TTLMS: 60_000}); !errors.Is(err, lease.ErrLost) {
		t.Errorf("lost: %v", err)
	}
	if _, err := c.Lease(ctx, ".."); !isValue(err, "resource") {
		t.Errorf("an id that a URL loses: %v", err)
	}
}

// Several resources are taken, renewed and given back together, or none of them is.
func TestLeaseSets(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	f.set(lost)
	set, err := c.AcquireLeaseSet(ctx, api.AcquireLeaseSet{Owner: "a", Resources: []api.ID{"set/2", "set/1"}, TTLMS: 60_000})
	if err != nil || len(set) != 2 || set[0].Resource != "set/2" || set[0].FencingToken != 1 || time.Until(set[1].Until) > time.Minute || time.Until(set[1].Until) < 30*time.Second || f.sent.Load() != 2 {
		t.Fatalf("%+v, %v after %d requests", set, err, f.sent.Load())
	}
	if _, err := c.AcquireLeaseSet(ctx, api.AcquireLeaseSet{Owner: "b", Resources: []api.ID{"set/1", "set/3"}, TTLMS: 60_000}); !IsCode(err, api.CodeLeaseHeld) {
		t.Errorf("one is held: %v", err)
	}
	if _, err := c.Lease(ctx, "set/3"); !IsCode(err, api.CodeNotFound) {
		t.Errorf("one of a refused set: %v", err)
	}
	var held []api.HeldLease
	for _, g := range set {
		held = append(held, api.HeldLease{Resource: g.Resource, LeaseID: g.LeaseID, FencingToken: g.FencingToken})
	}
	if renewed, err := c.RenewLeaseSet(ctx, api.RenewLeaseSet{Leases: held, TTLMS: 3_600_000}); err != nil || time.Until(renewed[1].Until) < 30*time.Minute {
		t.Errorf("%+v, %v", renewed, err)
	}
	f.set(lost)
	if err := c.ReleaseLeaseSet(ctx, api.ReleaseLeaseSet{Leases: held}); err != nil || f.sent.Load() != 2 {
		t.Errorf("%v after %d requests", err, f.sent.Load())
	}
	for _, resource := range []string{"set/1", "set/2"} {
		if l, err := c.Lease(ctx, resource); err != nil || l.Held {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if _, err := c.RenewLeaseSet(ctx, api.RenewLeaseSet{Leases: held, TTLMS: 60_000}); !errors.Is(err, lease.ErrLost) && !errors.Is(err, lease.ErrExpired) {
		t.Errorf("after the release: %v", err)
	}
}

// Who writes what another has replaced meanwhile is refused, and a lost answer is told.
func TestSessionData(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	s, err := c.CreateSession(ctx, api.CreateSession{UserID: "data"})
	if err != nil {
		t.Fatal(err)
	}
	handle := s.Session.Handle
	if d, err := c.SessionData(ctx, handle); err != nil || d.Version != 0 || string(d.Value) != "null" {
		t.Errorf("before: %+v, %v", d, err)
	}
	v, err := c.SetSessionData(ctx, handle, 0, json.RawMessage(`{"cart":[1]}`))
	if err != nil || v != 1 {
		t.Errorf("version %d, %v", v, err)
	}
	if _, err := c.SetSessionData(ctx, handle, 0, json.RawMessage(`2`)); !IsCode(err, api.CodeVersionMismatch) {
		t.Errorf("another was faster: %v", err)
	}
	f.set(lost)
	if _, err := c.SetSessionData(ctx, handle, v, json.RawMessage(`["x"]`)); !errors.Is(err, keytype.ErrOutcomeUnknown) || f.sent.Load() != 1 {
		t.Errorf("lost: %v after %d requests", err, f.sent.Load())
	}
	f.set(lost)
	if d, err := c.SessionData(ctx, handle); err != nil || d.Version != 2 || string(d.Value) != `["x"]` {
		t.Errorf("after: %+v, %v", d, err)
	}
	if _, err := c.SessionData(ctx, "ses_none"); !IsCode(err, api.CodeNotFound) {
		t.Errorf("no session: %v", err)
	}
}

func TestL22L43KeepLease(t *testing.T) {
	const ttl = 4000 * time.Millisecond
	keep := func(t *testing.T, resource string, ttl time.Duration) (*Client, *faults, *lease.Kept) {
		t.Helper()
		c, f := connect(t, Options{})
		f.set(lost) // the first answer is lost, and the same grant comes again
		kept, err := c.KeepLease(t.Context(), resource, api.AcquireLease{Owner: "a", TTLMS: ttl.Milliseconds()})
		if err != nil {
			t.Fatal(err)
		}
		return c, f, kept
	}
	// A machine that stands still for seconds loses a short lease. A longer one must then be kept.
	t.Run("renews until it is released", func(t *testing.T) {
		t.Parallel()
		renews := func(resource string, ttl time.Duration) (again bool) {
			c, _, kept := keep(t, resource, ttl)
			time.Sleep(ttl + ttl/4)
			_, err := c.AcquireLease(t.Context(), resource, api.AcquireLease{Owner: "b", TTLMS: 1000})
			cause := context.Cause(kept.Context())
			switch lost := err == nil || errors.Is(cause, lease.ErrExpired); {
			case lost && ttl < 16*time.Second:
				t.Logf("a lease of %v: %v; somebody else: %v", ttl, cause, err)
				if err := kept.Release(t.Context()); err != nil && !errors.Is(err, lease.ErrExpired) {
					t.Error(err)
				}
				return true
			case !IsCode(err, api.CodeLeaseHeld) || cause != nil || kept.Token() != 1:
				t.Errorf("token %d, %v; somebody else: %v", kept.Token(), cause, err)
			}
			if err := kept.Release(t.Context()); err != nil || kept.Context().Err() == nil {
				t.Error(err)
			}
			if l, err := c.Lease(t.Context(), resource); err != nil || l.Held {
				t.Errorf("%+v, %v", l, err)
			}
			return false
		}
		for ttl := ttl; renews(fmt.Sprint("kept for ", ttl), ttl); ttl *= 2 {
		}
	})
	t.Run("ends the work before its lease when nobody answers", func(t *testing.T) {
		t.Parallel()
		c, f, kept := keep(t, "cut off", ttl)
		f.all.Store(true) // renewals arrive, for all the holder knows they do not
		<-kept.Context().Done()
		f.all.Store(false)
		if cause := context.Cause(kept.Context()); !errors.Is(cause, lease.ErrExpired) {
			t.Errorf("the cause is %v", cause)
		}
		if l, err := c.Lease(t.Context(), "cut off"); err != nil || l.FencingToken != 1 {
			t.Errorf("%+v, %v", l, err)
		}
	})
	t.Run("tells at once that somebody took it away", func(t *testing.T) {
		t.Parallel()
		c, _, kept := keep(t, "forced", ttl)
		body := api.ForceRelease{FencingToken: int64(kept.Token()), Reason: "test"}
		if _, err := c.do(t.Context(), call{method: "POST", route: "/v1/leases/{resource}/force-release", ids: []string{"forced"}, body: body}, &api.ForcedRelease{}); err != nil {
			t.Fatal(err)
		}
		<-kept.Context().Done()
		if cause := context.Cause(kept.Context()); !errors.Is(cause, lease.ErrLost) {
			t.Errorf("the cause is %v", cause)
		}
	})
}

func TestQuotas(t *testing.T) {
	c, _ := connect(t, Options{})
	ctx := t.Context()
	if _, err := c.SetQuota(ctx, "q", "s", api.SetQuota{Limit: 5, Window: json.RawMessage(`"none"`)}); err != nil {
		t.Fatal(err)
	}
	var kept [2]Reservation
	for i := range kept {
		r, err := c.ReserveQuota(ctx, "q", "s", api.ReserveQuota{Amount: 2, TTLMS: 60_000})
		if err != nil || time.Until(r.Until) > time.Minute || time.Until(r.Until) < 30*time.Second {
			t.Fatalf("%+v, %v", r, err)
		}
		kept[i] = r
	}
	if q, err := c.CommitQuota(ctx, "q", "s", kept[0].ReservationID, api.CommitQuota{Amount: new(int64(1))}); err != nil || q.Used != 1 {
		t.Errorf("%+v, %v", q, err)
	}
	if q, err := c.CancelQuota(ctx, "q", "s", kept[1].ReservationID); err != nil || q.Available != 4 {
		t.Errorf("%+v, %v", q, err)
	}
	_, err := c.ConsumeQuota(ctx, "q", "s", api.ConsumeQuota{Amount: 5})
	if p, ok := errors.AsType[*ProblemError](err); !ok || p.Code != api.CodeQuotaExceeded || p.Available == nil || *p.Available != 4 {
		t.Errorf("%v", err)
	}
	if q, err := c.Quota(ctx, "q", "s"); err != nil || q.Used != 1 {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestIdempotency(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	ask := api.ClaimKey{Fingerprint: "f", LockTTLMS: 60_000, TTLMS: 3_600_000}
	f.set(lost)
	cl, err := c.ClaimKey(ctx, "k", ask)
	if err != nil || cl.State != api.Claimed || cl.Attempt != 1 || cl.Until.IsZero() {
		t.Fatalf("%+v, %v", cl, err)
	}
	f.set()
	if _, err := c.ClaimKey(ctx, "k", ask); !IsCode(err, api.CodeIdempotencyInFlight) || f.sent.Load() != 1 {
		t.Errorf("another claim: %v after %d requests", err, f.sent.Load())
	}
	if cl, err = c.ExtendClaim(ctx, "k", api.ExtendClaim{ClaimID: cl.ClaimID, LockTTLMS: 60_000}); err != nil {
		t.Error(err)
	}
	f.set(lost)
	if err := c.CompleteClaim(ctx, "k", cl.ClaimID, json.RawMessage(`{"id":1}`)); err != nil {
		t.Error(err)
	}
	if cl, err := c.ClaimKey(ctx, "k", ask); err != nil || cl.State != api.Completed || string(cl.Response) != `{"id":1}` || !cl.Until.IsZero() {
		t.Errorf("%+v, %v", cl, err)
	}
	other, err := c.ClaimKey(ctx, "k2", ask)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AbandonClaim(ctx, "k2", other.ClaimID); err != nil {
		t.Error(err)
	}
	if err := c.CompleteClaim(ctx, "k2", other.ClaimID, json.RawMessage(`1`)); !IsCode(err, api.CodeClaimLost) {
		t.Errorf("after abandon: %v", err)
	}
}

func TestLocks(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	l, err := c.AcquireLock(ctx, "l", api.AcquireLock{Owner: "a", TTLMS: 60_000})
	if err != nil || l.Warning == "" || l.Until.IsZero() {
		t.Fatalf("%+v, %v", l, err)
	}
	if _, err := c.AcquireLock(ctx, "l", api.AcquireLock{Owner: "b", TTLMS: 60_000}); !IsCode(err, api.CodeLockHeld) {
		t.Error(err)
	}
	if l, err = c.RenewLock(ctx, "l", api.RenewLock{LockID: l.LockID}); err != nil {
		t.Error(err)
	}
	if err := c.ReleaseLock(ctx, "l", "another"); !IsCode(err, api.CodeLockLost) {
		t.Error(err)
	}
	f.set(lost)
	if err := c.ReleaseLock(ctx, "l", l.LockID); err != nil || f.sent.Load() != 2 {
		t.Errorf("%v after %d requests", err, f.sent.Load())
	}
}

// S38: what an error says, a log may hold.
func TestS38ErrorsHoldNoSecret(t *testing.T) {
	r := service(t)
	const token = "cst_canary"
	for name, url := range map[string]string{"an answer": r.url, "no answer": dead(t)} {
		c, err := New(url, Options{APIKey: "csk_canary"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = c.VerifySession(ctx, api.VerifySession{Token: token})
		cancel()
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// S38: nor does what is printed of a client.
func TestS38WhatIsPrintedHoldsNoKey(t *testing.T) {
	opts := Options{APIKey: "csk_canary"}
	c, err := New("http://service", opts)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "options", opts, "client", c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "options", opts, "client", c)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&log, verb+verb+verb, opts, &opts, c)
	}
	if strings.Contains(log.String(), "canary") || !strings.Contains(log.String(), "service") {
		t.Errorf("printed: %s", log.String())
	}
}
