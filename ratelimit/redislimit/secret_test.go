package redislimit_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// With a secret no id that a caller sent stands in Redis, under no key and in no value, all
// keys are short however long the ids are, and two nodes of one secret count together.
func TestR60R61SecretHidesWhatKeysAreMadeOf(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	options := redislimit.Options{Prefix: prefix, Secret: []byte("32 bytes, the same on all nodes.")}
	limit := func(name string, a ratelimit.Algorithm, n ratelimit.Numbers, key ...string) ratelimit.Limit {
		return ratelimit.Limit{Name: name, Key: key, Algorithm: a, Numbers: n}
	}
	rate := ratelimit.Rate{Count: 1, Per: 24 * time.Hour}
	policy := ratelimit.Policy{Name: "policy", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce, Slot: []string{"user"}, Limits: []ratelimit.Limit{
		limit("one", ratelimit.TokenBucket, ratelimit.Numbers{Rate: rate, Burst: 2}, "user", "card"),
		limit("two", ratelimit.Concurrency, ratelimit.Numbers{Slots: 2, SlotTTL: time.Hour}, "user"),
		limit("far", ratelimit.SlidingWindowLog, ratelimit.Numbers{Rate: ratelimit.Rate{Count: 5, Per: time.Hour}}, "card"),
	}}
	node := func() *ratelimit.Limiter {
		limits, err := ratelimit.New(redislimit.New(client, options), []ratelimit.Policy{policy}, ratelimit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return limits
	}
	secrets := []string{"tenant-canary", "user-canary", "card-canary", "request-canary"}
	long := strings.Repeat("-", 240)
	ask := ratelimit.Request{Policy: "policy", Cost: 1, RequestID: secrets[3], Descriptors: map[string]string{"user": secrets[1] + long, "card": secrets[2] + long}}
	for i, want := range []int64{1, 1, 0} {
		if i == 2 {
			ask.RequestID += "2"
		}
		d, err := node().Check(t.Context(), secrets[0]+long, ask)
		if err != nil || !d.Allowed || d.Limits[0].Remaining != want {
			t.Fatalf("check %d: got %+v, %v", i+1, d, err)
		}
	}
	secrets = append(secrets, contentOf(t, client, policy, secrets[0]+long, ask))
	ask.Cost = 2
	if _, err := node().Check(t.Context(), secrets[0]+long, ask); !errors.Is(err, ratelimit.ErrMismatch) {
		t.Errorf("got %v", err)
	}
	there := keys(t, client, prefix)
	for _, key := range there {
		value, err := client.Get(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range secrets {
			if strings.Contains(key+value, secret) {
				t.Errorf("%q %q tells of %s", key, value, secret)
			}
		}
		if kind, parts, ok := keytype.SplitTagged(prefix, key); !ok || parts != nil || len(key)-len(prefix) != len("{123456}b:1234567890123456") {
			t.Errorf("%q is of %v, %t", key, kind, ok)
		}
	}
	one := ratelimit.Bucket{Key: keytype.RateBucket.Key("t", "p", "l", "debt", "d"), Tag: "tag"}
	take(t, redislimit.New(client, options), ratelimit.Take{Buckets: []ratelimit.Bucket{{Key: one.Key, Tag: one.Tag, Rule: bucketOf("", 1, time.Hour, 1).Rule}}, Cost: 1})
	if n, err := client.Exists(t.Context(), redislimit.NameOf(one, options)).Result(); n != 1 || err != nil {
		t.Errorf("%q is not there: %v", redislimit.NameOf(one, options), err)
	}
	if len(there) != 3+2*3 { // for each id: what it is tied to, and a record in either slot
		t.Errorf("%d keys: %q", len(there), there)
	}
	options.Secret = []byte("another secret of 32 bytes......")
	if d, err := node().Check(t.Context(), secrets[0]+long, ask); err != nil || d.Limits[0].Remaining != 0 || !d.Allowed {
		t.Errorf("under another secret: %+v, %v", d, err)
	}
	options.Secret = []byte("too short")
	defer func() {
		if recover() == nil {
			t.Error("a short secret is accepted")
		}
	}()
	node()
}

// contentOf is what a store without a secret ties the request's id to.
func contentOf(t *testing.T, client *redis.Client, policy ratelimit.Policy, tenant string, ask ratelimit.Request) string {
	t.Helper()
	prefix := engine.FreshPrefix()
	limits, err := ratelimit.New(redislimit.New(client, redislimit.Options{Prefix: prefix}), []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limits.Check(t.Context(), tenant, ask); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys(t, client, prefix) {
		if kind, parts, _ := keytype.SplitTagged(prefix, key); kind == keytype.ChargeRequest && parts[2] == "" {
			value := client.Get(t.Context(), key).Val()
			return value[strings.LastIndexByte(value, ':')+1:]
		}
	}
	t.Fatal("the id is tied to nothing")
	return ""
}

// What a key takes on Redis where a secret hides its name and there is no prefix, as with
// the service's own settings: docs/algorithms.md says so. Token buckets and GCRA stay
// within 140 bytes, full or used up.
func TestBytesPerHiddenKey(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	options := redislimit.Options{Secret: []byte(rand.Text())}
	store := redislimit.New(client, options)
	rule := func(a ratelimit.Algorithm, count int64, per time.Duration) ratelimit.Rule {
		return ratelimit.Rule{Algorithm: a, Count: count, Per: per.Microseconds(), Burst: count}
	}
	for i, c := range []struct {
		rule ratelimit.Rule
		cost int64
		most int64
	}{
		{rule(ratelimit.TokenBucket, 100, time.Hour), 1, 140},
		{rule(ratelimit.TokenBucket, 100, time.Hour), 100, 140},
		{rule(ratelimit.TokenBucket, 999_999, 24*time.Hour), 999_998, 140},
		{rule(ratelimit.GCRA, 100, time.Hour), 1, 140},
		{rule(ratelimit.GCRA, 10_007, 24*time.Hour), 10_005, 140},
		{rule(ratelimit.FixedWindow, 100, time.Hour), 1, 200},
		{rule(ratelimit.SlidingWindowCounter, 100, time.Hour), 1, 200},
		{rule(ratelimit.SlidingWindowLog, 100, time.Hour), 1, 200},
		{rule(ratelimit.LeakyBucket, 100, time.Hour), 1, 200},
		{rule(ratelimit.Concurrency, 100, time.Hour), 1, 200},
	} {
		bucket := ratelimit.Bucket{Key: fmt.Sprintf("%01000d", i), Tag: "tag", Rule: c.rule}
		take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{bucket}, Cost: c.cost, SlotID: "slt_ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
		key := redislimit.NameOf(bucket, options)
		bytes, err := client.MemoryUsage(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %d of %d: %d bytes, %d of them the name", c.rule.Algorithm, c.cost, c.rule.Burst, bytes, len(key))
		if bytes > c.most {
			t.Errorf("%s, %d of %d: %d bytes", c.rule.Algorithm, c.cost, c.rule.Burst, bytes)
		}
		client.Del(t.Context(), key)
	}
}

// Whatever stands where an id is tied to its request, the store says what the transition says.
func TestWhatAnIDIsTiedToCanBeAnything(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	store := redislimit.New(client, redislimit.Options{Prefix: prefix, TakesNow: true})
	const now = 1_790_000_000_000_000
	charge := ratelimit.Take{
		Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 1_000_000)}, Cost: 1, Now: now,
		Bind: ratelimit.Bind{Key: "id", Content: "this"},
	}
	key := keytype.ChargeRequest.Tagged(prefix, "id", "id")
	for _, bound := range []string{
		"1:1790000000000000:this", "1:1790000000000000:that", "1:1789999400000000:that", "1:1789999400000001:that", "1:1789999400000001:this",
		"1:1800000000000000:that", "1:0:that", "junk", "1", "1:", "1::that", "1:5", "1:5:", "1:5:a:b", "2:1790000000000000:this", "1:x:this",
		"1:00000000000000005:this", "1:0000000000000005:that", "1:-5:this", " 1:5:this",
	} {
		client.Set(t.Context(), key, bound, 0)
		_, want, corrupt := charge.Decide(ratelimit.Stored{Bound: []byte(bound), Packed: make([][]byte, 1)})
		got, err := store.Take(t.Context(), charge)
		if got.Mismatch != want.Mismatch || (err != nil) != (corrupt != nil) || err != nil && !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%q: got %+v, %v; want %+v, %v", bound, got, err, want, corrupt)
		}
		if after := client.Get(t.Context(), key).Val(); (corrupt != nil || want.Mismatch) && after != bound {
			t.Errorf("%q became %q", bound, after)
		}
		if ttl := client.PTTL(t.Context(), key).Val(); client.Get(t.Context(), key).Val() != bound && ttl < 10*time.Minute {
			t.Errorf("%q: what was tied anew is kept for %v", bound, ttl)
		}
	}
}
