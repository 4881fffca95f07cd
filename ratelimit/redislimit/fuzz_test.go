package redislimit_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A shelf is what Redis has under the keys of one fuzzed call.
type shelf struct {
	client *redis.Client
	keys   []string
}

func (s shelf) fill(t *testing.T, values ...[]byte) {
	t.Helper()
	for i, v := range values {
		err := s.client.Del(t.Context(), s.keys[i]).Err()
		if len(v) > 0 {
			err = s.client.Set(t.Context(), s.keys[i], v, 0).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// content is nil for what is not there.
func (s shelf) content(t *testing.T) [][]byte {
	t.Helper()
	values, err := s.client.MGet(t.Context(), s.keys...).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make([][]byte, len(values))
	for i, v := range values {
		if text, ok := v.(string); ok {
			all[i] = []byte(text)
		}
	}
	return all
}

var (
	fuzzed = []ratelimit.Algorithm{
		ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter,
		ratelimit.SlidingWindowLog, ratelimit.LeakyBucket, ratelimit.Concurrency,
	}
	// fuzzedStates are what may stand under a key: states and records, some of them
	// broken, of another version, or with numbers that Lua does not have exactly.
	fuzzedStates = []string{
		"", "1", "1:", "1:::::", "2", "junk",
		"1:1790000000000000:200000:0:10:1000000", "1:1790000000000000:7:9:1000000", "2:1790000000000000:200000:0:10:1000000",
		"1:1790000000000000:3:500:1000000", "1:1790000000000000:3:2000000000:1000000", "1:1790000000000000:200000:10:10:1000000",
		"1:9007199254740993:1:0:10:1000000", "1:1790000000000000:9007199254740993:0:10:1000000", "1:1790000000000000:00000000000000009:0:10:1000000",
		"1:1790000000000000:4000000000000000:0:10:1000000", "1:99999999999999999999:1:0:10:1000000",
		"1:1790000000000000:3", "2:1790000000000000:3", "1:1790000000000000:3:50000", "1:0:0", "1:1790000000000000:3000", "1:9007199254740993:1",
		"1:1790000000500000:2:slt_A:1790000000700000:1:b", "2:1790000000500000:2:slt_A", "1:1790000000500000:2:slt_A:", "1:1790000000500000:0:a",
		"1:1790000000500000:0002:slt_A", "1:1790000000500000:00000000000000002:slt_A",
		"1:1790000000000000:1790000000000000", "1:1790000000000000:1790000000000000:slt_A", "1:1780000000000000:1780000000000000:slt_A",
		"2:1790000000000000:200000:0:10:1000000:100000:0:300000:0", "2:1790000000000000:200000:0:10:1000000:500000:0:300000:1",
		"2:1790000000000000:200000:0:10:1000000:0:0:300000:10", "2:1790000000000000:200000:0:10:1000000:0:0:00000000000300000:9",
		"2:1790000000000000:0:0:10:1000000:300000:0:0:0", "2:1790000000000000:0:0:10:1000000:0:0:299999:9", "2:1789999999999999:0:0:10:1000000:300000:0:0:0:",
		"2:1790000000000000:1790000000000000", "2:1790000000000000:1790000000000000:slt_B", "2:1790000000000000:1790000000000000:slt_B:",
		"1:1780000000000000:5junk", "1:1780000000000000:5:more:", "1:1780000000000000:99999999999999999999",
		debtOf(1.79e15, 200000, 0, "10:1000000"), debtOf(1.79e15, 200000, 9, "10:1000000"), debtOf(1.79e15, 200000, 10, "10:1000000"),
		debtOf(1.79e15+5e5, 200000, 1, "10:1000000"), debtOf(1.9e15, 200000, 1, "10:1000000"), debtOf(1.79e15, 2000000, 1, "10:1000000"),
		debtOf(1.79e15, 200000, 0, "10:2000000"), debtOf(1.79e15, 200000, 0, "010:1000000"), debtOf(1.79e15, 200000, 0, ""),
		debtOf(1.79e15, 200000, 0, "10:1000000:"), debtOf(1.79e15, 200000, 0, "10:1000000")[:21], "1" + debtOf(1.79e15, 200000, 0, "10:1000000")[1:],
		debtOf(1.79e15+0.5, 200000.5, 0, "10:1000000"), debtOf(1.79e15, 200000.5, 0, "10:1000000"), debtOf(-1, 200000, 0, "10:1000000"),
		debtOf(1.79e15, -1, 0, "10:1000000"), debtOf(math.Copysign(0, -1), math.Copysign(0, -1), 0, "10:1000000"), debtOf(1.79e15, math.Copysign(0, -1), 0, "10:1000000"),
		debtOf(1.78e15+0.5, 200000, 0, "10:1000000"), debtOf(1.79e15+200000.5, 200000, 0, "10:1000000"), "2:01790000000000000:200000:0:10:1000000:0:0:300000:0",
		debtOf(math.NaN(), 200000, 0, "10:1000000"), debtOf(1.79e15, math.NaN(), 0, "10:1000000"), debtOf(math.Inf(1), 200000, 0, "10:1000000"),
		debtOf(math.Inf(-1), 200000, 0, "10:1000000"), debtOf(1.79e15, math.Inf(1), 0, "10:1000000"), debtOf(1<<53, 200000, 0, "10:1000000"),
		debtOf(1.79e15, 3_162_240_000_000_000, 0, "10:1000000"), debtOf(1.79e15, 3_162_240_000_000_001, 0, "10:1000000"), debtOf(1.79e15, 1<<53, math.MaxUint32, "10:1000000"),
	}
)

// debtOf is a packed debt of any numbers.
func debtOf(seen, us float64, rest uint32, rule string) string {
	packed := binary.LittleEndian.AppendUint64([]byte("3"), math.Float64bits(seen))
	packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(us))
	return string(binary.LittleEndian.AppendUint32(packed, rest)) + rule
}

// FuzzScript lets the store meet whatever may stand under its keys, with any rule,
// cost and instant that a policy and a call may have: it answers and keeps what the
// transition does, digit for digit, and where that refuses a state as corrupt nothing
// has changed.
func FuzzScript(f *testing.F) {
	client, prefix := dial(f, engine.Redis(f).Addr), engine.FreshPrefix()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix, TakesNow: true})
	for _, state := range fuzzedStates {
		for call := range byte(6) {
			for pick := range fuzzed {
				f.Add([]byte(state), []byte(nil), []byte(nil), byte(pick), byte(pick+1), call, int64(10), int64(1_000_000), int64(10), int64(3), int64(1_790_000_000_100_000), int64(call/3)*1_790_000_000_000_000, "slt_B")
			}
			f.Add([]byte("2:1790000000000000:0:0:10:1000000:300000:0:0:0"), []byte(nil), []byte(state), byte(0), byte(6), call, int64(10), int64(1_000_000), int64(10), int64(3), int64(1_790_000_000_100_000), int64(1_790_000_000_000_000), "slt_B")
			f.Add([]byte(nil), []byte(nil), []byte(state), call, byte(6), call, int64(10), int64(1_000_000), int64(10), int64(3), int64(1_790_000_000_100_000), int64(1_790_000_000_000_000), "slt_A")
		}
	}
	f.Fuzz(func(t *testing.T, first, second, record []byte, a, b, kind byte, count, per, burst, cost, now, charged int64, slot string) {
		if keytype.CheckID("slot_id", slot) != nil || len(slot) > 64 || strings.Contains(slot, ":") || now < 1 || now > 4e15 || charged < 0 || charged > now {
			t.Skip()
		}
		buckets := make([]ratelimit.Bucket, 2)
		for i, pick := range []byte{a, b} {
			rule, ok := ruleWithin(fuzzed[int(pick)%len(fuzzed)], count, per, burst)
			if !ok || cost < 1 || cost > rule.Burst {
				t.Skip()
			}
			buckets[i] = ratelimit.Bucket{Key: strconv.Itoa(i), Tag: "tag", Rule: rule}
		}
		at := shelf{client, []string{buckets[0].Type().Tagged(prefix, "tag", "0"), buckets[1].Type().Tagged(prefix, "tag", "1"), keytype.ChargeRequest.Tagged(prefix, "tag", "r")}}
		at.fill(t, first, second, record)
		before := at.content(t)
		stored := ratelimit.Stored{Packed: before[:2], Record: before[2]}
		var got, want ratelimit.Outcome
		var next ratelimit.Next
		var err, corrupt error
		if kind %= 6; kind == 0 || kind > 3 {
			give := ratelimit.Give{Buckets: buckets, Cost: cost, Now: now, Charged: charged, SlotID: slot, Record: "r"}
			if kind > 3 {
				give.Ends = []ratelimit.End{ratelimit.Settled, ratelimit.Undone}[kind-4]
			}
			got, err = store.Give(t.Context(), give)
			next, want, corrupt = give.Decide(stored)
		} else {
			take := ratelimit.Take{Buckets: buckets, Cost: cost, Now: now, SlotID: slot, Record: "r", Peek: kind == 1, Pending: kind == 2}
			got, err = store.Take(t.Context(), take)
			next, want, corrupt = take.Decide(stored)
			if told, err := take.Outcome(stored); (err != nil) != (corrupt != nil) || err == nil && (told.Allowed != want.Allowed || !slices.Equal(told.Verdicts, want.Verdicts)) {
				t.Errorf("%q: told %+v, %v; want %+v, %v", before, told, err, want, corrupt)
			}
		}
		after := slices.Clone(before)
		for i := range next.States {
			if p := next.States[i].Packed; p != nil {
				after[i] = p
			}
		}
		if p := next.Record.Packed; p != nil || next.Record.Gone {
			after[2] = p
		}
		if corrupt != nil {
			after = before
		}
		if (err != nil) != (corrupt != nil) || err == nil && (got.Allowed != want.Allowed || !slices.Equal(got.Verdicts, want.Verdicts)) {
			t.Errorf("%q: got %+v, %v; want %+v, %v", before, got, err, want, corrupt)
		}
		if there := at.content(t); !slices.EqualFunc(there, after, bytes.Equal) {
			t.Errorf("%+v, %+v: %q became %q, want %q", buckets[0].Rule, buckets[1].Rule, before, there, after)
		}
	})
}

