package ratelimit_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func numbered(name string, a ratelimit.Algorithm, n ratelimit.Numbers, key ...string) ratelimit.Limit {
	l := limit(name, 0, 0, 0, key...)
	l.Algorithm, l.Numbers = a, n
	return l
}

func perSecond(n int64) ratelimit.Numbers {
	return ratelimit.Numbers{Rate: ratelimit.Rate{Count: n, Per: time.Second}}
}

func slots(n int64) ratelimit.Numbers { return ratelimit.Numbers{Slots: n, SlotTTL: time.Minute} }

// One of each algorithm, the tightest of them with 5.
func ofEach() ratelimit.Policy {
	return policy(
		limit("bucket", 10, time.Second, 10),
		numbered("gcra", ratelimit.GCRA, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 10, Per: time.Second}, Burst: 10}),
		numbered("fixed", ratelimit.FixedWindow, perSecond(10)),
		numbered("counter", ratelimit.SlidingWindowCounter, perSecond(10)),
		numbered("log", ratelimit.SlidingWindowLog, perSecond(10)),
		numbered("leaky", ratelimit.LeakyBucket, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 10, Per: time.Second}, Queue: 10}),
		numbered("slots", ratelimit.Concurrency, slots(5)),
	)
}

func remaining(states []ratelimit.LimitState) string {
	var all []string
	for _, l := range states {
		all = append(all, strconv.FormatInt(l.Remaining, 10))
	}
	return strings.Join(all, " ")
}

func TestEveryAlgorithmThroughTheLimiter(t *testing.T) {
	b := newBench(t, ofEach())
	d := b.check(3)
	if got, want := remaining(d.Limits), "7 7 7 7 7 7 2"; got != want || !d.Allowed || !strings.HasPrefix(d.SlotID, "slt_") || d.Delay != 0 {
		t.Fatalf("got %+v, want %s left", d, want)
	}
	second := b.check(2)
	if second.Delay != 300*time.Millisecond || second.SlotID == d.SlotID {
		t.Errorf("got %+v", second)
	}
	refused := b.check(1)
	if refused.Allowed || refused.Limiting != "slots" || refused.RetryAfter != time.Minute || refused.SlotID != "" || refused.Delay != 0 {
		t.Errorf("got %+v", refused)
	}
	back, err := b.Refund(t.Context(), "t", ask(4))
	if err != nil || remaining(back) != "9 9 9 9 9 9 0" {
		t.Errorf("a refund leaves slots alone: %s, %v", remaining(back), err)
	}
	if back[0].Reset != 100*time.Millisecond || back[6].Limit != 5 || back[6].Window != time.Minute || back[2].Window != time.Second {
		t.Errorf("got %+v", back)
	}
	for range 2 {
		if err := b.Release(t.Context(), "t", "p", ask(1).Descriptors, d.SlotID); err != nil {
			t.Fatal(err)
		}
	}
	b.want("a release leaves the others alone", b.check(3), true, 6)
	if err := b.Reset(t.Context(), "t", "p", ask(1).Descriptors); err != nil {
		t.Fatal(err)
	}
	if got := remaining(b.check(5).Limits); got != "5 5 5 5 5 5 0" {
		t.Errorf("after a reset: %s", got)
	}
}

