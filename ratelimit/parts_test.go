package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

func bucketLimit(name string, burst int64, key ...string) ratelimit.Limit {
	return ratelimit.Limit{
		Name: name, Key: key, Algorithm: ratelimit.TokenBucket,
		Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 30 * 24 * time.Hour}, Burst: burst},
	}
}

func partsLimiter(t *testing.T, store ratelimit.Store, opts ratelimit.Options, p ratelimit.Policy) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(store, []ratelimit.Policy{p}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func inMemory() ratelimit.Store { return ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{})) }

func part(cost int64, namesAndValues ...string) ratelimit.Part {
	p := ratelimit.Part{Cost: cost, Descriptors: map[string]string{}}
	for pair := range slices.Chunk(namesAndValues, 2) {
		p.Descriptors[pair[0]] = pair[1]
	}
	return p
}

// A request in two parts: its route, and its user in a tenant. The tenant's limit
// counts for both and is charged once.
func ExampleLimiter_CheckParts() {
	limits := []ratelimit.Limit{bucketLimit("tenant", 10, "tenant"), bucketLimit("user", 2, "tenant", "user"), bucketLimit("route", 5, "tenant", "route")}
	l, err := ratelimit.New(inMemory(), []ratelimit.Policy{{Name: "api", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: limits}}, ratelimit.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, states, err := l.CheckParts(context.Background(), "us", "api", []ratelimit.Part{
			{Descriptors: map[string]string{"tenant": "acme", "user": "ada"}, Cost: 1},
			{Descriptors: map[string]string{"tenant": "acme", "route": "/search"}, Cost: 2},
		})
		fmt.Println(d.Allowed, d.Limiting, err)
		for _, s := range states {
			for _, limit := range s.Limits {
				fmt.Print("  ", limit.Name, " ", limit.Remaining)
			}
		}
		fmt.Println()
	}
	// Output:
	// true  <nil>
	//   tenant 8  user 1  tenant 8  route 3
	// true  <nil>
	//   tenant 6  user 0  tenant 6  route 1
	// false user <nil>
	//   tenant 6  user 0  tenant 6  route 1
}

// A stage lets the same identities pass, however a request is described.
func TestPartsAreRefusedToWhomChecksAre(t *testing.T) {
	p := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Canary, Percent: 50, Limits: []ratelimit.Limit{bucketLimit("user", 1, "user")}}
	whole, parts := partsLimiter(t, inMemory(), ratelimit.Options{}, p), partsLimiter(t, inMemory(), ratelimit.Options{}, p)
	refused := 0
	for i := range 200 {
		user := fmt.Sprint("u", i)
		var a, b ratelimit.Decision
		for range 2 {
			var errA, errB error
			a, errA = whole.Check(t.Context(), "t", ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": user}, Cost: 1})
			b, _, errB = parts.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "user", user)})
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
		}
		if a.Allowed != b.Allowed || a.Limiting != b.Limiting {
			t.Errorf("%s: a check says %t, parts %t", user, a.Allowed, b.Allowed)
		}
		if !a.Allowed {
			refused++
		}
	}
	if refused == 0 || refused == 200 {
		t.Errorf("%d of 200 are refused: that shows nothing", refused)
	}
}

func TestPartsAreCountedAsDecisions(t *testing.T) {
	var told []ratelimit.Decision
	opts := ratelimit.Options{Decided: func(d ratelimit.Decision) { told = append(told, d) }, Fallback: inMemory()}
	p := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{bucketLimit("user", 1, "user")}}
	store := newPatient()
	l := partsLimiter(t, store, opts, p)
	for range 2 {
		if _, _, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "user", "u")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := l.PeekParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "user", "u")}); err != nil {
		t.Fatal(err)
	}
	store.falls(errDown, 0)
	_, states, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "user", "u")})
	if _, ok := errors.AsType[*ratelimit.ClosedError](err); !ok || len(states) != 1 || states[0].Allowed {
		t.Errorf("closed: %+v, %v", states, err)
	}
	if len(told) != 3 || !told[0].Allowed || told[1].Allowed || told[2].Source != ratelimit.SourceFailClosed {
		t.Errorf("told of %+v, want one that passed, one that was refused and one that was closed", told)
	}
}

func TestALocalPostureCountsTheFirstLimitThatIsMet(t *testing.T) {
	p := ratelimit.Policy{
		Name: "p", Posture: ratelimit.Local, Local: ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 1, Per: 30 * 24 * time.Hour}, Burst: 2},
		Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{bucketLimit("user", 9, "user"), bucketLimit("route", 9, "route")},
	}
	store := newPatient()
	store.falls(errDown, 0)
	l := partsLimiter(t, store, ratelimit.Options{Fallback: inMemory()}, p)
	for i, want := range []bool{true, true, false} {
		d, states, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "route", "/a"), part(1, "unlimited", "x")})
		if err != nil || d.Allowed != want || d.Source != ratelimit.SourceLocal || len(states) != 2 || states[0].Allowed != want {
			t.Errorf("call %d: %+v, %+v, %v", i, d, states, err)
		}
	}
	if d, _, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(5, "route", "/b")}); err != nil || !d.Allowed {
		t.Errorf("a cost above the local burst takes it all: %+v, %v", d, err)
	}
}

