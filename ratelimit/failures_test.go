package ratelimit_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func TestR1FirstChargeTakesItselfOnly(t *testing.T) {
	b := newBench(t, policy(limit("l", 10, time.Second, 10)))
	b.want("10 - 1", b.check(1), true, 9)
}

func TestR2R49CostAboveCapacityNeverWaits(t *testing.T) {
	b := newBench(t, policy(limit("wide", 10, time.Second, 100), limit("tight", 10, time.Second, 10), limit("middle", 1, time.Second, 50)))
	refused := func(why string) {
		t.Helper()
		_, err := b.Check(t.Context(), "t", ask(51))
		_, peeked := b.Peek(t.Context(), "t", ask(51))
		for _, err := range []error{err, peeked} {
			if e, ok := errors.AsType[*ratelimit.CostError](err); !ok || e.LimitName != "tight" || e.Capacity != 10 {
				t.Errorf("%s: got %v", why, err)
			}
		}
	}
	refused("all full")
	b.want("nothing was charged, the whole capacity passes", b.check(10), true, 90)
	refused("tight empty")
}

func TestR4R11R12UnboundedRatesAreRefused(t *testing.T) {
	for why, l := range map[string]ratelimit.Limit{
		"R4: rate 0":              limit("l", 0, time.Second, 10),
		"negative rate":           limit("l", -1, time.Second, 10),
		"R11: no duration":        limit("l", 10, 0, 10),
		"R11: negative duration":  limit("l", 10, -5*time.Millisecond, 10),
		"R12: both of 64 bits":    limit("l", math.MaxInt64, math.MaxInt64, math.MaxInt64),
		"count of 64 bits":        limit("l", math.MaxInt64, time.Second, 10),
		"burst of 64 bits":        limit("l", 10, time.Second, math.MaxInt64),
		"duration of 64 bits":     limit("l", 10, math.MaxInt64, 10),
		"negative burst":          limit("l", 10, time.Second, -1),
		"the most negative burst": limit("l", 10, time.Second, math.MinInt64),
	} {
		if _, err := ratelimit.New(nil, []ratelimit.Policy{policy(l)}, ratelimit.Options{}); err == nil {
			t.Errorf("%s is accepted", why)
		}
	}
}

func TestR5ThousandMillionASecondIsCounted(t *testing.T) {
	b := newBench(t, policy(limit("l", 1_000_000_000, time.Second, 1000)))
	b.want("one nanosecond each", b.check(1), true, 999)
	b.want("the rest", b.check(999), true, 0)
	b.want("no more within the microsecond", b.check(1), false, 0)
	b.now = b.now.Add(time.Microsecond)
	b.want("1,000 in a microsecond", b.check(1000), true, 0)
}

func TestR7R8NeighbouringNamesAreApart(t *testing.T) {
	one := func(key ...string) ratelimit.Policy { return policy(limit("l", 1, time.Hour, 1, key...)) }
	p, q, r := one("a", "b"), one("a"), one("a", "b")
	q.Name, r.Name = "q", "p-l"
	b := newBench(t, p, q, r)
	for _, c := range []struct {
		tenant, policy string
		descriptors    map[string]string
	}{
		{"t", "p", map[string]string{"a": "a_b", "b": "c"}},
		{"t", "p", map[string]string{"a": "a", "b": "b_c"}},
		{"t", "p", map[string]string{"a": "b", "b": "c_d"}},
		{"t", "q", map[string]string{"a": "b_c_d"}},
		{"t", "q", map[string]string{"a": "b1:b1:c"}},
		{"t", "p", map[string]string{"a": "b", "b": "c"}},
		{"t", "p-l", map[string]string{"a": "b", "b": "c"}},
		{"t1:p", "p", map[string]string{"a": "b", "b": "c"}},
		{"t2", "p", map[string]string{"a": "b", "b": "c"}},
	} {
		req := ratelimit.Request{Policy: c.policy, Descriptors: c.descriptors, Cost: 1}
		for i, want := range []bool{true, false} {
			d, err := b.Check(t.Context(), c.tenant, req)
			if err != nil || d.Allowed != want {
				t.Errorf("%+v, check %d: got %t, %v", c, i+1, d.Allowed, err)
			}
		}
	}
}

func TestR10NegativeCostIsRefused(t *testing.T) {
	b := newBench(t, policy(limit("l", 10, time.Second, 10)))
	if _, err := b.Check(t.Context(), "t", ask(-5)); err == nil {
		t.Error("a cost of -5 is accepted")
	}
	b.want("never above the capacity", b.check(1), true, 9)
}

func TestR22SecondLimitFullChargesNone(t *testing.T) {
	b := newBench(t, policy(limit("first", 1, time.Hour, 10), limit("second", 1, time.Hour, 1)))
	b.want("both", b.check(1), true, 9)
	for range 3 {
		d := b.check(1)
		b.want("the first stays as it was", d, false, 9)
		if d.Limiting != "second" || d.RetryAfter != time.Hour {
			t.Errorf("got %+v", d)
		}
	}
}

func TestR29RefusalDoesNotDrain(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 10)))
	b.want("use 8", b.check(8), true, 2)
	b.want("5 are too many", b.check(5), false, 2)
	b.want("1 is not", b.check(1), true, 1)
}