func TestRequestIDs(t *testing.T) {
	second := policy(limit("l", 1, time.Hour, 10))
	second.Name = "p2"
	b := newBench(t, policy(limit("l", 1, time.Hour, 10)), second)
	with := func(id, user string) ratelimit.Request {
		req := ask(4)
		req.RequestID, req.Descriptors["user"] = id, user
		return req
	}
	for _, s := range []struct {
		why  string
		req  ratelimit.Request
		left int64
	}{
		{"the first", with("q", "u"), 6},
		{"again", with("q", "u"), 6},
		{"another id", with("r", "u"), 2},
		{"another user", with("s", "v"), 6},
		{"the first once more", with("q", "u"), 2},
	} {
		d, err := b.Check(t.Context(), "t", s.req)
		if err != nil {
			t.Fatal(err)
		}
		b.want(s.why, d, true, s.left)
	}
	if _, err := b.Check(t.Context(), "t2", with("q", "u")); err != nil {
		t.Fatal(err)
	}
	other := with("q", "u")
	other.Cost++
	elsewhere := with("q", "u")
	elsewhere.Policy = "p2"
	more := with("q", "u")
	more.Descriptors["region"] = "eu"
	for why, req := range map[string]ratelimit.Request{"another cost": other, "another policy": elsewhere, "other descriptors": with("q", "v"), "more descriptors": more} {
		if _, err := b.Check(t.Context(), "t", req); !errors.Is(err, ratelimit.ErrMismatch) {
			t.Errorf("the id with %s: got %v", why, err)
		}
		if _, err := b.Peek(t.Context(), "t", req); err != nil {
			t.Errorf("a peek with %s: got %v", why, err)
		}
	}
	for range 2 { // a refund's ids are its own
		if back, err := b.Refund(t.Context(), "t", with("q", "u")); err != nil || back[0].Remaining != 6 {
			t.Errorf("got %+v, %v", back, err)
		}
	}
	if _, err := b.Refund(t.Context(), "t", other); !errors.Is(err, ratelimit.ErrMismatch) {
		t.Errorf("a refund's id with another cost: got %v", err)
	}
	if _, err := b.Check(t.Context(), "t", with(strings.Repeat("q", 257), "u")); err == nil {
		t.Error("a long request id is accepted")
	}
}

func TestBadGives(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 10)))
	descriptors := ask(1).Descriptors
	_, none := b.Refund(t.Context(), "t", ask(0))
	_, missing := b.Refund(t.Context(), "t", ratelimit.Request{Policy: "p", Cost: 1})
	for field, err := range map[string]error{
		"cost": none, "descriptors": missing,
		"slot_id": b.Release(t.Context(), "t", "p", descriptors, ""),
		"tenant":  b.Reset(t.Context(), "", "p", descriptors),
	} {
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for _, id := range []string{"a:b", strings.Repeat("s", 65)} {
		if _, ok := errors.AsType[*keytype.ValueError](b.Release(t.Context(), "t", "p", descriptors, id)); !ok {
			t.Errorf("slot %q is accepted", id)
		}
	}
	if err := b.Release(t.Context(), "t", "p", descriptors, "slt_A"); !errors.Is(err, ratelimit.ErrNoSlots) {
		t.Errorf("got %v", err)
	}
	for _, err := range []error{b.Release(t.Context(), "t", "q", descriptors, "slt_A"), b.Reset(t.Context(), "t", "q", descriptors)} {
		if !errors.Is(err, ratelimit.ErrUnknownPolicy) {
			t.Errorf("got %v", err)
		}
	}
	b.want("nothing happened", b.check(1), true, 9)
	_ = b.store.Close()
	_, refund := b.Refund(t.Context(), "t", ask(1))
	for _, err := range []error{refund, b.Reset(t.Context(), "t", "p", descriptors)} {
		if !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("on a closed store: %v", err)
		}
	}
}

func TestOverrides(t *testing.T) {
	l := limit("l", 1, time.Hour, 10, "user", "region")
	l.Overrides = []ratelimit.Override{
		{Match: map[string]string{"user": "big-*"}, Numbers: ratelimit.Numbers{Burst: 20}},
		{Match: map[string]string{"user": "*"}, Numbers: ratelimit.Numbers{Burst: 15}},
		{Match: map[string]string{"user": "big-s*"}, Numbers: ratelimit.Numbers{Burst: 30}},
		{Match: map[string]string{"user": "big-shop"}, Numbers: ratelimit.Numbers{Burst: 40}},
		{Match: map[string]string{"user": "big-shop", "region": "e*"}, Numbers: ratelimit.Numbers{Burst: 50}},
		{Match: map[string]string{"user": "b*", "region": "eu"}, Numbers: ratelimit.Numbers{Burst: 60}},
	}
	b := newBench(t, policy(l))
	for _, c := range []struct {
		user, region string
		burst        int64
	}{
		{"ann", "us", 15},
		{"big-tower", "us", 20},
		{"big-ship", "us", 30},
		{"big-shop", "us", 40},
		{"big-shop2", "us", 30},
		{"big-shop", "eu", 50},
		{"big-ship", "eu", 60},
		{"bob", "eu", 60},
	} {
		req := ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": c.user, "region": c.region}, Cost: c.burst}
		d, err := b.Check(t.Context(), "t", req)
		if err != nil || !d.Allowed || d.Limits[0].Limit != c.burst {
			t.Errorf("%+v: got %+v, %v", c, d, err)
		}
		req.Cost++
		if e, ok := func() (*ratelimit.CostError, bool) {
			_, err := b.Check(t.Context(), "t", req)
			return errors.AsType[*ratelimit.CostError](err)
		}(); !ok || e.Capacity != c.burst {
			t.Errorf("%+v: the capacity is not the override's", c)
		}
	}
}