func TestPartsRefuseValues(t *testing.T) {
	slots := ratelimit.Limit{Name: "slots", Key: []string{"upload"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 2, SlotTTL: time.Hour}}
	p := ratelimit.Policy{Name: "p", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Limits: []ratelimit.Limit{bucketLimit("user", 9, "user"), slots}}
	l := partsLimiter(t, inMemory(), ratelimit.Options{}, p)
	at := func(p ratelimit.Part, count int64, per time.Duration) ratelimit.Part {
		p.Rate = &ratelimit.Rate{Count: count, Per: per}
		return p
	}
	for why, parts := range map[string][]ratelimit.Part{
		"none":                       nil,
		"too many":                   slices.Repeat([]ratelimit.Part{part(1, "user", "u")}, ratelimit.MaxParts+1),
		"without a limit":            {part(1, "other", "u")},
		"a cost of nothing":          {part(0, "user", "u")},
		"no id":                      {part(1, "user", "")},
		"a rate that is not exact":   {at(part(1, "user", "u"), 5, 3*time.Nanosecond)},
		"a rate too fast":            {at(part(1, "user", "u"), 2_000_000_000, time.Second)},
		"a rate for slots":           {at(part(1, "upload", "u"), 5, time.Second)},
		"a rate for part of the key": {at(part(1, "user", "u", "more", "x"), 5, time.Second)},
	} {
		_, _, err := l.CheckParts(t.Context(), "t", "p", parts)
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field == "" {
			t.Errorf("%s: %v", why, err)
		}
		if _, err := l.RefundParts(t.Context(), "t", "p", parts); err == nil {
			t.Errorf("%s: a refund is taken", why)
		}
	}
	if _, _, err := l.CheckParts(t.Context(), "t", "other", []ratelimit.Part{part(1, "user", "u")}); !errors.Is(err, ratelimit.ErrUnknownPolicy) {
		t.Errorf("an unknown policy: %v", err)
	}
	_, _, err := l.CheckParts(t.Context(), "t", "p", []ratelimit.Part{part(1, "upload", "x"), part(10, "user", "u")})
	if e, ok := errors.AsType[*ratelimit.CostError](err); !ok || e.LimitName != "user" || e.Capacity != 9 || e.Uncounted {
		t.Errorf("a cost that never passes: %v", err)
	}
}

// While the store fails, every identity that the parts name under the first limit
// counts, and a limit with slots is no token bucket.
func TestALocalPostureCountsEveryPart(t *testing.T) {
	slots := ratelimit.Limit{Name: "jobs", Key: []string{"tenant"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 3, SlotTTL: 5 * time.Minute}}
	rate := ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 4}
	for _, c := range []struct {
		why            string
		local          ratelimit.LocalRate
		victim, others int // so many of 30 pass, of a pair of users with the victim in it, and of a tenant alone
		source         ratelimit.Source
	}{
		{"the limit's own numbers", ratelimit.LocalRate{}, 10, 30, ratelimit.SourceFailOpen},
		{"a local rate", rate, 4, 4, ratelimit.SourceLocal},
	} {
		p := policy(bucketLimit("user", 10, "tenant", "user"), slots)
		p.Local = c.local
		store := newPatient()
		store.falls(errDown, 0)
		limits := partsLimiter(t, store, ratelimit.Options{Fallback: inMemory()}, p)
		check := func(parts ...ratelimit.Part) ratelimit.Decision {
			d, states, err := limits.CheckParts(t.Context(), "t", "p", parts)
			if err != nil || states[0].Allowed != d.Allowed {
				t.Errorf("%s: got %+v, %v, %v", c.why, d, states, err)
			}
			return d
		}
		victim, others := 0, 0
		for i := range 30 {
			if check(part(1, "tenant", "a", "user", fmt.Sprint(i)), part(1, "tenant", "a", "user", "victim")).Allowed {
				victim++
			}
			d := check(part(1, "tenant", "a"))
			if d.Source != c.source {
				t.Errorf("%s: a tenant alone: got %+v", c.why, d)
			}
			if d.Allowed {
				others++
			}
		}
		if victim != c.victim || others != c.others {
			t.Errorf("%s: %d and %d passed, want %d and %d", c.why, victim, others, c.victim, c.others)
		}
	}
}