func TestR34R35R37ClockStepsBack(t *testing.T) {
	for _, back := range []time.Duration{time.Millisecond, 11 * time.Second, time.Hour} {
		b := newBench(t, policy(limit("l", 1, time.Second, 10)))
		b.check(6)
		b.now = b.now.Add(-back)
		if _, err := b.store.Sweep(t.Context(), b.now, 10); err != nil {
			t.Fatal(err)
		}
		b.want("no time has passed, and the bucket is kept", b.check(1), true, 3)
		b.want("nor since", b.check(3), true, 0)
		d := b.check(1)
		b.want("not below zero", d, false, 0)
		// The bucket waits for the clock, unless that is further back than its window.
		want := time.Second
		if back < 10*time.Second {
			want += back
		}
		if d.RetryAfter != want {
			t.Errorf("%v back: retry after %v, want %v", back, d.RetryAfter, want)
		}
		b.now = b.now.Add(d.RetryAfter)
		b.want("as promised", b.check(1), true, 0)
	}
}

func TestR38NoUnitIsLostBetweenTicks(t *testing.T) {
	b := newBench(t, policy(limit("l", 65_535, time.Second, 65_535)))
	for range 3 {
		b.want("all", b.check(65_535), true, 0)
		b.now = b.now.Add(time.Second)
	}
	b.want("full every second", b.check(1), true, 65_534)
}

func TestR39R40StateLivesUntilFull(t *testing.T) {
	for _, c := range []struct {
		limit ratelimit.Limit
		full  time.Duration
	}{
		{limit("l", 3, time.Second, 1), 334 * time.Millisecond},
		{limit("l", 1, 15*time.Second, 1), 15 * time.Second},
		{limit("l", 1_000_000_000, time.Second, 1), time.Millisecond},
	} {
		b := newBench(t, policy(c.limit))
		b.check(1)
		early, err := b.store.Sweep(t.Context(), b.now.Add(c.full-time.Nanosecond), 10)
		if err != nil {
			t.Fatal(err)
		}
		b.want("enforced", b.check(1), false, 0)
		late, err := b.store.Sweep(t.Context(), b.now.Add(c.full), 10)
		if err != nil || early != 0 || late != 1 {
			t.Errorf("%v: removed %d before it is full, %d then, %v", c.limit.Rate, early, late, err)
		}
	}
}

func TestR50WaitIsRoundedUp(t *testing.T) {
	for _, c := range []struct {
		count int64
		wait  time.Duration
	}{
		{5, 200 * time.Millisecond},
		{3, 334 * time.Millisecond},
		{1_000_000_000, time.Millisecond},
	} {
		b := newBench(t, policy(limit("l", c.count, time.Second, 1)))
		b.check(1)
		if d := b.check(1); d.Allowed || d.RetryAfter != c.wait {
			t.Errorf("%d a second: got %+v, want a wait of %v", c.count, d, c.wait)
		}
	}
}

func TestR52RetryRightAtReset(t *testing.T) {
	b := newBench(t, policy(limit("l", 3, time.Second, 2)))
	for range 10 {
		d := b.check(2)
		b.want("full at reset", d, true, 0)
		b.now = b.now.Add(d.Limits[0].Reset)
		p, err := b.Peek(t.Context(), "t", ask(1))
		if err != nil || p.Limits[0].Reset != 0 || p.Limits[0].Remaining != 2 {
			t.Errorf("at reset: %+v, %v", p, err)
		}
	}
}

// As the documentation of TokenBucket says: burst + rate·t.
func TestR58BurstAndRefillAddUp(t *testing.T) {
	b := newBench(t, policy(limit("l", 17, 30*time.Second, 17)))
	passed := 0
	for range 30_001 { // the interval's both ends count
		if b.check(1).Allowed {
			passed++
			for b.check(1).Allowed {
				passed++
			}
		}
		b.now = b.now.Add(time.Millisecond)
	}
	if passed != 34 {
		t.Errorf("%d passed within 30 s, want 17 + 17", passed)
	}
}

func TestR60OddAndHugeDescriptors(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 1)))
	for value, good := range map[string]bool{
		"a b":                        true,
		"a:b":                        true,
		"ключ":                       true,
		strings.Repeat("v", 256):     true,
		"a\x00b":                     false,
		"a\nb":                       false,
		strings.Repeat("v", 257):     false,
		strings.Repeat("v", 2*1<<20): false,
	} {
		req := ask(1)
		req.Descriptors["user"] = value
		d, err := b.Check(t.Context(), "t", req)
		if good && (err != nil || !d.Allowed) {
			t.Errorf("%q: got %+v, %v", value, d, err)
		}
		if e, ok := errors.AsType[*keytype.ValueError](err); !good && (!ok || e.Field != "descriptors" || len(e.Reason) > 200) {
			t.Errorf("%.10q: got %v", value, err)
		}
	}
}

func TestR61MissingIdentityIsRefused(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 1), limit("m", 1, time.Hour, 1, "user", "device")))
	for _, descriptors := range []map[string]string{nil, {}, {"device": "d"}, {"user": "u"}, {"user": "", "device": "d"}} {
		_, err := b.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: descriptors, Cost: 1})
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != "descriptors" {
			t.Errorf("%v: got %v", descriptors, err)
		}
	}
	_, err := b.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": "u"}, Cost: 1})
	if want := `descriptors lack "device", which limit m needs`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	b.want("nothing was charged meanwhile", mustCheck(b, map[string]string{"user": "u", "device": "d"}), true, 0)
}

func mustCheck(b *bench, descriptors map[string]string) ratelimit.Decision {
	b.t.Helper()
	d, err := b.Check(b.t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: descriptors, Cost: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}
