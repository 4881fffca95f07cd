package policy

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// whatTheContractShows is the file of the contract, without what is not built.
const whatTheContractShows = `version: 1
policies:
  - name: search
    owner: search-team
    on_store_failure: local
    local: {rate: 5/s, burst: 10}
    stage: enforce
    slot: [tenant]
    mode: exact
    limits:
      - {name: user, key: [tenant, user], algorithm: token_bucket, rate: 10/s, burst: 20}
      - name: tenant
        key: [tenant]
        algorithm: sliding_window_counter
        rate: 1000/m
        overrides:
          - {match: {tenant: big-shop}, rate: 50000/m}
          - {match: {tenant: "trial-*"}, rate: 100/m}
      - {name: exports, key: [tenant], algorithm: concurrency, slots: 3, slot_ttl: 5m}
      - {name: mail, key: [tenant], algorithm: leaky_bucket, rate: 5/s, queue: 50}
`

func per(count int64, d time.Duration) ratelimit.Numbers {
	return ratelimit.Numbers{Rate: ratelimit.Rate{Count: count, Per: d}}
}

func TestAWholeFile(t *testing.T) {
	set, err := Parse("search.yaml", []byte(whatTheContractShows))
	if err != nil {
		t.Fatal(err)
	}
	bucket, leaky := per(10, time.Second), per(5, time.Second)
	bucket.Burst, leaky.Queue = 20, 50
	want := []ratelimit.Policy{{
		Name: "search", Owner: "search-team", Posture: ratelimit.Local, Stage: ratelimit.Enforce, Slot: []string{"tenant"},
		Local: ratelimit.LocalRate{Rate: ratelimit.Rate{Count: 5, Per: time.Second}, Burst: 10},
		Limits: []ratelimit.Limit{
			{Name: "user", Key: []string{"tenant", "user"}, Algorithm: ratelimit.TokenBucket, Numbers: bucket},
			{Name: "tenant", Key: []string{"tenant"}, Algorithm: ratelimit.SlidingWindowCounter, Numbers: per(1000, time.Minute), Overrides: []ratelimit.Override{
				{Match: map[string]string{"tenant": "big-shop"}, Numbers: per(50000, time.Minute)},
				{Match: map[string]string{"tenant": "trial-*"}, Numbers: per(100, time.Minute)},
			}},
			{Name: "exports", Key: []string{"tenant"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 3, SlotTTL: 5 * time.Minute}},
			{Name: "mail", Key: []string{"tenant"}, Algorithm: ratelimit.LeakyBucket, Numbers: leaky},
		},
	}}
	if !reflect.DeepEqual(set.Policies, want) || len(set.Notes) != 0 {
		t.Errorf("got %+v\nwant %+v", set, want)
	}
}

// file is a policy file of one policy, whose limit is the last line.
func file(limit string, lines ...string) string {
	head := []string{"version: 1", "policies:", "  - name: p", "    on_store_failure: fail_open"}
	for _, line := range lines {
		head = append(head, "    "+line)
	}
	return strings.Join(append(head, "    limits:", "      - "+limit, ""), "\n")
}

const plain = "{name: l, key: [user], algorithm: token_bucket, rate: 10/s, burst: 20}"

// A fileCase is a text and what is said of it: "line field: reason" of each mistake, or its beginning.
type fileCase struct {
	why, text string
	says      []string
	beyond    bool // a JSON Schema cannot say it
}

func limitOf(numbers string) string { return file("{name: l, key: [user], " + numbers + "}") }

func override(algorithm, o string) string {
	return file("{name: l, key: [user, region], " + algorithm + ", overrides: [" + o + "]}")
}

const (
	inTheLimit  = "6 policies[0].limits[0]"
	onePerHour  = "algorithm: token_bucket, rate: 1/h"
	aWindow     = "algorithm: fixed_window, rate: 1/h"
	ofItsLimit  = inTheLimit + ".overrides[0]"
	isNoField   = ": is no field of "
	notANumber  = ": must be an integer in decimal digits"
	notText     = ": must be a text"
	aRate       = ": must be a count, from 1, and a time"
	isRequired  = ": is required"
	isNoFieldAt = ": is no field here"
)