func TestR25ShadowDoesNotHideWhatIsEnforced(t *testing.T) {
	shadow, enforced := policy(limit("l", 1, time.Hour, 1)), policy(limit("l", 1, time.Hour, 2))
	shadow.Stage, enforced.Name = ratelimit.Shadow, "q"
	b := newBench(t, shadow, enforced)
	b.want("one", b.check(1), true, 0)
	d := b.check(1)
	b.want("over, and it passes", d, true, 0)
	if d.Limiting != "l" || d.RetryAfter != 0 || d.Stage != ratelimit.Shadow || d.OverBy != 0 {
		t.Errorf("got %+v", d)
	}
	req := ask(1)
	req.Policy = "q"
	for i, want := range []bool{true, true, false} {
		if d, err := b.Check(t.Context(), "t", req); err != nil || d.Allowed != want {
			t.Errorf("check %d: %+v, %v", i, d, err)
		}
	}
}

func TestWarn(t *testing.T) {
	p := policy(limit("l", 1, time.Hour, 8))
	p.Stage, p.EnforceFrom = ratelimit.Warn, time.Date(2027, 1, 15, 0, 0, 0, 0, time.UTC)
	b := newBench(t, p)
	if d := b.check(7); d.OverBy != 0 || !d.EnforceFrom.IsZero() {
		t.Errorf("within the limit: %+v", d)
	}
	d := b.check(3)
	b.want("over", d, true, 1)
	if d.OverBy != 25 || !d.EnforceFrom.Equal(p.EnforceFrom) || d.Limiting != "l" {
		t.Errorf("got %+v", d)
	}
}

// 5 % of 100,000 identities are refused, the same ones by another limiter, and
// other ones by another policy.
func TestCanaryShare(t *testing.T) {
	p, q := policy(limit("l", 1, time.Hour, 1)), policy(limit("l", 1, time.Hour, 1))
	p.Stage, p.Percent, q.Stage, q.Percent, q.Name = ratelimit.Canary, 5, ratelimit.Canary, 5, "q"
	const identities = 20_000
	chosen := func(name string) map[int]bool {
		b, set := newBench(t, p, q), map[int]bool{}
		for i := range identities {
			req := ratelimit.Request{Policy: name, Descriptors: map[string]string{"user": strconv.Itoa(i)}, Cost: 1}
			for range 2 {
				d, err := b.Check(t.Context(), "t", req)
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					set[i] = true
				}
			}
		}
		return set
	}
	first, again, other := chosen("p"), chosen("p"), chosen("q")
	if fmt.Sprint(first) != fmt.Sprint(again) {
		t.Error("other identities after a restart")
	}
	share := 100 * float64(len(first)) / identities
	t.Logf("%.2f %%", share)
	if math.Abs(share-5) > 0.5 {
		t.Errorf("%.2f %% are refused, want 5", share)
	}
	both := 0
	for i := range first {
		if other[i] {
			both++
		}
	}
	if both > len(first)/5 {
		t.Errorf("%d of %d are also those of another policy", both, len(first))
	}
}