// ruleWithin is a rule of the numbers if a policy may have them.
func ruleWithin(a ratelimit.Algorithm, count, per, burst int64) (ratelimit.Rule, bool) {
	rule := ratelimit.Rule{Algorithm: a, Count: count, Per: per, Burst: count}
	if slices.Contains([]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.LeakyBucket}, a) {
		rule.Burst = burst
	}
	largest := int64(1_000_000_000)
	if a == ratelimit.SlidingWindowLog || a == ratelimit.Concurrency {
		largest = ratelimit.MaxEntries
	}
	const maxPer, maxRefill = 366 * 86_400_000_000, 36_600 * 86_400_000_000
	return rule, count >= 1 && count <= largest && per >= 1000 && per <= maxPer && rule.Burst >= 1 && rule.Burst <= 1_000_000_000 &&
		float64(rule.Burst)*float64(per) <= maxRefill*float64(count)
}

// written is what the script may keep: exact numbers, or two of them and a slot, any times.
var written = regexp.MustCompile(`^[12]((:(0|[1-9]\d{0,15}))*|(:(0|[1-9]\d{0,15}):(0|[1-9]\d{0,15}):[^:]+)*)$`)

var ruleText = regexp.MustCompile(`^(0|[1-9]\d{0,15}):(0|[1-9]\d{0,15})$`)

