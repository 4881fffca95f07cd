package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// answer makes a response.
func answer(status int, retryAfter, body string) *http.Response {
	h := http.Header{}
	if retryAfter != "" {
		h.Set("Retry-After", retryAfter)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// A script answers requests one after the other without any network, and goes on with its last line.
type script struct {
	lines []line
	at    []time.Duration // when each request came
	keys  []string        // its Idempotency-Key
	begun time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.at, s.keys = append(s.at, time.Since(s.begun)), append(s.keys, r.Header.Get("Idempotency-Key"))
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && len(s.lines) > 0 {
		next := s.lines[0]
		if len(s.lines) > 1 {
			s.lines = s.lines[1:]
		}
		if !errors.Is(next.err, errDial) {
			trace.GotConn(httptrace.GotConnInfo{})
		}
		if next.err != nil {
			return nil, next.err
		}
		resp := answer(next.status, next.retryAfter, next.body)
		resp.Header.Set("Date", next.date)
		return resp, nil
	}
	return nil, errors.New("no line left")
}

var (
	errDial = errors.New("connection refused")
	errLost = errors.New("connection reset")
)

// A line is what a request is answered with.
type line struct {
	status                 int
	retryAfter, date, body string
	err                    error
}

func says(code api.ProblemCode, status int, retryAfter string) line {
	return line{status: status, retryAfter: retryAfter, body: fmt.Sprintf(`{"type":"urn:coordsvc:problem:%s","code":%q,"status":%d,"detail":"d"}`, code, code, status)}
}

func fails(err error) line { return line{err: err} }

var succeeds = line{status: http.StatusNoContent}

// What is repeated, by how the call may be, and what the service says first.
func TestL53OnlyWhatIsSafeIsTriedAgain(t *testing.T) {
	firsts := []struct {
		name  string
		line  line
		again map[repeat]bool
	}{
		{"nothing was sent", fails(errDial), map[repeat]bool{never: true, once: true, keyed: true, exact: true}},
		{"the answer was lost", fails(errLost), map[repeat]bool{keyed: true, exact: true}},
		{"a proxy answers", line{status: 502, body: "<html>"}, map[repeat]bool{keyed: true, exact: true}},
		{"no effect", says(api.CodeStoreUnavailable, 503, "1"), map[repeat]bool{once: true, keyed: true, exact: true}},
		{"a clock that is off", says(api.CodeClockSkew, 503, "1"), map[repeat]bool{once: true, keyed: true, exact: true}},
		{"it may have happened", says(api.CodeOutcomeUnknown, 503, ""), map[repeat]bool{exact: true}},
		{"a defect", says(api.CodeInternal, 500, ""), nil},
		{"a refusal", says(api.CodeLeaseHeld, 409, "1"), nil},
		{"it is at work, which the transport began", says(api.CodeIdempotencyInFlight, 409, "1"), map[repeat]bool{keyed: true}},
		{"refused check", says(api.CodeRateLimited, 429, "1"), nil},
		{"no key", says(api.CodeUnauthenticated, 401, ""), nil},
	}
	for _, first := range firsts {
		for _, kind := range []repeat{never, once, keyed, exact} {
			t.Run(fmt.Sprint(first.name, "/", kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &script{lines: []line{first.line, succeeds}, begun: time.Now()}
					c := scripted(t, s)
					_, err := c.do(t.Context(), call{method: "POST", route: "/x", repeat: kind}, nil)
					want := 1
					if first.again[kind] {
						want = 2
					}
					if len(s.at) != want || (err == nil) != (want == 2) {
						t.Errorf("%d requests, %v; want %d", len(s.at), err, want)
					}
					if kind == keyed && (s.keys[0] == "" || s.keys[len(s.keys)-1] != s.keys[0]) || kind != keyed && s.keys[0] != "" {
						t.Errorf("Idempotency-Keys %q", s.keys)
					}
				})
			})
		}
	}
}

