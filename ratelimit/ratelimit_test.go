package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A bench is a limiter over a memory store, with a clock that the test moves.
type bench struct {
	*ratelimit.Limiter
	t     *testing.T
	store *kv.Memory
	now   time.Time
}

func newBench(t *testing.T, policies ...ratelimit.Policy) *bench {
	b := &bench{t: t, store: openMemory(t), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	var err error
	b.Limiter, err = ratelimit.New(ratelimit.NewLocal(b.store), policies, ratelimit.Options{Now: func() time.Time { return b.now }})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// check asks the policy p for cost units for user u.
func (b *bench) check(cost int64) ratelimit.Decision {
	b.t.Helper()
	d, err := b.Check(b.t.Context(), "t", ask(cost))
	if err != nil {
		b.t.Fatalf("check of %d: %v", cost, err)
	}
	return d
}

// want compares the decision with whether it allows and what the first limit has left.
func (b *bench) want(why string, d ratelimit.Decision, allowed bool, remaining int64) {
	b.t.Helper()
	if d.Allowed != allowed || d.Limits[0].Remaining != remaining {
		b.t.Errorf("%s: got allowed %t, remaining %d; want %t, %d", why, d.Allowed, d.Limits[0].Remaining, allowed, remaining)
	}
}

func ask(cost int64) ratelimit.Request {
	return ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": "u"}, Cost: cost}
}

func policy(limits ...ratelimit.Limit) ratelimit.Policy {
	return ratelimit.Policy{Name: "p", Posture: ratelimit.Local, Stage: ratelimit.Enforce, Limits: limits}
}

func limit(name string, count int64, per time.Duration, burst int64, key ...string) ratelimit.Limit {
	if key == nil {
		key = []string{"user"}
	}
	return ratelimit.Limit{Name: name, Key: key, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: count, Per: per}, Burst: burst}}
}

func TestDecision(t *testing.T) {
	b := newBench(t, policy(limit("fast", 10, time.Second, 20), limit("slow", 3, time.Second, 5), limit("middle", 4, time.Second, 6)))
	b.check(5)
	got := b.check(5)
	if !slices.Equal(got.Limits, []ratelimit.LimitState{
		{Name: "fast", Algorithm: "token_bucket", Limit: 20, Remaining: 15, Reset: 500 * time.Millisecond, Window: 2 * time.Second},
		{Name: "slow", Algorithm: "token_bucket", Limit: 5, Remaining: 0, Reset: 1667 * time.Millisecond, Window: 1667 * time.Millisecond},
		{Name: "middle", Algorithm: "token_bucket", Limit: 6, Remaining: 1, Reset: 1250 * time.Millisecond, Window: 1500 * time.Millisecond},
	}) {
		t.Errorf("limits: %+v", got.Limits)
	}
	got.Limits = nil
	if want := (ratelimit.Decision{Policy: "p", Stage: "enforce", Limiting: "slow", RetryAfter: 1667 * time.Millisecond, Source: ratelimit.Memory}); !equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	b.now = b.now.Add(got.RetryAfter - time.Millisecond)
	if b.check(5).Allowed {
		t.Error("passes a millisecond before it said")
	}
	b.now = b.now.Add(time.Millisecond)
	if d := b.check(5); !d.Allowed || d.Limiting != "" || d.RetryAfter != 0 {
		t.Errorf("after exactly the wait: %+v", d)
	}
}

func equal(a, b ratelimit.Decision) bool {
	return a.Allowed == b.Allowed && a.Policy == b.Policy && a.Stage == b.Stage && a.Limiting == b.Limiting &&
		a.RetryAfter == b.RetryAfter && a.Source == b.Source && slices.Equal(a.Limits, b.Limits)
}

func TestPeek(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2)))
	for range 3 {
		d, err := b.Peek(t.Context(), "t", ask(2))
		if err != nil {
			t.Fatal(err)
		}
		b.want("nothing was taken", d, true, 2)
	}
	b.check(1)
	d, err := b.Peek(t.Context(), "t", ask(2))
	if err != nil {
		t.Fatal(err)
	}
	b.want("one too few", d, false, 1)
	if d.RetryAfter != time.Second || d.Limiting != "l" {
		t.Errorf("got %+v", d)
	}
}

// The default clock follows time, and not a wall clock that somebody sets.
func TestDefaultClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.New(ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{})), []ratelimit.Policy{policy(limit("l", 1, time.Minute, 1))}, ratelimit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []struct {
			why     string
			pause   time.Duration
			allowed bool
		}{
			{"full", 0, true},
			{"too soon", time.Minute - time.Microsecond, false},
			{"one a minute", time.Microsecond, true},
		} {
			time.Sleep(s.pause)
			if d, err := l.Check(t.Context(), "t", ask(1)); err != nil || d.Allowed != s.allowed {
				t.Errorf("%s: %+v, %v", s.why, d, err)
			}
		}
	})
}

func TestClockBefore1970(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2)))
	b.now = time.Time{}
	b.want("one", b.check(1), true, 1)
	b.want("two", b.check(1), true, 0)
}

