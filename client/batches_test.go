package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// A lender is a service that grants all that is wanted, and remembers what it was asked.
type lender struct {
	mu sync.Mutex
	lent
}

// lent is guarded by the lender's mu.
type lent struct {
	refuses bool // with a time of 1.5 s
	asks    []api.TokenLeaseRequest
	returns []api.TokenLeaseReturn
	granted int64
	checks  int
}

func (l *lender) seen() lent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lent
}

func (l *lender) refuse(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses = yes
}

func (l *lender) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	body := json.NewDecoder(r.Body)
	switch {
	case strings.HasSuffix(r.URL.Path, "/return"):
		var back api.TokenLeaseReturn
		err := body.Decode(&back)
		l.returns = append(l.returns, back)
		return answer(http.StatusNoContent, "", ""), err
	case strings.HasSuffix(r.URL.Path, "/check"):
		l.checks++
		return answer(http.StatusOK, "", `{"allowed":true,"policy":"p","stage":"enforce","limits":[],"retry_after_ms":0,"source":"redis","degraded":false}`), nil
	}
	var ask api.TokenLeaseRequest
	if err := body.Decode(&ask); err != nil {
		return nil, err
	}
	l.asks = append(l.asks, ask)
	given := api.TokenLease{Granted: ask.Want, ValidForMS: 1000, MaxOvershoot: 500}
	if l.refuses {
		given = api.TokenLease{RetryAfterMS: 1500, MaxOvershoot: 500}
	}
	l.granted += given.Granted
	raw, err := api.Encode(given)
	return answer(http.StatusOK, "", string(raw)), err
}

// What a limiter takes it spends or gives back, by one name, and within its time.
func TestALimiterAccountsForItsBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &lender{}
		c, err := New("http://service", Options{APIKey: "k", OnNoAnswer: api.PostureFailClosed, HTTP: &http.Client{Transport: service}})
		if err != nil {
			t.Fatal(err)
		}
		l := c.NewLimiter()
		spent, cost := int64(0), int64(3)
		req := api.RateLimitRequest{Policy: "p", Descriptors: api.Descriptors{"app": "a"}, Cost: &cost}
		check := func(req api.RateLimitRequest) api.RateLimitDecision {
			t.Helper()
			d, err := l.Check(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed && d.Source == api.SourceTokenLease {
				spent += *req.Cost
			}
			synctest.Wait()
			return d
		}
		for range 100 {
			check(req)
			time.Sleep(time.Millisecond)
		}
		asks := service.seen().asks
		first, last := asks[0], asks[len(asks)-1]
		if spent < 200 || len(asks) < 2 || *first.Held != 0 || *last.Held == 0 || *first.Holder == "" || *first.Holder != *last.Holder || last.Policy != "p" || last.Descriptors["app"] != "a" {
			t.Errorf("spent %d, asked %+v ... %+v", spent, first, last)
		}
		named, other := req, req
		named.RequestID, other.Descriptors = new("r"), api.Descriptors{"app": "b"}
		for _, req := range []api.RateLimitRequest{named, other} {
			before := service.seen().checks
			if d := check(req); d.Source == api.SourceTokenLease || service.seen().checks != before+1 {
				t.Errorf("%+v: %+v", req, d)
			}
		}
		service.refuse(true)
		cost = 1
		asked := time.Now()
		for len(service.seen().returns) == 0 && time.Since(asked) < 2*time.Second {
			time.Sleep(50 * time.Millisecond)
			check(req)
		}
		saw := service.seen()
		if len(saw.returns) != 1 || time.Since(asked) > time.Second || *saw.returns[0].Holder != *last.Holder || spent+saw.returns[0].Unspent != saw.granted {
			t.Errorf("of %d spent %d, returned %+v after %v", saw.granted, spent, saw.returns, time.Since(asked))
		}
		for range 5 {
			check(req)
		}
		time.Sleep(300 * time.Microsecond)
		if d := check(req); d.Allowed || d.Source != api.SourceTokenLease || d.RetryAfterMS != 1500 {
			t.Errorf("refused: %+v", d)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		service.refuse(false)
		for range 20 {
			check(req)
		}
		err = l.Close(t.Context())
		if saw = service.seen(); err != nil || len(saw.returns) != 2 || spent+saw.returns[0].Unspent+saw.returns[1].Unspent != saw.granted {
			t.Errorf("of %d spent %d, returned %+v, %v", saw.granted, spent, saw.returns, err)
		}
	})
}

// Whether a batch whose answer was lost was charged, nobody knows: another try could charge a second one.
func TestABatchIsAskedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{lines: []line{fails(errLost), {status: 200, body: `{}`}}}
		if _, err := (leaseSource{scripted(t, s)}).Lease(t.Context(), tokenlease.Ask{Want: 5}); !outage(err) || len(s.at) != 1 {
			t.Errorf("%v after %d requests", err, len(s.at))
		}
	})
}

// Without a posture a limiter refuses checks from the first one on, as the client does.
func TestALimiterNeedsAPosture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &lender{}
		l := scripted(t, service).NewLimiter()
		for range 20 {
			if _, err := l.Check(t.Context(), api.RateLimitRequest{Policy: "p"}); !errors.Is(err, ErrNoPosture) {
				t.Fatal(err)
			}
		}
		if err := l.Close(t.Context()); err != nil || len(service.seen().asks) > 0 {
			t.Errorf("asked %+v, %v", service.seen().asks, err)
		}
	})
}