// That nothing happened is said of a call only where it is true of all its tries.
func TestALaterTryDoesNotUndoAnEarlierOne(t *testing.T) {
	lost, dial, unavailable := fails(errLost), fails(errDial), says(api.CodeStoreUnavailable, 503, "")
	inFlight := says(api.CodeIdempotencyInFlight, 409, "")
	for name, tc := range map[string]struct {
		lines []line // of which the last comes until the time is over
		kind  repeat
		want  error
	}{
		"never sent":                    {[]line{dial}, keyed, keytype.ErrUnavailable},
		"no effect":                     {[]line{dial, unavailable}, keyed, keytype.ErrUnavailable},
		"lost, then not sent":           {[]line{lost, dial}, keyed, keytype.ErrOutcomeUnknown},
		"lost, then no effect":          {[]line{lost, unavailable}, keyed, keytype.ErrOutcomeUnknown},
		"lost, then a clock off":        {[]line{lost, says(api.CodeClockSkew, 503, "")}, exact, keytype.ErrOutcomeUnknown},
		"unknown, then no effect":       {[]line{says(api.CodeOutcomeUnknown, 503, ""), unavailable}, exact, keytype.ErrOutcomeUnknown},
		"lost, then it is at work":      {[]line{lost, inFlight}, keyed, keytype.ErrOutcomeUnknown},
		"the transport's try, at work":  {[]line{inFlight}, keyed, keytype.ErrOutcomeUnknown},
		"another's work under that key": {[]line{inFlight}, exact, nil},
		"lost, then refused":            {[]line{lost, says(api.CodeLeaseLost, 409, "")}, exact, lease.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := scripted(t, &script{lines: tc.lines, begun: time.Now()}).do(t.Context(), call{method: "POST", route: "/x", repeat: tc.kind}, nil)
				for _, is := range []error{keytype.ErrUnavailable, keytype.ErrOutcomeUnknown, lease.ErrLost} {
					if errors.Is(err, is) != errors.Is(tc.want, is) {
						t.Errorf("%v: is %v: %t", err, is, errors.Is(err, is))
					}
				}
			})
		})
	}
}

func scripted(t *testing.T, s http.RoundTripper) *Client {
	t.Helper()
	c, err := New("http://service", Options{APIKey: "csk_x", HTTP: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{lines: []line{says(api.CodeStoreUnavailable, 503, "3"), succeeds}, begun: time.Now()}
		if _, err := scripted(t, s).do(t.Context(), call{method: "GET", route: "/x", repeat: exact}, nil); err != nil || s.at[1] != 3*time.Second {
			t.Errorf("%v at %v, want 3 s", err, s.at)
		}
	})
	date := time.Now().Add(time.Hour).UTC() // of a clock that is off
	for name, tc := range map[string]struct {
		first line
		want  time.Duration
	}{
		"a proxy's seconds": {line{status: 503, retryAfter: "4", body: "<html>"}, 4 * time.Second},
		"a proxy's date":    {line{status: 503, date: date.Format(http.TimeFormat), retryAfter: date.Add(5 * time.Second).Format(http.TimeFormat)}, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{lines: []line{tc.first, succeeds}, begun: time.Now()}
				if _, err := scripted(t, s).do(t.Context(), call{method: "GET", route: "/x", repeat: exact}, nil); err != nil || s.at[1] != tc.want {
					t.Errorf("%v at %v, want %v", err, s.at, tc.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // beyond the caller's time there is nothing to wait for
		s := &script{lines: []line{says(api.CodeStoreUnavailable, 503, "3"), succeeds}, begun: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := scripted(t, s).do(ctx, call{method: "GET", route: "/x", repeat: exact}, nil)
		if !errors.Is(err, keytype.ErrUnavailable) || len(s.at) != 1 || time.Since(s.begun) != 0 {
			t.Errorf("%v after %v, %d requests", err, time.Since(s.begun), len(s.at))
		}
	})
}

// An answer to an earlier try of the same call may still be on its way.
func TestInFlightIsAwaitedUnderTheOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{lines: []line{fails(errLost), says(api.CodeIdempotencyInFlight, 409, "2"), succeeds}, begun: time.Now()}
		if _, err := scripted(t, s).do(t.Context(), call{method: "POST", route: "/x", repeat: keyed}, nil); err != nil || len(s.at) != 3 {
			t.Errorf("%v, %d requests", err, len(s.at))
		}
	})
}