var fileCases = []fileCase{
	{"whole", whatTheContractShows, nil, false},
	{"smallest", file(plain), nil, false},
	{"with a mark and comments", "# a\n---\n" + file(plain) + "# b\n", nil, false},
	{"shadow", file(plain, "stage: shadow"), nil, false},
	{"warn", file(plain, "stage: warn", "enforce_from: 2027-01-15"), nil, false},
	{"warn without a date", file(plain, "stage: warn"), nil, false},
	{"canary", file(plain, "stage: {canary: 99}"), nil, false},
	{"once a year", limitOf("algorithm: gcra, rate: 1/366d, burst: 100"), nil, false},
	{"a billion a millisecond", limitOf("algorithm: gcra, rate: 1000000000/ms"), nil, false},
	{"a million a second", limitOf("algorithm: sliding_window_counter, rate: 1000000/s"), nil, false},
	{"quoted", limitOf(`algorithm: "gcra", rate: '10/s'`), nil, false},

	{"empty", "", []string{"1 : must hold one YAML document, not 0"}, false},
	{"comments only", "# nothing\n", []string{"1 : must hold one YAML document, not 0"}, false},
	{"two documents", file(plain) + "---\n" + file(plain), []string{"1 : must hold one YAML document, not 2"}, true},
	{"no YAML", "version: [", []string{"1 : is not YAML: "}, false},
	{"no YAML further down", "version: 1\npolicies:\n  - name: 'x\n", []string{"3 : is not YAML: "}, false},
	{"not UTF-8", "version: \xff", []string{"1 : is not valid UTF-8"}, false},
	{"deep brackets", "\nversion: " + strings.Repeat("[", 51), []string{"2 : is nested more than 50 deep"}, false},
	{"deep lists", strings.Repeat("- ", 51) + "1", []string{"1 : is nested more than 50 deep"}, false},
	{"a list", "- 1", []string{"1 : must be a mapping, with fields such as version, policies"}, false},
	{"no version", strings.Replace(file(plain), "version: 1", "", 1), []string{"2 version" + isRequired}, false},
	{"another version", strings.Replace(file(plain), "1", "2", 1), []string{"1 version: must be 1"}, false},
	{"version in words", strings.Replace(file(plain), "1", "one", 1), []string{"1 version" + notANumber}, false},
	{"version in quotes", strings.Replace(file(plain), "1", `"1"`, 1), []string{"1 version" + notANumber}, false},
	{"no policies", "version: 1", []string{"1 policies" + isRequired}, false},
	{"empty policies", "version: 1\npolicies: []", []string{"2 policies: must be a list of at least one"}, false},
	{"policies of nothing", "version: 1\npolicies:", []string{"2 policies: must be a list of at least one"}, false},
	{"a policy that is a text", "version: 1\npolicies: [p]", []string{"2 policies[0]: must be a mapping"}, false},
	{"an unknown field", "version: 1\nextra: 2\n" + strings.TrimPrefix(file(plain), "version: 1\n"), []string{"2 extra" + isNoFieldAt}, false},
	{"an unknown field of a policy", file(plain, "posture: local"), []string{"5 policies[0].posture" + isNoFieldAt}, false},
	{"an unknown field of a limit", limitOf(onePerHour + ", brust: 5"), []string{inTheLimit + ".brust" + isNoFieldAt}, false},
	{"a field twice", file(plain, "owner: a", "owner: b"), []string{"6 policies[0].owner: stands twice, first in line 5"}, true},
	{"a field twice in a limit", limitOf(onePerHour + ", rate: 5/h"), []string{inTheLimit + ".rate: stands twice, first in line 6"}, true},
	{"an alias", file("&a {name: l, key: [user], algorithm: gcra, rate: 1/s}") + "      - *a\n", []string{"6 has anchors, aliases", "7 has anchors, aliases"}, true},

	{"two policies of one name", file(plain) + strings.Join(strings.Split(file(plain), "\n")[2:], "\n"), []string{`7 policies[1].name: "p" is taken by f.yaml:3`}, true},
	{"no name", strings.Replace(file(plain), "name: p", "owner: p", 1), []string{"3 policies[0].name" + isRequired}, false},
	{"a number as a name", strings.Replace(file(plain), "name: p", "name: 7", 1), []string{"3 policies[0].name" + notText}, false},
	{"a capital in the name", strings.Replace(file(plain), "name: p", "name: P", 1), []string{"3 policies[0].name: name must be 1 to 256 of a-z, 0-9 and -"}, false},
	{"no posture", strings.Replace(file(plain), "    on_store_failure: fail_open\n", "", 1), []string{"3 policies[0].on_store_failure" + isRequired}, false},
	{"another posture", strings.Replace(file(plain), "fail_open", "open", 1), []string{"4 policies[0].on_store_failure: must be fail_open, fail_closed or local"}, false},
	{"an empty owner", file(plain, "owner:"), []string{"5 policies[0].owner" + notText}, false},
	{"a long owner", file(plain, "owner: "+strings.Repeat("o", 257)), []string{"5 policies[0].owner: owner is longer than 256 bytes"}, false},
	{"another stage", file(plain, "stage: off"), []string{"5 policies[0].stage: must be shadow, warn, enforce, or {canary: 5}"}, false},
	{"canary of no share", file(plain, "stage: canary"), []string{"5 policies[0].stage: must be shadow"}, false},
	{"canary of none", file(plain, "stage: {canary: 0}"), []string{"5 policies[0].stage: canary percent must be from 1 to 99"}, false},
	{"canary of all", file(plain, "stage: {canary: 100}"), []string{"5 policies[0].stage: canary percent must be from 1 to 99"}, false},
	{"canary of a half percent", file(plain, "stage: {canary: 0.5}"), []string{"5 policies[0].stage.canary" + notANumber}, false},
	{"a date without its stage", file(plain, "enforce_from: 2027-01-15"), []string{"5 policies[0].enforce_from: belongs to stage warn"}, false},
	{"no date", file(plain, "stage: warn", "enforce_from: soon"), []string{"6 policies[0].enforce_from: must be a date"}, false},
	{"no such date", file(plain, "stage: warn", "enforce_from: 2027-02-30"), []string{"6 policies[0].enforce_from: must be a date"}, true},
	{"leased", file(plain, "mode: leased", "max_overshoot: 500"), nil, false},
	{"a mode that there is not", file(plain, "mode: fast"), []string{"5 policies[0].mode: must be exact or leased"}, false},
	{"leased without a bound", file(plain, "mode: leased"), []string{"3 policies[0].max_overshoot: is required with mode: leased"}, false},
	{"a bound of what is not leased", file(plain, "max_overshoot: 500"), []string{"5 policies[0].max_overshoot: belongs to mode: leased"}, false},
	{"a bound that is too small", file(plain, "mode: leased", "max_overshoot: 4"), []string{"6 policies[0].max_overshoot: max_overshoot must be from 5 to 10000"}, false},
	{"a bound that is too large", file(plain, "mode: leased", "max_overshoot: 10001"), []string{"6 policies[0].max_overshoot: max_overshoot must be from 5 to 10000"}, false},
	{
		"slots cannot be leased", file("{name: a, key: [u], algorithm: concurrency, slots: 3, slot_ttl: 1s}", "mode: leased", "max_overshoot: 50"),
		[]string{"5 policies[0].mode: mode leased is not for limit a: its algorithm is concurrency"},
		false,
	},
	{"slot of no key", file(plain, "slot: [region]"), []string{`5 policies[0].slot: slot names "region", which the first limit's key lacks`}, true},
	{"slot twice", file(plain, "slot: [user, user]"), []string{`5 policies[0].slot: slot names "user" twice`}, false},
	{"slot of nothing", file(plain, "slot: []"), []string{"5 policies[0].slot: must be a list of at least one"}, false},
	{"local rate without its posture", file(plain, "local: {rate: 1/s}"), []string{"5 policies[0].local: belongs to on_store_failure: local"}, false},
	{"local without a rate", strings.Replace(file(plain, "local: {burst: 1}"), "fail_open", "local", 1), []string{"5 policies[0].local.rate" + isRequired}, false},
	{"local burst of nothing", strings.Replace(file(plain, "local: {rate: 1/s, burst: 0}"), "fail_open", "local", 1), []string{"5 policies[0].local.burst: burst must be from 1"}, false},
	{"local rate that is too slow", strings.Replace(file(plain, "local: {rate: 1/366d, burst: 101}"), "fail_open", "local", 1), []string{"5 policies[0].local.rate: a burst of 101"}, true},
	{"local of slots", strings.Replace(limitOf("algorithm: concurrency, slots: 1, slot_ttl: 1m"), "fail_open", "local", 1), []string{"4 policies[0].on_store_failure: posture local needs a local rate"}, true},

	{"no limits", "version: 1\npolicies:\n  - name: p\n    on_store_failure: local\n", []string{"3 policies[0].limits" + isRequired}, false},
	{"empty limits", "version: 1\npolicies:\n  - {name: p, on_store_failure: local, limits: []}\n", []string{"3 policies[0].limits: must be a list"}, false},
	{"no name of a limit", file("{key: [user], " + onePerHour + "}"), []string{inTheLimit + ".name" + isRequired}, false},
	{"two limits of one name", file(plain) + "      - " + plain + "\n", []string{`7 policies[0].limits[1].name: "l" is the name of the limit in line 6, too`}, true},
	{"no key", file("{name: l, " + onePerHour + "}"), []string{inTheLimit + ".key" + isRequired}, false},
	{"a key that is a text", file("{name: l, key: user, " + onePerHour + "}"), []string{inTheLimit + ".key: must be a list"}, false},
	{"a key of numbers", file("{name: l, key: [1], " + onePerHour + "}"), []string{inTheLimit + ".key[0]" + notText}, false},
	{"a key twice", file("{name: l, key: [user, user], " + onePerHour + "}"), []string{inTheLimit + `.key: key names "user" twice`}, false},
	{"an empty key", file(`{name: l, key: [""], ` + onePerHour + "}"), []string{inTheLimit + ".key: key descriptor is required"}, false},
	{"no algorithm", limitOf("rate: 1/s"), []string{inTheLimit + ".algorithm" + isRequired}, false},
	{"another algorithm", limitOf("algorithm: bucket, rate: 0/s"), []string{inTheLimit + ".algorithm: must be token_bucket, gcra"}, false},
	{"no rate", limitOf("algorithm: gcra"), []string{inTheLimit + ".rate" + isRequired}, false},
	{"R4: rate 0", limitOf("algorithm: gcra, rate: 0/s"), []string{inTheLimit + ".rate" + aRate}, false},
	{"a negative rate", limitOf("algorithm: gcra, rate: -1/s"), []string{inTheLimit + ".rate" + aRate}, false},
	{"a fraction", limitOf("algorithm: gcra, rate: 0.5/s"), []string{inTheLimit + ".rate" + aRate}, false},
	{"a rate that is a number", limitOf("algorithm: gcra, rate: 10"), []string{inTheLimit + ".rate" + notText}, false},
	{"no unit", limitOf("algorithm: gcra, rate: 10/15"), []string{inTheLimit + ".rate" + aRate}, false},
	{"another unit", limitOf("algorithm: gcra, rate: 10/week"), []string{inTheLimit + ".rate" + aRate}, false},
	{"per 0 s", limitOf("algorithm: gcra, rate: 10/0s"), []string{inTheLimit + ".rate" + aRate}, false},
	{"a zero in front", limitOf("algorithm: gcra, rate: 010/s"), []string{inTheLimit + ".rate" + aRate}, false},
	{"R5: more than can be counted", limitOf("algorithm: gcra, rate: 1000000001/s"), []string{inTheLimit + ".rate: rate count must be from 1 to 1000000000"}, true},
	{"longer than a year", limitOf("algorithm: gcra, rate: 1/367d"), []string{inTheLimit + ".rate: rate per 8808h0m0s must be from 1 ms to 366 days"}, true},
	{"longer than time", limitOf("algorithm: gcra, rate: 1/999999999999d"), []string{inTheLimit + ".rate: has a time that is too long"}, true},
	{"refills in a century", limitOf("algorithm: gcra, rate: 1/366d, burst: 101"), []string{inTheLimit + ".rate: a burst of 101"}, true},
	{"burst 0", limitOf(onePerHour + ", burst: 0"), []string{inTheLimit + ".burst: must be at least 1"}, false},
	{"burst below 0", limitOf(onePerHour + ", burst: -1"), []string{inTheLimit + ".burst: must be at least 1"}, false},
	{"burst in hexadecimal", limitOf(onePerHour + ", burst: 0x10"), []string{inTheLimit + ".burst" + notANumber}, true},
	{"burst with a separator", limitOf(onePerHour + ", burst: 1_000"), []string{inTheLimit + ".burst" + notANumber}, true},
	{"burst of a window", limitOf(aWindow + ", burst: 5"), []string{inTheLimit + ".burst" + isNoField + "fixed_window"}, false},
	{"queue of a token bucket", limitOf(onePerHour + ", queue: 5"), []string{inTheLimit + ".queue" + isNoField + "token_bucket"}, false},
	{"no queue", limitOf("algorithm: leaky_bucket, rate: 1/s"), []string{inTheLimit + ".queue" + isRequired}, false},
	{"no slots", limitOf("algorithm: concurrency"), []string{inTheLimit + ".slot_ttl" + isRequired, inTheLimit + ".slots" + isRequired}, false},
	{"rate of slots", limitOf("algorithm: concurrency, slots: 1, slot_ttl: 1s, rate: 1/s"), []string{inTheLimit + ".rate" + isNoField + "concurrency"}, false},
	{"too many slots", limitOf("algorithm: concurrency, slots: 1001, slot_ttl: 1s"), []string{inTheLimit + ".slots: slots must be from 1 to 1000"}, false},
	{"slots of no time", limitOf("algorithm: concurrency, slots: 1, slot_ttl: soon"), []string{inTheLimit + ".slot_ttl: must be a time"}, false},
	{"slots of a number", limitOf("algorithm: concurrency, slots: 1, slot_ttl: 60"), []string{inTheLimit + ".slot_ttl" + notText}, false},
	{"slots for ever", limitOf("algorithm: concurrency, slots: 1, slot_ttl: 999999999999d"), []string{inTheLimit + ".slot_ttl: is too long"}, true},
	{"slots for more than a year", limitOf("algorithm: concurrency, slots: 1, slot_ttl: 367d"), []string{inTheLimit + ".slot_ttl: slot_ttl 8808h0m0s must be"}, true},
	{"a long log", limitOf("algorithm: sliding_window_log, rate: 1001/s"), []string{inTheLimit + ".rate: rate count must be from 1 to 1000"}, true},
	{"shards", limitOf("algorithm: gcra, rate: 100/s, shards: 16"), nil, false},
	{"shards of a window", limitOf("algorithm: fixed_window, rate: 100/s, shards: 64"), nil, false},
	{"one shard", limitOf("algorithm: gcra, rate: 100/s, shards: 1"), []string{inTheLimit + ".shards: shards 1 must be from 2 to 64"}, false},
	{"too many shards", limitOf("algorithm: gcra, rate: 100/s, shards: 65"), []string{inTheLimit + ".shards: shards 65 must be from 2 to 64"}, false},
	{"shards of a text", limitOf("algorithm: gcra, rate: 100/s, shards: many"), []string{inTheLimit + ".shards" + notANumber}, false},
	{"more shards than units", limitOf("algorithm: gcra, rate: 100/s, burst: 15, shards: 16"), []string{inTheLimit + ".shards: shards 16 are more than the limit's capacity of 15"}, true},
	{"shards of a leaky bucket", limitOf("algorithm: leaky_bucket, rate: 1/s, queue: 99, shards: 4"), []string{inTheLimit + ".shards: shards are not for leaky_bucket"}, false},
	{"shards that are too slow", limitOf("algorithm: gcra, rate: 9/366d, shards: 4"), []string{inTheLimit + ".shards: shards 4 of so slow a rate"}, true},
	{"shards that an override leaves no unit", override("algorithm: gcra, rate: 100/s, shards: 4", "{match: {user: u}, burst: 3}"), []string{ofItsLimit + ": shards 4 are more than the limit's capacity of 3"}, true},

	{"an override", override(onePerHour, "{match: {user: u, region: 'e*'}, burst: 5}"), nil, false},
	{"an override of nothing", override(onePerHour, "{burst: 5}"), []string{ofItsLimit + ".match" + isRequired}, false},
	{"an override that matches nothing", override(onePerHour, "{match: {}, burst: 5}"), []string{ofItsLimit + ".match: matches no descriptor"}, false},
	{"an override that matches a text", override(onePerHour, "{match: user, burst: 5}"), []string{ofItsLimit + ".match: must be a mapping"}, false},
	{"an override that matches a number", override(onePerHour, "{match: {user: 007}, burst: 5}"), []string{ofItsLimit + ".match.user" + notText}, true},
	{"an override that changes nothing", override(onePerHour, "{match: {user: u}}"), []string{ofItsLimit + ": changes nothing"}, false},
	{"an override of another key", override(onePerHour, "{match: {tenant: u}, burst: 5}"), []string{ofItsLimit + `.match: matches "tenant", which the key lacks`}, true},
	{"a star in the middle", override(onePerHour, "{match: {user: 'u*v'}, burst: 5}"), []string{ofItsLimit + `.match: match "u*v": a * may only stand at the end`}, false},
	{"an override of another algorithm", override(aWindow, "{match: {user: u}, rate: 1/s, burst: 5}"), []string{ofItsLimit + ".burst" + isNoField}, false},
	{"an override out of range", override(onePerHour, "{match: {user: u}, rate: 1/366d, burst: 500}"), []string{ofItsLimit + ".rate: a burst of 500"}, true},
	{"an override that makes its limit too slow", override(onePerHour, "{match: {user: u}, burst: 1000000000}"), []string{ofItsLimit + ": a burst of 1000000000"}, true},
	{"an override of a limit that is wrong itself", override("algorithm: gcra, rate: 1/367d", "{match: {user: u}, burst: 5}"), []string{inTheLimit + ".rate: rate per 8808h0m0s"}, true},
	{"an override twice in a mapping", override(onePerHour, "{match: {user: u, user: v}, burst: 5}"), []string{ofItsLimit + ".match.user: stands twice"}, true},
}

