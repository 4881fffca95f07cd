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
	got, _, err := b.Policy("default")
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
	got, _ := b.Policies()
	if len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
		t.Fatalf("got %+v", got)
	}
	source[1].Limits[0].Key[0] = "changed"
	got[0].Limits[0].Name, got[0].Limits[0].Key[0] = "changed", "changed"
	one, _, err := b.Policy("a")
	if err != nil || !reflect.DeepEqual(one, named("a")) {
		t.Errorf("the loaded policy is shared with callers: %+v, %v", one, err)
	}
	if _, _, err := b.Policy("c"); !errors.Is(err, ratelimit.ErrUnknownPolicy) {
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
		{"unknown stage", func(p *ratelimit.Policy) { p.Stage = "off" }, `policy "p": stage "off" must be shadow, warn, canary or enforce`},
		{"canary of none", func(p *ratelimit.Policy) { p.Stage = ratelimit.Canary }, "canary percent must be from 1 to 99"},
		{"canary of all", func(p *ratelimit.Policy) { p.Stage, p.Percent = ratelimit.Canary, 100 }, "canary percent must be from 1 to 99"},
		{"percentage of another stage", func(p *ratelimit.Policy) { p.Percent = 5 }, "a percentage belongs to stage canary"},
		{"date of another stage", func(p *ratelimit.Policy) { p.EnforceFrom = time.Unix(1, 0) }, "a date of enforcement belongs to stage warn"},
		{"long owner", func(p *ratelimit.Policy) { p.Owner = strings.Repeat("o", 257) }, "owner is longer than 256 bytes"},
		{"local rate without its posture", func(p *ratelimit.Policy) {
			p.Posture, p.Local = ratelimit.FailOpen, ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 1, Per: time.Second}, Burst: 1}
		}, "a local rate belongs to posture local"},
		{"local rate without a burst", func(p *ratelimit.Policy) {
			p.Local = ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 1, Per: time.Second}}
		}, `local rate "": burst must be from 1 to 1000000000`},
		{"no rate to take for the local one", func(p *ratelimit.Policy) {
			p.Limits[0].Algorithm, p.Limits[0].Numbers = ratelimit.Concurrency, ratelimit.Numbers{Slots: 1, SlotTTL: time.Second}
		}, "posture local needs a local rate"},
		{"slot of no key", func(p *ratelimit.Policy) { p.Slot = []string{"region"} }, `slot names "region", which the first limit's key lacks`},
		{"slot twice", func(p *ratelimit.Policy) { p.Slot = []string{"user", "user"} }, `slot names "user" twice`},
		{"unknown mode", func(p *ratelimit.Policy) { p.Mode = "fast" }, `policy "p": mode "fast" must be exact or leased`},
		{"bound of another mode", func(p *ratelimit.Policy) { p.MaxOvershoot = 5 }, "max_overshoot belongs to mode leased"},
		{"no bound", func(p *ratelimit.Policy) { p.Mode = ratelimit.Leased }, "max_overshoot must be from 5 to 10000"},
		{"leased slots", func(p *ratelimit.Policy) {
			p.Mode, p.MaxOvershoot, p.Posture = ratelimit.Leased, 5, ratelimit.FailOpen
			p.Limits[0].Algorithm, p.Limits[0].Numbers = ratelimit.Concurrency, ratelimit.Numbers{Slots: 1, SlotTTL: time.Second}
		}, "mode leased is not for limit l: its algorithm is concurrency"},
		{"leased shaping", func(p *ratelimit.Policy) {
			p.Mode, p.MaxOvershoot = ratelimit.Leased, 5
			p.Limits[0].Algorithm, p.Limits[0].Burst, p.Limits[0].Queue = ratelimit.LeakyBucket, 0, 1
		}, "mode leased is not for limit l: its algorithm is leaky_bucket"},
		{"leased in two slots", func(p *ratelimit.Policy) {
			p.Mode, p.MaxOvershoot = ratelimit.Leased, 5
			p.Limits = append(p.Limits, limit("m", 1, time.Second, 1, "app"))
		}, "mode leased needs all limits in one slot: slot must name descriptors that limit m has, too"},
		{"no limit", func(p *ratelimit.Policy) { p.Limits = nil }, `policy "p": has no limit`},
		{"no limit name", func(p *ratelimit.Policy) { p.Limits[0].Name = "" }, `limit "": name must be`},
		{"two limits of one name", func(p *ratelimit.Policy) { p.Limits = append(p.Limits, p.Limits[0]) }, `policy "p": limit "l": another limit has this name`},
		{"no key", func(p *ratelimit.Policy) { p.Limits[0].Key = nil }, `policy "p": limit "l": key must name 1 to 16 descriptors`},
		{"empty descriptor", func(p *ratelimit.Policy) { p.Limits[0].Key = []string{"a", ""} }, `limit "l": key descriptor is required`},
		{"a descriptor twice", func(p *ratelimit.Policy) { p.Limits[0].Key = []string{"a", "a"} }, `limit "l": key names "a" twice`},
		{"too many descriptors", func(p *ratelimit.Policy) { p.Limits[0].Key = strings.Split("abcdefghijklmnopq", "") }, "key must name 1 to 16"},
		{"no algorithm", func(p *ratelimit.Policy) { p.Limits[0].Algorithm = "" }, `limit "l": algorithm "" must be one of token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log, leaky_bucket, concurrency`},
		{"count too large", func(p *ratelimit.Policy) { p.Limits[0].Rate.Count = 1_000_000_001 }, `limit "l": rate count must be from 1 to 1000000000`},
		{"per too short", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = time.Millisecond - time.Microsecond }, `limit "l": rate per 999µs must be from 1 ms to 366 days`},
		{"per too long", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = 366*24*time.Hour + time.Microsecond }, "must be from 1 ms to 366 days"},
		{"per with nanoseconds", func(p *ratelimit.Policy) { p.Limits[0].Rate.Per = time.Second + 1 }, "in whole microseconds"},
		{"no burst", func(p *ratelimit.Policy) { p.Limits[0].Burst = 0 }, `limit "l": burst must be from 1 to 1000000000`},
		{"burst too large", func(p *ratelimit.Policy) {
			p.Limits[0].Rate.Per, p.Limits[0].Burst = 366*24*time.Hour, 1_000_000_001
		}, "burst must be from 1 to 1000000000"},
		{"burst of a window", with(ratelimit.FixedWindow, func(*ratelimit.Numbers) {}), "fixed_window has no burst"},
		{"queue of a token bucket", func(p *ratelimit.Policy) { p.Limits[0].Queue = 1 }, "token_bucket has no queue"},
		{"slots of a token bucket", func(p *ratelimit.Policy) { p.Limits[0].Slots = 1 }, "token_bucket has no slots"},
		{"life of a token bucket's slots", func(p *ratelimit.Policy) { p.Limits[0].SlotTTL = time.Second }, "token_bucket has no slot_ttl"},
		{"rate of slots", with(ratelimit.Concurrency, func(n *ratelimit.Numbers) { n.Burst, n.Slots, n.SlotTTL = 0, 1, time.Second }), "concurrency has no rate"},
		{"no queue", with(ratelimit.LeakyBucket, func(n *ratelimit.Numbers) { n.Burst = 0 }), "queue must be from 1 to 1000000000"},
		{"no slots", with(ratelimit.Concurrency, func(n *ratelimit.Numbers) { *n = ratelimit.Numbers{SlotTTL: time.Second} }), "slots must be from 1 to 1000"},
		{"short slots", with(ratelimit.Concurrency, func(n *ratelimit.Numbers) { *n = ratelimit.Numbers{Slots: 1, SlotTTL: 1} }), "slot_ttl 1ns must be from 1 ms"},
		{"long log", with(ratelimit.SlidingWindowLog, func(n *ratelimit.Numbers) { n.Burst, n.Rate.Count = 0, 1001 }), "rate count must be from 1 to 1000"},
		{"queue of more than a century", with(ratelimit.LeakyBucket, func(n *ratelimit.Numbers) {
			*n = ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 366 * 24 * time.Hour}, Queue: 101}
		}), "takes more than 36,600 days"},
		{"override of nothing", override(nil, ratelimit.Numbers{Burst: 2}), `override "1": matches no descriptor`},
		{"override without numbers", override(map[string]string{"user": "u"}, ratelimit.Numbers{}), `override "1": changes nothing`},
		{"override of another key", override(map[string]string{"region": "u"}, ratelimit.Numbers{Burst: 2}), `override "1": matches "region", which the key lacks`},
		{"star in the middle", override(map[string]string{"user": "u*v"}, ratelimit.Numbers{Burst: 2}), "a * may only stand at the end"},
		{"empty match", override(map[string]string{"user": ""}, ratelimit.Numbers{Burst: 2}), "match is required"},
		{"override out of range", override(map[string]string{"user": "u"}, ratelimit.Numbers{Burst: -1}), `override "1": burst must be from 1`},
		{"override of another algorithm", override(map[string]string{"user": "u"}, ratelimit.Numbers{Slots: 1}), `override "1": token_bucket has no slots`},
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

// with changes the limit's algorithm and numbers.
func with(a ratelimit.Algorithm, change func(*ratelimit.Numbers)) func(*ratelimit.Policy) {
	return func(p *ratelimit.Policy) {
		p.Posture = ratelimit.FailOpen
		p.Limits[0].Algorithm = a
		change(&p.Limits[0].Numbers)
	}
}

func override(match map[string]string, n ratelimit.Numbers) func(*ratelimit.Policy) {
	return func(p *ratelimit.Policy) { p.Limits[0].Overrides = []ratelimit.Override{{Match: match, Numbers: n}} }
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