// A bad request says what is wrong and takes nothing from anybody.
func TestBadRequests(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2)))
	many := map[string]string{"user": "u"}
	for i := range ratelimit.MaxDescriptors {
		many[strings.Repeat("x", i+1)] = "v"
	}
	with := func(name, value string) map[string]string { return map[string]string{"user": "u", name: value} }
	for _, c := range []struct {
		why         string
		tenant      string
		policy      string
		descriptors map[string]string
		cost        int64
		field       string
	}{
		{"no tenant", "", "p", with("a", "b"), 1, "tenant"},
		{"no policy", "t", "", with("a", "b"), 1, "policy"},
		{"no cost", "t", "p", with("a", "b"), 0, "cost"},
		{"negative cost", "t", "p", with("a", "b"), -5, "cost"},
		{"cost beyond all", "t", "p", with("a", "b"), ratelimit.MaxCost + 1, "cost"},
		{"cost of 64 bits", "t", "p", with("a", "b"), math.MaxInt64, "cost"},
		{"empty name", "t", "p", with("", "b"), 1, "descriptors"},
		{"empty value", "t", "p", with("a", ""), 1, "descriptors"},
		{"a dot", "t", "p", with("a", "."), 1, "descriptors"},
		{"invalid UTF-8", "t", "p", with("a", "\xff"), 1, "descriptors"},
		{"long name", "t", "p", with(strings.Repeat("a", 257), "b"), 1, "descriptors"},
		{"too many", "t", "p", many, 1, "descriptors"},
	} {
		_, err := b.Check(t.Context(), c.tenant, ratelimit.Request{Policy: c.policy, Descriptors: c.descriptors, Cost: c.cost})
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != c.field {
			t.Errorf("%s: got %v, want a ValueError of %s", c.why, err, c.field)
		}
	}
	if _, err := b.Check(t.Context(), "t", ratelimit.Request{Policy: "q", Cost: 1}); !errors.Is(err, ratelimit.ErrUnknownPolicy) {
		t.Errorf("unknown policy: %v", err)
	}
	b.want("untouched", b.check(1), true, 1)
}

func TestManyDescriptorsAreIgnored(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2)))
	req := ask(1)
	for i := range ratelimit.MaxDescriptors - 1 {
		req.Descriptors[strings.Repeat("x", i+1)] = "v"
	}
	if _, err := b.Check(t.Context(), "t", req); err != nil {
		t.Fatal(err)
	}
	b.want("the same bucket", b.check(1), true, 0)
}

// The longest request that is allowed makes a key that the store takes.
func TestLongestKey(t *testing.T) {
	long := func(i int) string { return strings.Repeat("k", 255) + string(rune('a'+i)) }
	var key []string
	descriptors := map[string]string{}
	for i := range 16 {
		key = append(key, long(i))
		descriptors[long(i)] = strings.Repeat("v", 256)
	}
	p := policy(limit(strings.Repeat("l", 256), 1, time.Second, 1, key...))
	p.Name = strings.Repeat("p", 256)
	b := newBench(t, p)
	if _, err := b.Check(t.Context(), strings.Repeat("t", 256), ratelimit.Request{Policy: p.Name, Descriptors: descriptors, Cost: 1}); err != nil {
		t.Fatal(err)
	}
}

func TestRace(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Hour, 100)))
	var wg sync.WaitGroup
	var allowed atomic.Int64
	for range 250 {
		wg.Go(func() {
			if d, err := b.Check(t.Context(), "t", ask(1)); err != nil {
				t.Error(err)
			} else if d.Allowed {
				allowed.Add(1)
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 100 {
		t.Errorf("%d passed, want exactly 100", n)
	}
}

// A stored state of a later version is a fault, not a fresh burst, and stays as it is.
func TestUnknownState(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2), limit("m", 1, time.Second, 2)))
	kind := keytype.RateBucket.Bucket()
	key := keytype.RateBucket.Key("t", "p", "m", "debt", "4:user1:u")
	put := func(value string) {
		if err := b.store.Update(t.Context(), func(tx kv.Tx) error {
			tx.Put(kind, key, []byte(value), time.Time{})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put("2:whatever")
	if _, err := b.Check(t.Context(), "t", ask(1)); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	put("1:0:0:0:1:1000000")
	b.want("the other limit was not charged", b.check(2), true, 0)
}

func TestStoreFaults(t *testing.T) {
	b := newBench(t, policy(limit("l", 1, time.Second, 2)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Check(ctx, "t", ask(1)); !errors.Is(err, context.Canceled) || errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("ended context: %v", err)
	}
	_ = b.store.Close()
	for name, call := range map[string]func(context.Context, string, ratelimit.Request) (ratelimit.Decision, error){"check": b.Check, "peek": b.Peek} {
		if _, err := call(t.Context(), "t", ask(1)); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s on a closed store: %v", name, err)
		}
	}
}

// The state expires when it means nothing any more, rounded up to milliseconds.
func TestStateExpires(t *testing.T) {
	b := newBench(t, policy(limit("l", 3, time.Second, 4)))
	b.check(1) // full again after 333,333⅓ µs
	for _, s := range []struct {
		why     string
		after   time.Duration
		removed int
	}{
		{"a third of a second is longer", 333 * time.Millisecond, 0},
		{"full", 334 * time.Millisecond, 1},
	} {
		if n, err := b.store.Sweep(t.Context(), b.now.Add(s.after), 10); err != nil || n != s.removed {
			t.Errorf("%s: removed %d, %v", s.why, n, err)
		}
	}
}
