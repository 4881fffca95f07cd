package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// Two limiters of one key let together no more pass than the limit and the overshoot,
// with a request for many checks, and give back what they hold.
func TestLimiterSpendsBatches(t *testing.T) {
	req := api.RateLimitRequest{Policy: "often", Descriptors: api.Descriptors{"app": t.Name()}}
	var passed, leased, unbound atomic.Int64
	begun := time.Now()
	var wg sync.WaitGroup
	var limiters []*Limiter
	var clients []*Client
	for range 2 {
		c, f := connect(t, Options{OnNoAnswer: api.PostureFailClosed, CheckTimeout: 5 * time.Second})
		l := c.NewLimiter()
		limiters, clients = append(limiters, l), append(clients, c)
		for range 4 {
			wg.Go(func() {
				for range 300 {
					d, err := l.Check(t.Context(), req)
					if err != nil {
						t.Error(err)
						return
					}
					if d.Source == api.SourceTokenLease {
						leased.Add(1)
						if d.MaxOvershoot != 200 {
							unbound.Add(1)
						}
					}
					if d.Allowed {
						passed.Add(1)
					}
				}
			})
		}
		defer func() { t.Logf("%d requests of one limiter", f.sent.Load()) }()
	}
	wg.Wait()
	took := time.Since(begun)
	if most := 1000 + int64(took.Minutes()*1000) + 1 + 200; passed.Load() > most {
		t.Errorf("%d passed in %v, more than %d", passed.Load(), took, most)
	}
	if leased.Load() < 1200 || unbound.Load() > 0 {
		t.Errorf("of 2400 checks %d were answered from a batch, %d without its bound", leased.Load(), unbound.Load())
	}
	for _, l := range limiters {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	d, err := clients[0].Peek(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if used, most := 1000-d.Limits[0].Remaining, passed.Load(); used > most {
		t.Errorf("%d units are gone, %d were spent", used, most)
	}
	if d, err := limiters[0].Check(t.Context(), req); err != nil || d.Source == api.SourceTokenLease {
		t.Errorf("after Close: %+v, %v", d, err)
	}
}

// What has no batches goes to the service, and is not asked for batches each time.
func TestLimiterLeavesExactPoliciesToTheService(t *testing.T) {
	c, f := connect(t, Options{OnNoAnswer: api.PostureFailClosed, CheckTimeout: 5 * time.Second})
	l := c.NewLimiter()
	defer func() { _ = l.Close(t.Context()) }()
	req := api.RateLimitRequest{Policy: "ten", Descriptors: api.Descriptors{"app": t.Name()}}
	f.set()
	allowed := 0
	for range 50 {
		d, err := l.Check(t.Context(), req)
		if err != nil || d.Source != api.SourceMemory {
			t.Fatalf("%+v, %v", d, err)
		}
		if d.Allowed {
			allowed++
		}
	}
	if allowed != 10 || f.sent.Load() > 52 {
		t.Errorf("%d allowed, %d requests", allowed, f.sent.Load())
	}
	if _, err := l.Check(t.Context(), api.RateLimitRequest{Policy: "none"}); !IsCode(err, api.CodeNotFound) {
		t.Errorf("an unknown policy: %v", err)
	}
}

// While the service does not answer the batch is spent, then the posture decides.
func TestLimiterWithoutAnAnswer(t *testing.T) {
	c, f := connect(t, Options{OnNoAnswer: api.PostureFailOpen, CheckTimeout: 5 * time.Second})
	l := c.NewLimiter()
	req := api.RateLimitRequest{Policy: "often", Descriptors: api.Descriptors{"app": t.Name()}}
	for range 40 {
		if _, err := l.Check(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	f.all.Store(true)
	for range 400 {
		d, err := l.Check(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if d.Source == api.SourceFailOpen && d.Allowed && d.Degraded {
			return
		}
	}
	t.Error("400 checks were answered without the service, and none by the posture")
}

// R28: a check that waits for a batch is answered in time, and so is Close.
func TestR28AHungServiceHoldsNoLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := hanging{}
		c, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailOpen, HTTP: &http.Client{Transport: hang}})
		if err != nil {
			t.Fatal(err)
		}
		l := c.NewLimiter()
		check := func(ctx context.Context, most time.Duration) {
			t.Helper()
			begun := time.Now()
			d, err := l.Check(ctx, api.RateLimitRequest{Policy: "p"})
			if took := time.Since(begun); err != nil || d.Source != api.SourceFailOpen || took > most {
				t.Errorf("%+v, %v after %v", d, err, took)
			}
		}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() { check(t.Context(), DefaultCheckTimeout) })
		}
		all.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if check(ctx, 90*time.Millisecond); ctx.Err() != nil {
			t.Error("beyond its caller's deadline")
		}
		all.Go(func() { check(t.Context(), DefaultCheckTimeout) }) // a batch is under way
		synctest.Wait()
		soon, done := context.WithTimeout(t.Context(), time.Millisecond)
		defer done()
		begun := time.Now()
		err = l.Close(soon)
		if took := time.Since(begun); took > time.Millisecond {
			t.Errorf("Close took %v: %v", took, err)
		}
		all.Wait()
		if err := l.Close(t.Context()); err != nil { // and nothing runs on, or the bubble would not end
			t.Errorf("again: %v", err)
		}
	})
}

// hanging is a service that takes requests and never answers.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A batch that cannot be given back keeps the checks of its key waiting no longer than
// CheckTimeout, and is given up when it has lapsed.
func TestABatchThatCannotGoBackIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://service", Options{APIKey: "k", HTTP: &http.Client{Transport: hanging{}}})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err = leaseSource{c}.Return(t.Context(), tokenlease.Unspent{Units: 1})
		if took := time.Since(begun); err == nil || took > returnTime {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// The service says when one unit is there. For more it is asked, not waited for that.
func TestTheWaitOfALeaseIsForOneUnit(t *testing.T) {
	c, err := New("http://service", Options{APIKey: "k", HTTP: &http.Client{Transport: refusing{}}})
	if err != nil {
		t.Fatal(err)
	}
	for least, want := range map[int64]time.Duration{1: 50 * time.Millisecond, 2: 0} {
		g, err := leaseSource{c}.Lease(t.Context(), tokenlease.Ask{Key: tokenlease.Key{Policy: "p"}, Holder: "h", Want: 5, Least: least})
		if err != nil || g.Granted != 0 || g.RetryAfter != want {
			t.Errorf("least %d: %+v, %v", least, g, err)
		}
	}
}

// refusing is a service whose limit is used up.
type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	body := `{"granted":0,"valid_for_ms":0,"retry_after_ms":50,"max_overshoot":200}`
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// Whoever chooses the names of policies, or of identities, does not choose what a limiter keeps.
func TestALimiterStaysSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		invalid := says(api.CodeInvalidValue, 422, "")
		invalid.body = strings.Replace(invalid.body, "{", `{"field":"policy",`, 1)
		c, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailOpen, HTTP: &http.Client{Transport: &script{lines: []line{invalid}}}})
		if err != nil {
			t.Fatal(err)
		}
		l := c.NewLimiter()
		for i := range 2 * maxExact {
			for range 5 { // then a batch is worth while
				if _, err := l.Check(t.Context(), api.RateLimitRequest{Policy: fmt.Sprint(i)}); !IsCode(err, api.CodeInvalidValue) {
					t.Fatal(err)
				}
			}
		}
		if n := len(l.exact); n == 0 || n > maxExact {
			t.Errorf("%d policies are kept", n)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
