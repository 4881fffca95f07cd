package redislimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// genRule draws from the whole range that a policy may have.
func genRule(r *rapid.T, a ratelimit.Algorithm) ratelimit.Rule {
	const maxPer, maxRefill = 366 * 86_400_000_000, 36_600 * 86_400_000_000
	largest := int64(1_000_000_000)
	if a == ratelimit.SlidingWindowLog || a == ratelimit.Concurrency {
		largest = ratelimit.MaxEntries
	}
	number := func(name string) int64 {
		return rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1, largest), rapid.Just(largest)).Draw(r, name)
	}
	rule := ratelimit.Rule{
		Algorithm: a, Count: number("count"),
		Per: rapid.OneOf(rapid.SampledFrom([]int64{1000, 1_000_000, maxPer}), rapid.Int64Range(1000, maxPer)).Draw(r, "per"),
	}
	rule.Burst = rule.Count
	if slices.Contains([]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.GCRA, ratelimit.LeakyBucket}, a) {
		rule.Burst = number("burst")
		for float64(rule.Burst)*float64(rule.Per) > maxRefill*float64(rule.Count) {
			rule.Burst = (rule.Burst + 1) / 2
		}
	}
	return rule
}

// The script answers and stores byte for byte what the transition does, over the
// whole range of rules.
func TestScriptIsTheTransition(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	for _, a := range []ratelimit.Algorithm{
		ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter,
		ratelimit.SlidingWindowLog, ratelimit.LeakyBucket, ratelimit.Concurrency,
	} {
		t.Run(string(a), func(t *testing.T) {
			allowed, refused, ended := 0, 0, 0
			rapid.Check(t, func(r *rapid.T) {
				prefix := engine.FreshPrefix()
				store := redislimit.New(client, redislimit.Options{Prefix: prefix, TakesNow: true})
				bucket := ratelimit.Bucket{Key: "k", Rule: genRule(r, a), Tag: "tag"}
				var packed []byte
				now, charged := int64(2_000_000_000_000_000), int64(0)
				var pending []ratelimit.Give // what ends them
				for i := range rapid.IntRange(1, 15).Draw(r, "calls") {
					now += rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64Range(0, bucket.Rule.Per/4), rapid.Int64Range(-bucket.Rule.Per/8, bucket.Rule.Per*2), rapid.Int64Range(0, 4_000_000)).Draw(r, "pause")
					cost := rapid.OneOf(rapid.Int64Range(1, min(3, bucket.Rule.Burst)), rapid.Int64Range(1, bucket.Rule.Burst)).Draw(r, "cost")
					stored := ratelimit.Stored{Packed: [][]byte{packed}}
					var got, want ratelimit.Outcome
					var next ratelimit.Next
					var err, wrong error
					switch call := rapid.IntRange(0, 6).Draw(r, "call"); {
					case call == 1 && len(pending) > 0:
						give := pending[0]
						pending = pending[1:]
						give.Now, give.Ends = now, rapid.SampledFrom([]ratelimit.End{ratelimit.Settled, ratelimit.Undone}).Draw(r, "end")
						ended++
						got, err = store.Give(t.Context(), give)
						next, want, wrong = give.Decide(stored)
					case call == 0:
						give := ratelimit.Give{Buckets: []ratelimit.Bucket{bucket}, Cost: cost, Now: now, SlotID: fmt.Sprint("s", i/2), Charged: rapid.SampledFrom([]int64{0, charged}).Draw(r, "charged")}
						got, err = store.Give(t.Context(), give)
						next, want, wrong = give.Decide(stored)
					default:
						take := ratelimit.Take{Buckets: []ratelimit.Bucket{bucket}, Cost: cost, Now: now, SlotID: fmt.Sprint("s", i), Pending: rapid.Bool().Draw(r, "pending")}
						got, err = store.Take(t.Context(), take)
						next, want, wrong = take.Decide(stored)
						charged = now
						if want.Allowed && take.Pending {
							pending = append(pending, ratelimit.Give{Buckets: take.Buckets, Cost: cost, SlotID: take.SlotID, Charged: now})
						}
					}
					if err != nil || wrong != nil {
						r.Fatal(err, wrong)
					}
					if want.Allowed {
						allowed++
					} else {
						refused++
					}
					if got.Allowed != want.Allowed || !slices.Equal(got.Verdicts, want.Verdicts) {
						r.Fatalf("call %d of %+v at %d: got %+v, want %+v", i, bucket.Rule, now, got, want)
					}
					if next.States[0].Packed != nil {
						packed = next.States[0].Packed
					}
					there, err := client.Get(t.Context(), bucket.Type().Tagged(prefix, "tag", "k")).Bytes()
					if err != nil && !errors.Is(err, redis.Nil) || !bytes.Equal(there, packed) {
						r.Fatalf("call %d of %+v at %d: Redis has %q, %v; want %q", i, bucket.Rule, now, there, err, packed)
					}
				}
			})
			if allowed == 0 || refused == 0 || ended == 0 {
				t.Errorf("%d allowed, %d refused, %d ended: one side was never tested", allowed, refused, ended)
			}
		})
	}
}