// A call ends by itself within its own time, and before its caller's.
func TestACallEndsBeforeItsCaller(t *testing.T) {
	for _, tc := range []struct {
		name string
		mine time.Duration
		want time.Duration
	}{
		{"no deadline", 0, DefaultTimeout},
		{"a late one", time.Hour, DefaultTimeout},
		{"an early one", 10 * time.Second, 9 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if tc.mine > 0 {
					ctx, cancel = context.WithTimeout(ctx, tc.mine)
				}
				defer cancel()
				s := &script{lines: []line{fails(errLost)}, begun: time.Now()}
				_, err := scripted(t, s).do(ctx, call{method: "GET", route: "/x", repeat: exact}, nil)
				took := time.Since(s.begun)
				if !errors.Is(err, keytype.ErrOutcomeUnknown) || took > tc.want || took < tc.want-3*time.Second || len(s.at) < 3 {
					t.Errorf("%v after %v and %d requests, want just below %v", err, took, len(s.at), tc.want)
				}
			})
		})
	}
}

// On the service: an answer that is lost costs nothing, and what cannot be repeated is not.
func TestL5R45LostAnswers(t *testing.T) {
	c, f := connect(t, Options{OnNoAnswer: api.PostureFailOpen, CheckTimeout: 5 * time.Second})
	ctx := t.Context()

	t.Run("a lease", func(t *testing.T) {
		f.set(lost, lost)
		g, err := c.AcquireLease(ctx, "lost", api.AcquireLease{Owner: "a", TTLMS: 60_000})
		if err != nil || g.FencingToken != 1 || f.sent.Load() != 3 {
			t.Errorf("%+v, %v after %d requests", g, err, f.sent.Load())
		}
	})
	t.Run("a quota", func(t *testing.T) {
		if _, err := c.SetQuota(ctx, "lost", "s", api.SetQuota{Limit: 5, Window: json.RawMessage(`"day"`)}); err != nil {
			t.Fatal(err)
		}
		f.set(lost)
		if q, err := c.ConsumeQuota(ctx, "lost", "s", api.ConsumeQuota{Amount: 2}); err != nil || q.Used != 2 || f.sent.Load() != 2 {
			t.Errorf("%+v, %v after %d requests", q, err, f.sent.Load())
		}
	})
	t.Run("a login", func(t *testing.T) {
		f.set(lost)
		if _, err := c.CreateSession(ctx, api.CreateSession{UserID: "lost"}); err != nil || f.sent.Load() != 2 {
			t.Fatalf("%v after %d requests", err, f.sent.Load())
		}
		if list := all(t, c.Sessions(ctx, "lost")); len(list) != 1 {
			t.Errorf("%d sessions", len(list))
		}
	})
	t.Run("a check with a request id", func(t *testing.T) {
		f.set(lost)
		d, err := c.Check(ctx, api.RateLimitRequest{Policy: "ten", Descriptors: api.Descriptors{"app": "lost-id"}, RequestID: new("r")})
		if err != nil || !d.Allowed || d.Degraded || d.Limits[0].Remaining != 9 || f.sent.Load() != 2 {
			t.Errorf("%+v, %v after %d requests", d, err, f.sent.Load())
		}
	})
	t.Run("a check without one", func(t *testing.T) {
		req := api.RateLimitRequest{Policy: "ten", Descriptors: api.Descriptors{"app": "lost"}}
		f.set(lost)
		d, err := c.Check(ctx, req)
		if err != nil || !d.Allowed || !d.Degraded || d.Source != api.SourceFailOpen || f.sent.Load() != 1 {
			t.Errorf("%+v, %v after %d requests", d, err, f.sent.Load())
		}
		if d, err := c.Peek(ctx, req); err != nil || d.Limits[0].Remaining != 9 {
			t.Errorf("charged more than once: %+v, %v", d, err)
		}
	})
	t.Run("a write without a sequence", func(t *testing.T) {
		f.set(lost)
		_, err := c.WriteProtected(ctx, "lost-write", "k", api.WriteProtected{FencingToken: 1, Mode: new(api.HighWater), Value: json.RawMessage(`1`)})
		e, ok := errors.AsType[*NoAnswerError](err)
		if !ok || !e.Sent || !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) || f.sent.Load() != 1 {
			t.Errorf("%v after %d requests", err, f.sent.Load())
		}
		f.set(lost)
		w, err := c.WriteProtected(ctx, "lost-write", "k", api.WriteProtected{FencingToken: 1, Sequence: new(int64(7)), Mode: new(api.HighWater), Value: json.RawMessage(`2`)})
		if err != nil || w.Version != 2 || f.sent.Load() != 2 {
			t.Errorf("with one: %+v, %v after %d requests", w, err, f.sent.Load())
		}
	})
	t.Run("a lock", func(t *testing.T) {
		f.set(lost)
		if _, err := c.AcquireLock(ctx, "lost", api.AcquireLock{Owner: "a", TTLMS: 60_000}); !errors.Is(err, keytype.ErrOutcomeUnknown) || f.sent.Load() != 1 {
			t.Errorf("%v after %d requests", err, f.sent.Load())
		}
	})
}