// isWritten reports whether the script may keep that.
func isWritten(v []byte) bool {
	const head = 1 + 8 + 8 + 4
	if len(v) <= head || v[0] != '3' {
		return written.Match(v)
	}
	for at := 1; at < 17; at += 8 {
		f := math.Float64frombits(binary.LittleEndian.Uint64(v[at:]))
		if !(f >= 0 && f < 1<<53) || f != math.Trunc(f) {
			return false
		}
	}
	return ruleText.Match(v[head:])
}

// FuzzScriptArguments sends the script any words at all. What it does not answer, or
// answers as not done, has changed nothing; what it keeps are exact numbers.
func FuzzScriptArguments(f *testing.F) {
	source, err := os.ReadFile("decide.lua")
	if err != nil {
		f.Fatal(err)
	}
	script := redis.NewScript(string(source))
	client, prefix := dial(f, engine.Redis(f).Addr), engine.FreshPrefix()
	at := shelf{client, []string{prefix + "{a}1", prefix + "{a}2", prefix + "{a}r"}}
	for _, words := range []string{
		"take|1790000000100000|10:1000000|1000000|300000|debt||10:1000000|10|3|fixed||0|s|600000000",
		"give|1790000000100000|10:1000000|10|3|counter||10:1000000|10|3|log||0|s|600000000",
		"undone|1790000000100000|10:1000000|10|3|slots||10:1000000|1000000|300000|leaky||1790000000000000|s|600000000",
		"take|nan|10:1000000|inf|-inf|debt|nan:0x10|nan:0|nan|-3|fixed||nan|s|inf",
		"take|1790000000100000|10:1000000|1000000|1|debt||10:1000000|1e300|1e299|debt||0|s|600000000",
		"take|1790000000100000|10:1000000|9e15|9e15|debt|0:0.5|10:1e300|10|3|slots||0|s|600000000",
		"take|1790000000100000|10:1000000|9e15|9e14|debt|0:4294967296|10:1000000|9e15|1e14|debt|0:9|0|s|600000000",
		"take|1790000000100000|10:1000000|10|0.5|fixed||1e300:1000000|1e300|1e17|fixed||0|s|1e300",
		"hold|1790000000100000|10:1000000|1000000|300000|debt||10:1000000|1000000|300000|leaky||0|s|600000000",
		"settled|1790000000100000|10:1000000|1000000|300000|debt||10:1000000|10|3|slots||1790000000000000|s|600000000",
		"settled|1790000000100000|10:1000000|1e300|1e299|debt|0:0.5|nan|s|600000000",
		"take|1|10:1000000|10|0.5|log||10:0|10|3|counter||0|s|1",
		"take|1790000000100000|10:1000000|1000000|300000|10:1000000|1000000|1|7:1000000|1000000|0",
		"take|1790000000100000|10:1000000|1000000|0.5|10:1000000|1000000|1|7:1000000|1000000|0",
		"take|1790000000100000|10:1000000|1000000|1|10:1000000|1000000|-1|7:1000000|1000000|1",
		"give|1790000000100000|10:1000000|1000000|300000|10:1000000|inf|nan|7:1000000|1000000|0.5",
		"hold|nan|10:1000000|1e300|1e299|10:1000000|9e15|9e15|7:1000000|1000000|-1",
		"take|1790000000100000", "", "a|||s|||||||||", "undone|0||s|0",
	} {
		for i, state := range fuzzedStates {
			f.Add(state, fuzzedStates[(i+1)%len(fuzzedStates)], "", words)
			f.Add("", "", state, words)
		}
	}
	f.Fuzz(func(t *testing.T, first, second, record, words string) {
		at.fill(t, []byte(first), []byte(second), []byte(record))
		before := at.content(t)
		args := strings.Split(words, "|")
		if len(args) > 2 {
			width := 5
			if len(args) == 2+3*len(at.keys) {
				width = 3
			}
			rules, rest := args[2:2+(len(args)-2)/width*width], args[2+(len(args)-2)/width*width:]
			if len(rest) > 1 && (rest[1] == "" || strings.Contains(rest[1], ":")) {
				t.Skip() // no such slot reaches a store
			}
			for rule := range slices.Chunk(rules, width) {
				if (width == 3 || rule[3] == "debt" || rule[3] == "leaky") && !ruleText.MatchString(rule[0]) {
					t.Skip() // and no such rule, which is kept as it comes
				}
			}
		}
		reply, err := script.Run(t.Context(), client, at.keys, toAny(args)...).Slice()
		done := err == nil && len(reply) > 0 && reply[0] == int64(1)
		for i, v := range at.content(t) {
			if bytes.Equal(v, before[i]) || v == nil && done && args[0] == "undone" { // it forgets a record
				continue
			}
			if !done {
				t.Errorf("%q answers %v, %v, and has changed %q to %q", args, reply, err, before[i], v)
			}
			if !isWritten(v) {
				t.Errorf("%q keeps %q", args, v)
			}
		}
	})
}

func toAny(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}