func bucketOf(key string, count int64, per time.Duration, burst int64) ratelimit.Bucket {
	return ratelimit.Bucket{Key: key, Tag: "tag", Rule: ratelimit.Rule{Algorithm: ratelimit.TokenBucket, Count: count, Per: per.Microseconds(), Burst: burst}}
}

// A bucket that refuses after a change to a slower rate is kept for as long as that needs.
func TestARefusalLastsAfterASlowerRate(t *testing.T) {
	store := redislimit.New(dial(t, engine.Redis(t).Addr), redislimit.Options{Prefix: engine.FreshPrefix()})
	for try := range 20 {
		charge := func(per time.Duration) ratelimit.Outcome {
			return take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf(fmt.Sprint(try), 10, per, 10)}, Cost: 10})
		}
		charge(200 * time.Millisecond)
		if charge(time.Hour).Allowed { // so late that all had come back
			continue
		}
		time.Sleep(250 * time.Millisecond)
		if out := charge(time.Hour); out.Allowed {
			t.Errorf("it passed before the wait that was told: %+v", out)
		}
		return
	}
	t.Error("this machine is too slow")
}

func take(t testing.TB, s ratelimit.Store, take ratelimit.Take) ratelimit.Outcome {
	t.Helper()
	out, err := s.Take(t.Context(), take)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every key has a TTL, set by the write itself: the time until it means nothing,
// rounded up. One that somebody robbed of its TTL gets one again.
func TestR31R39R40R43R49EveryKeyExpires(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix})
	window := func(a ratelimit.Algorithm) ratelimit.Bucket {
		return ratelimit.Bucket{Key: string(a), Tag: "tag", Rule: ratelimit.Rule{Algorithm: a, Count: 10, Per: time.Hour.Microseconds(), Burst: 10}}
	}
	for _, c := range []struct {
		bucket    ratelimit.Bucket
		least, at time.Duration
	}{
		{bucketOf("thirds", 3, 100*time.Second, 1), 20 * time.Second, 33_334 * time.Millisecond},
		{bucketOf("quarters", 1, 15*time.Minute, 1), 14 * time.Minute, 15 * time.Minute},
		{bucketOf("century", 1, 366*24*time.Hour, 100), 365 * 24 * time.Hour, 366 * 24 * time.Hour},
		{window(ratelimit.FixedWindow), 0, time.Hour},
		{window(ratelimit.SlidingWindowCounter), 59 * time.Minute, 2 * time.Hour},
		{window(ratelimit.SlidingWindowLog), 59 * time.Minute, time.Hour},
		{window(ratelimit.Concurrency), 59 * time.Minute, time.Hour},
	} {
		key := c.bucket.Type().Tagged(prefix, "tag", c.bucket.Key)
		expires := func(why string) {
			t.Helper()
			ttl, err := client.PTTL(t.Context(), key).Result()
			if c.least == 0 && ttl == gone {
				return // its window has just ended
			}
			if err != nil || ttl < c.least || ttl > c.at {
				t.Errorf("%s: %s lives for %v, %v; want %v to %v", c.bucket.Key, why, ttl, err, c.least, c.at)
			}
		}
		charge := ratelimit.Take{Buckets: []ratelimit.Bucket{c.bucket}, Cost: 1, SlotID: "s", Record: "record " + c.bucket.Key}
		take(t, store, charge)
		expires("charged")
		if err := client.Persist(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Give(t.Context(), ratelimit.Give{Buckets: charge.Buckets, Cost: 1, SlotID: "s"}); err != nil {
			t.Fatal(err)
		}
		charge.Record += "2"
		take(t, store, charge)
		expires("robbed of its TTL and charged again")
	}
	for _, key := range keys(t, client, prefix) {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 && ttl != gone {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
}

// gone is the TTL of a key that is not there any more.
const gone = -2

func keys(t *testing.T, client *redis.Client, prefix string) []string {
	t.Helper()
	var found []string
	for it := client.Scan(t.Context(), 0, prefix+"*", 1000).Iterator(); it.Next(t.Context()); {
		found = append(found, it.Val())
	}
	if len(found) == 0 {
		t.Fatal("no key at all")
	}
	return found
}

// Every key belongs to a type, and the keys of one policy share their hash tag.
func TestEveryKeyHasItsType(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	policy := ratelimit.Policy{Name: "p", Posture: ratelimit.FailOpen, Stage: ratelimit.Enforce, Slot: []string{"shop"}, Limits: []ratelimit.Limit{
		{Name: "user", Key: []string{"shop", "user"}, Algorithm: ratelimit.TokenBucket, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: time.Hour}, Burst: 9}},
		{Name: "shop", Key: []string{"shop"}, Algorithm: ratelimit.SlidingWindowLog, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 9, Per: time.Hour}}},
		{Name: "jobs", Key: []string{"shop"}, Algorithm: ratelimit.Concurrency, Numbers: ratelimit.Numbers{Slots: 9, SlotTTL: time.Hour}},
		{Name: "all", Key: []string{"region"}, Algorithm: ratelimit.FixedWindow, Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 9, Per: 24 * time.Hour}}},
	}}
	limits, err := ratelimit.New(redislimit.New(client, redislimit.Options{Prefix: prefix}), []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := limits.Check(t.Context(), "acme", ratelimit.Request{Policy: "p", Cost: 1, RequestID: "q", Descriptors: map[string]string{"shop": "{}{x}", "user": "a b", "region": "eu"}})
	if err != nil || !d.Allowed || d.Source != redislimit.Redis || d.SlotID == "" {
		t.Fatalf("got %+v, %v", d, err)
	}
	types, tags := map[string]int{}, map[string]int{}
	for _, key := range keys(t, client, prefix) {
		kind, parts, ok := keytype.SplitTagged(prefix, key)
		if policy := kind != keytype.ChargeRequest; !ok || parts[0] != "acme" || policy && parts[1] != "p" {
			t.Errorf("%q belongs to no type", key)
			continue
		}
		types[kind.Name]++
		tag, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "}")
		tags[tag]++
	}
	if fmt.Sprint(types) != "map[charge_request:3 concurrency_slot:1 rate_bucket:3]" || len(tags) != 3 {
		t.Errorf("types %v, tags %v", types, tags)
	}
}