func TestR16AnotherAlgorithm(t *testing.T) {
	one := limit("l", 10, time.Second, 10)
	b := newBench(t, policy(one))
	b.check(8)
	change := func(a ratelimit.Algorithm, n ratelimit.Numbers) *bench {
		l := *b
		l.Limiter = mustLimiter(t, b, policy(numbered("l", a, n)))
		return &l
	}
	b.want("a bucket by another name keeps what is used",
		change(ratelimit.GCRA, one.Numbers).check(1), true, 1)
	b.want("a leaky bucket too",
		change(ratelimit.LeakyBucket, ratelimit.Numbers{Rate: one.Rate, Queue: 10}).check(1), true, 0)
	fixed := change(ratelimit.FixedWindow, perSecond(10))
	fixed.want("what is counted otherwise begins anew, as docs/algorithms.md says", fixed.check(4), true, 6)
	b.want("and the one does not disturb the other", b.check(1), false, 0)
	counter := change(ratelimit.SlidingWindowCounter, perSecond(10))
	counter.want("windows are windows", counter.check(1), true, 5)
}

func mustLimiter(t *testing.T, b *bench, p ratelimit.Policy) *ratelimit.Limiter {
	l, err := ratelimit.New(ratelimit.NewLocal(b.store), []ratelimit.Policy{p}, ratelimit.Options{Now: func() time.Time { return b.now }})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestR23R56RaisedLimitCountsAtOnce(t *testing.T) {
	for _, c := range []struct {
		algorithm ratelimit.Algorithm
		low, high ratelimit.Numbers
	}{
		{ratelimit.TokenBucket, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 2}, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 5}},
		{ratelimit.GCRA, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 2}, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 5}},
		{ratelimit.FixedWindow, perSecond(2), perSecond(5)},
		{ratelimit.SlidingWindowCounter, perSecond(2), perSecond(5)},
		{ratelimit.SlidingWindowLog, perSecond(2), perSecond(5)},
		{ratelimit.LeakyBucket, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Queue: 2}, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Queue: 5}},
		{ratelimit.Concurrency, slots(2), slots(5)},
	} {
		p := policy(numbered("l", c.algorithm, c.low))
		p.Posture = ratelimit.FailOpen
		b := newBench(t, p)
		b.want("used up", b.check(2), true, 0)
		b.want("refused", b.check(1), false, 0)
		p.Limits[0].Overrides = []ratelimit.Override{{Match: map[string]string{"user": "u"}, Numbers: c.high}}
		b.Limiter = mustLimiter(t, b, p)
		b.want(string(c.algorithm)+": what was used stays used, and no more", b.check(3), true, 0)
		p.Limits[0].Overrides = nil
		b.Limiter = mustLimiter(t, b, p)
		b.want(string(c.algorithm)+": lowered, it grants nothing", b.check(1), false, 0)
	}
}

func TestR42R55WindowsDoNotLeak(t *testing.T) {
	b := newBench(t, policy(numbered("l", ratelimit.FixedWindow, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 10, Per: time.Minute}})))
	b.now = b.now.Add(59 * time.Second)
	b.want("the last second", b.check(10), true, 0)
	b.now = b.now.Add(time.Second)
	b.want("the next minute has all", b.check(1), true, 9)
	b.now = b.now.Add(24 * time.Hour)
	b.want("and so has one much later", b.check(1), true, 9)
}

func TestR32TheLastOneIsAllowed(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog} {
		b := newBench(t, policy(numbered("l", a, perSecond(10))))
		for i := range int64(10) {
			b.want(string(a), b.check(1), true, 9-i)
		}
		b.want(string(a), b.check(1), false, 0)
	}
}

func TestR15R17RefundAtNothingLeft(t *testing.T) {
	p := ofEach()
	p.Limits = p.Limits[:6]
	b := newBench(t, p)
	b.check(10)
	b.want("refused", b.check(1), false, 0)
	if back, err := b.Refund(t.Context(), "t", ask(1)); err != nil || remaining(back) != "1 1 1 1 1 1" {
		t.Errorf("got %s, %v", remaining(back), err)
	}
	b.want("the refusal does not stick", b.check(1), true, 0)
}

func TestR19LeakyBucketAfterIdle(t *testing.T) {
	b := newBench(t, policy(numbered("l", ratelimit.LeakyBucket, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Queue: 5})))
	d := b.check(1)
	if d.Limits[0].Reset != time.Second {
		t.Errorf("the first answer: %+v", d)
	}
	b.now = b.now.Add(365 * 24 * time.Hour)
	b.want("not more than the queue", b.check(1), true, 4)
}
