package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A retry of what was charged stays one where the limit was lowered below its cost.
func TestARetryOutlivesALoweredLimit(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 10)))
	req := ask(8)
	req.RequestID = "r"
	if d, err := b.Check(t.Context(), "t", req); err != nil || !d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	if err := b.Replace([]ratelimit.Policy{policy(limit("l", 1, time.Hour, 5))}); err != nil {
		t.Fatal(err)
	}
	if d, err := b.Check(t.Context(), "t", req); err != nil || !d.Allowed {
		t.Errorf("the retry: got %+v, %v", d, err)
	}
	for _, id := range []string{"", "another"} {
		req.RequestID = id
		_, err := b.Check(t.Context(), "t", req)
		if e, ok := errors.AsType[*ratelimit.CostError](err); !ok || e.Capacity != 5 {
			t.Errorf("id %q: got %v", id, err)
		}
	}
	if d := b.check(5); d.Allowed {
		t.Errorf("as much was used as before: got %+v", d)
	}
}

// A bucket that refuses after a change to a slower rate does so for as long as it said,
// also where nothing is charged to it meanwhile.
func TestARefusalLastsAfterASlowerRate(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket} {
		l := limit("l", 10, time.Second, 10)
		if l.Algorithm = a; a == ratelimit.LeakyBucket {
			l.Burst, l.Queue = 0, 10
		}
		b := newBench(t, policy(l))
		b.check(10)
		l.Rate.Per = time.Hour
		if err := b.Replace([]ratelimit.Policy{policy(l)}); err != nil {
			t.Fatal(err)
		}
		for _, wait := range []time.Duration{0, 2 * time.Second, 5 * time.Minute} {
			b.now = b.now.Add(wait)
			if _, err := b.store.Sweep(t.Context(), b.now, 10); err != nil {
				t.Fatal(err)
			}
			if d := b.check(1); d.Allowed {
				t.Errorf("%s, %v later: %+v", a, wait, d)
			}
		}
		b.now = b.now.Add(time.Minute)
		if d := b.check(1); !d.Allowed {
			t.Errorf("%s, then: %+v", a, d)
		}
	}
}

// Where no refusal counts, none does for a cost above the capacity.
func TestStagesPassACostAboveTheCapacity(t *testing.T) {
	for _, c := range []struct {
		stage  ratelimit.Stage
		passes bool
		overBy int64
	}{{ratelimit.Shadow, true, 0}, {ratelimit.Warn, true, 70}, {ratelimit.Enforce, false, 0}} {
		p := policy(limit("wide", 1, time.Hour, 100), limit("tight", 1, time.Hour, 10))
		p.Stage = c.stage
		b := newBench(t, p)
		b.check(2)
		for _, id := range []string{"", "r"} {
			req := ask(15)
			req.RequestID = id
			d, err := b.Check(t.Context(), "t", req)
			if !c.passes {
				if _, ok := errors.AsType[*ratelimit.CostError](err); !ok {
					t.Errorf("%s: got %+v, %v", c.stage, d, err)
				}
				continue
			}
			if err != nil || !d.Allowed || d.Limiting != "tight" || d.RetryAfter != 0 || d.OverBy != c.overBy || remaining(d.Limits) != "98 8" {
				t.Errorf("%s: got %+v, %v", c.stage, d, err)
			}
		}
	}
}