// A script that the server has forgotten is sent again, and nobody notices.
func TestR46ScriptFlush(t *testing.T) {
	server := engine.StartRedis(t)
	client := dial(t, server.Addr)
	store := redislimit.New(client, redislimit.Options{})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 10)}, Cost: 1}
	for i := range int64(5) {
		if out := take(t, store, charge); out.Verdicts[0].Remaining != 9-i {
			t.Errorf("got %+v", out)
		}
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Without an instant of the test the server's clock decides, in microseconds.
func TestServerTime(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, 2*time.Second, 1)}, Cost: 1, Now: 1}
	take(t, store, charge)
	out := take(t, store, charge)
	if wait := out.Verdicts[0].Wait; out.Allowed || wait <= 0 || wait > 2*time.Second {
		t.Fatalf("got %+v", out)
	}
	time.Sleep(out.Verdicts[0].Wait)
	if out := take(t, store, charge); !out.Allowed {
		t.Errorf("refused after the wait: %+v", out)
	}
}

// A limit in another slot that refuses leaves no charge in the first.
func TestOtherSlotRefuses(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	leftovers := 0
	store := redislimit.New(client, redislimit.Options{Prefix: prefix, Leftover: func() { leftovers++ }})
	far := bucketOf("far", 1, time.Hour, 2)
	far.Tag = "elsewhere"
	slots := ratelimit.Bucket{Key: "slots", Tag: "tag", Rule: ratelimit.Rule{Algorithm: ratelimit.Concurrency, Count: 10, Per: 60_000_000, Burst: 10}}
	near := bucketOf("near", 1, time.Hour, 10)
	charge := func(id string) ratelimit.Outcome {
		return take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{near, far, slots}, Cost: 1, SlotID: "s" + id, Record: id})
	}
	for i := range int64(2) {
		if out := charge(fmt.Sprint(i)); !out.Allowed || out.Verdicts[0].Remaining != 9-i || out.SlotID == "" {
			t.Errorf("got %+v", out)
		}
	}
	for range 2 {
		out := charge("refused")
		if v := out.Verdicts; out.Allowed || v[0].Remaining != 8 || v[1].Remaining != 0 || v[2].Remaining != 8 || v[1].Wait == 0 || out.SlotID != "" {
			t.Errorf("refused elsewhere: got %+v", out)
		}
	}
	far.Rule.Burst = 3
	if out := charge("refused"); !out.Allowed || out.Verdicts[0].Remaining != 7 || out.Verdicts[2].Remaining != 7 {
		t.Errorf("the same request once there is room: got %+v", out)
	}
	if out := charge("refused"); !out.Allowed || out.Verdicts[0].Remaining != 7 || out.Verdicts[1].Remaining != 0 {
		t.Errorf("and again: got %+v", out)
	}
	if leftovers != 0 {
		t.Errorf("%d leftovers", leftovers)
	}
}

