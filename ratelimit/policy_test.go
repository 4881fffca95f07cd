package ratelimit_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

func TestDefaultPolicy(t *testing.T) {
	b := newBench(t, ratelimit.DefaultPolicy())
	got, err := b.Policy("default")
	if err != nil {
		t.Fatal(err)
	}
	want := ratelimit.Policy{Name: "default", Posture: "local", Stage: "enforce", Limits: []ratelimit.Limit{
		limit("user", 10, time.Second, 20, "tenant", "user"),
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestPolicies(t *testing.T) {
	named := func(name string) ratelimit.Policy {
		p := policy(limit("l", 1, time.Second, 1))
		p.Name = name
		return p
	}
	source := []ratelimit.Policy{named("b"), named("a")}
	b := newBench(t, source...)
	got := b.Policies()
	if len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
		t.Fatalf("got %+v", got)
	}
	source[1].Limits[0].Key[0] = "changed"
	got[0].Limits[0].Name, got[0].Limits[0].Key[0] = "changed", "changed"
	one, err := b.Policy("a")
	if err != nil || !reflect.DeepEqual(one, named("a")) {
		t.Errorf("the loaded policy is shared with callers: %+v, %v", one, err)
	}
	if _, err := b.Policy("c"); !errors.Is(err, ratelimit.ErrUnknownPolicy) {
		t.Errorf("unknown policy: %v", err)
	}
}

func TestVersion(t *testing.T) {
	one, two := policy(limit("l", 1, time.Second, 1)), ratelimit.DefaultPolicy()
	v := newBench(t, one, two).Version()
	if len(v) != 16 || v != newBench(t, two, one).Version() {
		t.Errorf("version %q depends on the order", v)
	}
	two.Limits[0].Burst++
	if v == newBench(t, one, two).Version() {
		t.Error("another burst has the same version")
	}
}

func TestWrongPolicies(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*ratelimit.Policy)
		says   string
	}{
		{"no name", func(p *ratelimit.Policy) { p.Name = "" }, `policy "": name must be`},
		{"capital in the name", func(p *ratelimit.Policy) { p.Name = "P" }, `policy "P": name must be`},
		{"long name", func(p *ratelimit.Policy) { p.Name = strings.Repeat("p", 257) }, "name must be"},
		{"no posture", func(p *ratelimit.Policy) { p.Posture = "" }, `policy "p": posture "" must be fail_open, fail_closed or local`},
		{"unknown stage", func(p *ratelimit.Policy) { p.Stage = "shadow" }, `policy "p": stage "shadow" must be enforce`},
		{"no limit", func(p *ratelimit.Policy) { p.Limits = nil }, `policy "p": has no limit`},
		{"no limit name", func(p *ratelimit.Policy) { p.Limits[0].Name = "" }, `limit "": name must be`},
		{"two limits of one name", func(p *ratelimit.Policy) { p.Limits = append(p.Limits, p.Limits[0]) }, `policy "p": limit "l": another limit has this name`},
		{"no key", func(p *ratelimit.Policy) { p.Limits[0].Key = nil }, `policy "p": limit "l": key must name 1 to 16 descriptors`},
		{"empty descriptor", func(p *ratelimit.Policy) { p.Limits[0].Key = []string{"a", ""} }, `limit "l": key descriptor is required`},
		{"a descriptor twice", func(p *ratelimit.Policy) { p.Limits[0].Key = []string{"a", "a"} }, `limit "l": key names "a" twice`},
		{"too many descriptors", func(p *ratelimit.Policy) { p.Limits[0].Key = strings.Split("abcdefghijklmnopq", "") }, "key must name 1 to 16"},
		{"no algorithm", func(p *ratelimit.Policy) { p.Limits[0].Algorithm = "" }, `limit "l": algorithm "" must be token_bucket`},
		{"count too large", func(p *ratelimit.Policy) { p.Limits[0].Rate.Count = 1_000_000_001 }, `limit "l": rate count must be from 1 to 1000000000`},
		{"per too short", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = time.Millisecond - time.Microsecond }, `limit "l": rate per 999µs must be from 1 ms to 366 days`},
		{"per too long", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = 366*24*time.Hour + time.Microsecond }, "must be from 1 ms to 366 days"},
		{"per with nanoseconds", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = time.Second + 1 }, "in whole microseconds"},
		{"no burst", func(p *ratelimit.Policy) { p.Limits[0].Burst = 0 }, `limit "l": burst must be from 1 to 1000000000`},
		{"burst too large", func(p *ratelimit.Policy) {
			p.Limits[0].Rate.Per, p.Limits[0].Burst = 366*24*time.Hour, 1_000_000_001
		}, "burst must be from 1 to 1000000000"},
		{"more than a century", func(p *ratelimit.Policy) {
			p.Limits[0].Rate, p.Limits[0].Burst = ratelimit.Rate{Count: 1, Per: 366 * 24 * time.Hour}, 101
		}, "takes more than 36,600 days"},
	} {
		p := policy(limit("l", 1, time.Second, 1))
		c.change(&p)
		_, err := ratelimit.New(nil, []ratelimit.Policy{p}, ratelimit.Options{})
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q and no more", c.why, err, c.says)
		}
	}
}

func TestWrongPoliciesAreAllNamed(t *testing.T) {
	bad := policy(limit("l", 0, 0, 0), limit("l", 1, time.Second, 1, ""))
	_, err := ratelimit.New(nil, []ratelimit.Policy{bad, bad}, ratelimit.Options{})
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 11 { // 5 each, and the name that is taken
		t.Errorf("%d mistakes:\n%v", len(lines), err)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, `ratelimit: policy "p": `) {
			t.Errorf("%q does not name the policy", line)
		}
	}
}

func TestExtremePoliciesAreAccepted(t *testing.T) {
	newBench(t, policy(
		limit("slowest", 1, 366*24*time.Hour, 100),
		limit("fastest", 1_000_000_000, time.Millisecond, 1_000_000_000),
		limit("odd", 999_999_937, 366*24*time.Hour, 1_000_000_000),
		limit("never-the-same", 7, 1001*time.Microsecond, 1),
	))
}