// mistakes are what Parse says of the text, each without its file.
func mistakes(t *testing.T, text string) []string {
	t.Helper()
	_, err := Parse("f.yaml", []byte(text))
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*MistakesError](err)
	if !ok {
		t.Fatalf("%q: got %v, which names no line", text, err)
	}
	var all []string
	for _, f := range wrong.Mistakes {
		if f.File != "f.yaml" {
			t.Errorf("%v names another file", f)
		}
		all = append(all, strings.Replace(strings.TrimPrefix(f.String(), "f.yaml:"), ": ", " ", 1))
	}
	return all
}

func TestR4R5Files(t *testing.T) {
	for _, c := range fileCases {
		got := mistakes(t, c.text)
		ok := len(got) == len(c.says)
		for i := range c.says {
			// a mistake of the file as a whole has no field: "1 : reason" stands for "1 reason"
			ok = ok && strings.HasPrefix(got[i], strings.Replace(c.says[i], " : ", " ", 1))
		}
		if !ok {
			t.Errorf("%s: got\n%s\nwant\n%s", c.why, strings.Join(got, "\n"), strings.Join(c.says, "\n"))
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	text := `version: 2
policies:
  - name: P
    owner: 7
    stage: later
    limits:
      - {name: L, key: [user], algorithm: token_bucket, rate: 0/s, burst: 0}
      - {name: m, key: [user, user], algorithm: fixed_window, rate: 1/s, burst: 3, extra: 1}
  - {on_store_failure: local}
`
	got := mistakes(t, text)
	want := []string{
		"1 version: must be 1",
		"3 policies[0].name: name must be",
		"3 policies[0].on_store_failure: is required",
		"4 policies[0].owner: must be a text",
		"5 policies[0].stage: must be",
		"7 policies[0].limits[0].burst: must be",
		"7 policies[0].limits[0].name: name must be",
		"7 policies[0].limits[0].rate: must be",
		"8 policies[0].limits[1].burst: is no field of",
		"8 policies[0].limits[1].extra: is no field here",
		"8 policies[0].limits[1].key: key names",
		"9 policies[1].limits: is required",
		"9 policies[1].name: is required",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBurstFollowsTheRateWhereNoneIsWritten(t *testing.T) {
	bursts := func(limit string) (own, overridden int64) {
		set, err := Parse("f.yaml", []byte(file(limit)))
		if err != nil {
			t.Fatal(err)
		}
		l := set.Policies[0].Limits[0]
		return l.Burst, l.Overrides[0].Burst
	}
	for _, step := range []struct {
		why, limit, override string
		own, overridden      int64
	}{
		{"none is written", "", "rate: 50/s", 10, 50},
		{"the limit's own", ", burst: 20", "rate: 50/s", 20, 0}, // 0: the limit's
		{"the override's own", "", "rate: 50/s, burst: 7", 10, 7},
		{"the override has only a burst", "", "burst: 7", 10, 7},
	} {
		own, overridden := bursts("{name: l, key: [user], algorithm: gcra, rate: 10/s" + step.limit + ", overrides: [{match: {user: u}, " + step.override + "}]}")
		if own != step.own || overridden != step.overridden {
			t.Errorf("%s: got %d and %d", step.why, own, overridden)
		}
	}
}

func TestNotesNameEveryLimitThatLacksTheSlot(t *testing.T) {
	text := file(plain) + `      - {name: route, key: [route], algorithm: gcra, rate: 1/s}
      - {name: both, key: [user, route], algorithm: gcra, rate: 1/s}
      - name: site
        algorithm: gcra
        rate: 1/s
        key: [site]
`
	set, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := lines(set.Notes)
	want := "f.yaml:7: policies[0].limits[1].key: limit \"route\" lacks user of the policy's slot: a check takes from it in a second step, and gives back what it took where that refuses\n" +
		"f.yaml:12: policies[0].limits[3].key: limit \"site\" lacks user"
	if !strings.HasPrefix(got, want) || len(set.Notes) != 2 {
		t.Errorf("got\n%s", got)
	}
	set, err = Parse("f.yaml", []byte(file(plain)+"      - {name: all, key: [user], algorithm: gcra, rate: 100/s, shards: 4}\n"))
	if err != nil || len(set.Notes) != 1 || !strings.HasPrefix(lines(set.Notes), `f.yaml:7: policies[0].limits[1].shards: limit "all" has shards, which lie in slots of their own: a check takes`) {
		t.Errorf("got %v, %v", set.Notes, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func named(name string) string { return strings.Replace(file(plain), "name: p", "name: "+name, 1) }

func TestAFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml": named("b"), "a.yaml": named("a"), ".c.yaml": "{", "README.md": "#", "d.yaml~": "{", "e.json": "{",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := os.Mkdir(filepath.Join(dir, "f"), 0o700); err != nil {
		t.Fatal(err)
	}
	set, err := Load(dir)
	if err != nil || len(set.Policies) != 2 || set.Policies[0].Name != "a" || set.Policies[1].Name != "b" {
		t.Fatalf("got %+v, %v", set, err)
	}
	write(t, filepath.Join(dir, "g.yml"), named("g"))
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "g.yml would not be read: name it .yaml") {
		t.Errorf("a file that would not be read: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no *.yaml") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	large := filepath.Join(t.TempDir(), "large.yaml")
	write(t, large, file(plain)+strings.Repeat("#", maxFile))
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), "is larger than 1048576 bytes") {
		t.Errorf("a large file: %v", err)
	}
}

// What is named like a policy file and is none is an error, and nothing waits for a writer.
func TestOnlyRegularFiles(t *testing.T) {
	elsewhere := t.TempDir()
	pipe := filepath.Join(elsewhere, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(elsewhere, "real"), named("linked"))
	for _, c := range []struct {
		why, says string // says "" = is read
		put       func(name string) error
	}{
		{"a pipe", "is no regular file", func(name string) error { return syscall.Mkfifo(name, 0o600) }},
		{"a link to a pipe", "is no regular file", func(name string) error { return os.Symlink(pipe, name) }},
		{"a folder", "is a folder", func(name string) error { return os.Mkdir(name, 0o700) }},
		{"a link to a folder", "is a folder", func(name string) error { return os.Symlink(elsewhere, name) }},
		{"a link to a file", "", func(name string) error { return os.Symlink(filepath.Join(elsewhere, "real"), name) }},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.yaml"), named("a"))
		more := filepath.Join(dir, "more.yaml")
		if err := c.put(more); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := Load(dir)
			done <- err
		}()
		select {
		case err := <-done:
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), more+" "+c.says)) {
				t.Errorf("%s: got %v, want %q", c.why, err, c.says)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the reading hangs", c.why)
		}
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Errorf("a pipe by itself: %v", err)
	}
}

// What YAML can do beyond values is named as what it is, and a mark of the byte order is none of it.
func TestNoAnchorsAndTags(t *testing.T) {
	const shared, tags = "has anchors, aliases and merge keys, which are refused", "has tags, which are refused"
	text := file(plain)
	for _, c := range []struct{ why, text, says string }{
		{"a byte order mark", "\ufeff" + text, ""},
		{"two of them", "\ufeff\ufeff" + text, "is no field here"},
		{"an anchor", strings.Replace(text, "name: p", "name: &a p", 1), "f.yaml:3: " + shared},
		{"an alias", strings.Replace(text, "name: p", "name: *a", 1), "f.yaml:3: " + shared},
		{"a merge key", strings.Replace(text, "name: p", "<<: {name: p}", 1), "f.yaml:3: " + shared},
		{"a tag", strings.Replace(text, "name: p", "name: !!str p", 1), "f.yaml:3: " + tags},
		{"an anchor of everything", "--- &a\n" + text, "f.yaml:1: " + shared},
		{"as a text", strings.Replace(text, "name: p", "owner: '*a & <<'\n    name: p", 1), ""},
	} {
		_, err := Parse("f.yaml", []byte(c.text))
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: got %v, want %q", c.why, err, c.says)
		}
	}
}

func TestR65TwoFilesWithOnePolicy(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two.yaml")
	write(t, one, named("same"))
	write(t, two, "# another team's\n"+named("same"))
	_, err := Load(dir)
	want := two + `:4: policies[0].name: "same" is taken by ` + one + ":3"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