// A looking client asks for the TTL of a key in the transaction that writes it, so
// that no time passes between the two.
type looking struct {
	*redis.Client
	key     string
	longest time.Duration
}

func (l *looking) Process(ctx context.Context, cmd redis.Cmder) error {
	var ttl *redis.DurationCmd
	_, err := l.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		_ = tx.Process(ctx, cmd)
		ttl = tx.PTTL(ctx, l.key)
		return nil
	})
	l.longest = max(l.longest, ttl.Val())
	return err
}

// A third of a second is 334 ms, or the bucket would be full too early. The instant
// of a test keeps the key an hour longer, and the largest of many looks is that
// before any time has passed.
func TestR40R49ExpiryIsRoundedUp(t *testing.T) {
	client, prefix := &looking{Client: dial(t, engine.Redis(t).Addr)}, engine.FreshPrefix()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix, TakesNow: true})
	for per, want := range map[time.Duration]time.Duration{
		time.Second:                        334 * time.Millisecond,
		3*time.Second + 1*time.Microsecond: 1001 * time.Millisecond, // a third of a microsecond more than a second
	} {
		client.longest = 0
		for i := range 50 {
			bucket := bucketOf(fmt.Sprint(per, i), 3, per, 1)
			client.key = bucket.Type().Tagged(prefix, "tag", bucket.Key)
			take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{bucket}, Cost: 1, Now: 2_000_000_000_000_000})
		}
		if want += time.Hour; client.longest != want {
			t.Errorf("3 in %v: lives for %v, want %v", per, client.longest, want)
		}
	}
}