// R-rows ask that an answer is believed no longer than it holds: from the sending on.
func TestValidityCountsFromTheSending(t *testing.T) {
	c, f := connect(t, Options{})
	f.slow = 300 * time.Millisecond
	before := time.Now()
	f.set(late)
	g, err := c.AcquireLease(t.Context(), "slow", api.AcquireLease{Owner: "a", TTLMS: 60_000})
	if err != nil || time.Since(before) < f.slow {
		t.Fatalf("%v after %v", err, time.Since(before))
	}
	earliest, latest := before.Add(ms(g.ValidForMS)), time.Now().Add(ms(g.ValidForMS)-f.slow)
	if g.Until.Before(earliest) || g.Until.After(latest) {
		t.Errorf("until %v, want %v to %v", g.Until, earliest, latest)
	}
}

// L43: the work ends before the lease does, counted from when the grant was asked for,
// also where that was answered late and no renewal is answered at all.
func TestL43KeptWorkEndsBeforeItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const valid, late = 3 * time.Second, 500 * time.Millisecond
		c, err := New("http://service", Options{APIKey: "k", HTTP: &http.Client{Transport: grants(valid, late)}})
		if err != nil {
			t.Fatal(err)
		}
		asked := time.Now()
		kept, err := c.KeepLease(t.Context(), "r", api.AcquireLease{Owner: "a", TTLMS: valid.Milliseconds()})
		if err != nil || time.Since(asked) != late {
			t.Fatalf("%v after %v", err, time.Since(asked))
		}
		<-kept.Context().Done()
		if took := time.Since(asked); took != valid-valid/10 || !errors.Is(context.Cause(kept.Context()), lease.ErrExpired) {
			t.Errorf("after %v: %v", took, context.Cause(kept.Context()))
		}
		end, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := kept.Release(end); err == nil {
			t.Error("released, though nobody answers")
		}
	})
}

// grants is a service that grants a lease late, and answers nothing from then on.
func grants(valid, late time.Duration) http.RoundTripper {
	granted := false
	return transport(func(r *http.Request) (*http.Response, error) {
		if granted {
			return hanging{}.RoundTrip(r)
		}
		granted = true
		time.Sleep(late)
		g, err := api.Encode(api.LeaseGrant{LeaseID: "lse_x", FencingToken: 1, Held: true, ValidForMS: valid.Milliseconds()})
		return answer(http.StatusOK, "", string(g)), err
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
