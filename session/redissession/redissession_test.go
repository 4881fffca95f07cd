package redissession_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// The script and the transition are driven with the same random records and
// questions. They must agree on each verdict and on what a use leaves behind.
func TestScriptJudgesAsTheTransition(t *testing.T) {
	n, now := dial(t), newClock()
	cache := n.cache(t, now.Now)
	found, reasons, i := map[session.Found]int{}, map[session.Reason]int{}, 0
	rapid.Check(t, func(rt *rapid.T) {
		i++
		base := time.UnixMilli(1_700_000_000_000 + rapid.Int64Range(0, 999).Draw(rt, "base")).UTC()
		// Redis may be off by any time from those who wrote the records and ask.
		off := time.Duration(rapid.SampledFrom([]int64{0, 0, -60_000, 600_000}).Draw(rt, "off")) * time.Millisecond
		u, r := drawUser(rt), drawRecord(rt, base)
		k := session.Key{Tenant: u.Tenant, Tag: tag, ID: fmt.Sprintf("%022d", i)}
		k.Tag = fmt.Sprintf("%022d", i)
		chk := base.Add(off).UnixMilli()
		now.ms.Store(chk + rapid.SampledFrom([]int64{0, 0, 4_999, 5_000}).Draw(rt, "fill"))
		kept, _, err := cache.Fill(t.Context(), session.Fill{Key: k, Now: now.Now().Add(-off).UnixMilli(), User: u, Record: r, At: chk}, terms)
		if err != nil || !kept {
			rt.Fatalf("fill: %v, %v", kept, err)
		}
		cached := cachedCopy{u: u, r: r, durable: r.Seen, chk: chk}
		if asked := now.Now().Add(-off).UnixMilli(); r.Absolute <= asked || r.Seen+r.Idle+d(r.Idle) <= asked {
			cached.r = session.Record{}
		}
		for range rapid.IntRange(10, 40).Draw(rt, "questions") {
			now.pass(time.Duration(rapid.OneOf(rapid.Int64Range(-300, 600), rapid.Int64Range(-300, 600), rapid.Int64Range(0, 6_000)).Draw(rt, "ms")) * time.Millisecond)
			op := drawOp(rt, k, u, r, now.Now().Add(-off))
			// The keys lapse by the server's own clock, the script judges by the test's.
			n.Persist(t.Context(), keytype.UserEpoch.CacheKey(n.prefix, k.Tag))
			n.Persist(t.Context(), keytype.Session.CacheKey(n.prefix, k.Tag, k.ID))
			want := cached.verify(op, now.ms.Load())
			got, err := cache.Verify(t.Context(), op, terms)
			if err != nil {
				rt.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				rt.Fatalf("at chk%+d the script says\n%+v, the transition\n%+v\nfor %+v", now.ms.Load()-chk, got, want, op)
			}
			found[got.Found]++
			if got.Found != session.FoundNothing {
				reasons[got.Reason]++
			}
		}
	})
	t.Logf("%v %v", found, reasons)
	for _, f := range []session.Found{session.FoundNothing, session.FoundFresh, session.FoundStale} {
		if found[f] == 0 {
			t.Errorf("no question was answered with %d", f)
		}
	}
	for _, reason := range []session.Reason{"", session.Revoked, session.Epoch, session.Disabled, session.Expired, session.AAL, session.AuthAge} {
		if reasons[reason] == 0 {
			t.Errorf("no question was answered with %q", reason)
		}
	}
}

func d(idle int64) int64 { return session.DurableTracking(idle).Every }

// A cachedCopy is the cache's contract for one session, by the transition.
type cachedCopy struct {
	u       session.User
	r       session.Record
	durable int64
	chk     int64
}

func (c *cachedCopy) verify(op session.VerifyOp, told int64) session.Cached {
	at := op.Now.UnixMilli()
	age := time.Duration(told-c.chk) * time.Millisecond
	none := session.Cached{At: told, Version: c.u.Version}
	if age >= terms.Fresh+terms.Stale {
		return session.Cached{At: told}
	}
	if c.r.State == "" {
		return none
	}
	_, v := session.Verify(c.u, c.r, op, session.CacheTracking(c.r.Idle))
	if v.Reason == session.Unknown || v.Reason == session.Rotated || v.Reason == session.IdleExpired {
		return none
	}
	got := session.Cached{Found: session.FoundStale, At: told, Version: c.u.Version, Reason: v.Reason, User: c.u, Record: c.r}
	got.User.Creates = 0
	if age < terms.Fresh {
		got.Found = session.FoundFresh
		if v.Active && !op.NoTouch {
			if got.TouchDurably = at-c.durable >= d(c.r.Idle); got.TouchDurably {
				c.durable = at
			}
			if got.TouchDurably || at-c.r.Seen >= session.CacheTracking(c.r.Idle).Every {
				c.r.Seen = max(c.r.Seen, at)
			}
		}
	}
	got.Record.Seen, got.DurableSeen = c.r.Seen, c.durable
	return got
}

func drawUser(t *rapid.T) session.User {
	u := session.User{
		Tenant: rapid.SampledFrom([]string{"acme", "a b:c", "4:acme"}).Draw(t, "tenant"),
		User:   rapid.SampledFrom([]string{"ann", "1 2 3", "ä%d\u200b{}*"}).Draw(t, "user"),
		// 2^53 is where a script's numbers end.
		SessionVersion:  2,
		PermissionEpoch: rapid.Int64Range(1, 2).Draw(t, "pv"),
		Disabled:        rapid.IntRange(0, 9).Draw(t, "disabled") == 0,
		Version:         rapid.SampledFrom([]int64{1, 7, 1<<53 - 1}).Draw(t, "ver"),
	}
	return u
}

func drawRecord(t *rapid.T, base time.Time) session.Record {
	at := base.UnixMilli() - rapid.Int64Range(0, 2_000).Draw(t, "age")
	absolute := rapid.SampledFrom([]int64{500, 8_000, 60_000}).Draw(t, "absolute")
	r := session.Record{
		TokenHash: hash("token"), State: rapid.SampledFrom([]string{session.StateActive, session.StateActive, session.StateActive, session.StateRevoked}).Draw(t, "state"),
		SessionVersion: rapid.SampledFrom([]int64{2, 2, 2, 3}).Draw(t, "se"), PermissionEpoch: 1,
		IssuedAt: at, Absolute: at + absolute, Idle: min(absolute, rapid.SampledFrom([]int64{500, 4_000, 9_999, 600_000}).Draw(t, "idle")),
		Seen: at + rapid.Int64Range(0, 400).Draw(t, "seen"), AAL: rapid.IntRange(1, 3).Draw(t, "aal"), AuthAt: at,
		DeviceID: "a device", IP: "::1", UserAgent: "1 2 3 {\"x\"}", TenantEpoch: rapid.Int64Range(0, 1).Draw(t, "te"),
	}
	if rapid.Bool().Draw(t, "rotated") {
		r.Previous = session.Previous{TokenHash: hash("previous"), AAL: 1, AMR: []string{"pwd"}, AuthAt: at - 3_000, GraceUntil: at + 7_000}
	}
	return r
}

func drawOp(t *rapid.T, k session.Key, u session.User, r session.Record, now time.Time) session.VerifyOp {
	op := session.VerifyOp{Key: k, Now: now, TokenHash: hash("token")}
	switch rapid.IntRange(0, 12).Draw(t, "token") {
	case 0:
		op.TokenHash = hash("forged")
	case 1:
		op.TokenHash = nil
	case 2, 3, 4:
		op.TokenHash = hash("previous")
	}
	op.NoTouch = rapid.IntRange(0, 3).Draw(t, "look") == 0
	op.MinAAL = rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "min")
	op.MaxAuthAge = rapid.SampledFrom([]time.Duration{0, 0, time.Duration(now.UnixMilli()-r.AuthAt) * time.Millisecond, 2 * time.Second}).Draw(t, "max age")
	op.MaxAuthAge = max(0, op.MaxAuthAge)
	op.TenantEpoch = rapid.SampledFrom([]int64{0, 0, 0, 1, 2}).Draw(t, "tenant epoch")
	op.UserID = rapid.SampledFrom([]string{"", "", u.User, u.User, "bob"}).Draw(t, "user")
	if rapid.IntRange(0, 19).Draw(t, "stranger") == 0 {
		op.Tenant = "bolt"
	}
	return op
}

// A step is one thing that happens to the copies, at an instant after the start.
type step struct {
	why  string
	at   time.Duration
	do   string // fill, bump, or a look
	ver  int64
	t0   time.Duration // fill
	kept bool          // fill
	// a look finds:
	found session.Found
	known int64 // the version that no record may be older than
}

const (
	nothing = session.FoundNothing
	fresh   = session.FoundFresh
	stale   = session.FoundStale
)

func TestGuards(t *testing.T) {
	s := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	for name, steps := range map[string][]step{
		"freshness counts from before the read": {
			{why: "nothing is known", do: "look", found: nothing},
			{why: "read at 0", at: s(4.999), do: "fill", ver: 7, kept: true},
			{why: "just fresh", at: s(9.999), do: "look", found: fresh, known: 7},
			{why: "F after t0, not after the fill", at: s(10), do: "look", found: stale, known: 7},
			{why: "the last of its use", at: s(29.999), do: "look", found: stale, known: 7},
			{why: "of no use", at: s(30), do: "look", found: nothing},
		},
		"a read that took too long": {
			{why: "F/2 is just young enough", at: s(5), do: "fill", ver: 7, kept: true},
			{why: "and a moment more is not", at: s(5.001), do: "fill", ver: 8, kept: false},
			{why: "it changed nothing", at: s(5.001), do: "look", found: fresh, known: 7},
			{why: "nor does one from the future", at: s(5.001), do: "fill", t0: s(11), ver: 8, kept: false},
		},
		"S12 an older version never replaces a newer": {
			{why: "a newer one first", do: "fill", ver: 8, kept: true},
			{why: "the slow reader is told to go on", at: s(1), t0: s(1), do: "fill", ver: 7, kept: true},
			{why: "and has changed nothing, not even the age", at: s(9.999), do: "look", found: fresh, known: 8},
			{why: "which was the first one's", at: s(10), do: "look", found: stale, known: 8},
		},
		"an equal version keeps the later instant": {
			{why: "read at 2", at: s(2), t0: s(2), do: "fill", ver: 7, kept: true},
			{why: "one that began earlier", at: s(3), t0: s(0), do: "fill", ver: 7, kept: true},
			{why: "fresh until 12", at: s(11.999), do: "look", found: fresh, known: 7},
			{why: "not longer", at: s(12), do: "look", found: stale, known: 7},
		},
		"S20 a bump is a floor": {
			{why: "fresh", do: "fill", ver: 7, kept: true},
			{why: "a change", at: s(1), do: "bump", ver: 8},
			{why: "the copy is of no use, also in an outage", at: s(1), do: "look", found: nothing, known: 8},
			{why: "a reader from before the change", at: s(4), do: "fill", ver: 7, kept: true},
			{why: "leaves the floor", at: s(4), do: "look", found: nothing, known: 8},
			{why: "the floor holds until its end", at: s(10.999), do: "look", found: nothing, known: 8},
			{why: "then nothing is known", at: s(11), do: "look", found: nothing},
		},
		"a bump where nothing was cached": {
			{why: "a change", at: s(1), do: "bump", ver: 8},
			{why: "a reader from before the change", at: s(4), do: "fill", ver: 7, kept: true},
			{why: "leaves the floor", at: s(4), do: "look", found: nothing, known: 8},
			{why: "a reader from after it", at: s(5), t0: s(2), do: "fill", ver: 8, kept: true},
			{why: "is believed", at: s(5), do: "look", found: fresh, known: 8},
		},
		"a bump makes nothing fresh": {
			{why: "fresh", do: "fill", ver: 7, kept: true},
			{why: "a late bump of the same version", at: s(9), do: "bump", ver: 7},
			{why: "still fresh", at: s(9.999), do: "look", found: fresh, known: 7},
			{why: "no longer than without it", at: s(10), do: "look", found: stale, known: 7},
		},
		"a late bump lowers nothing": {
			{why: "a newer one", do: "fill", ver: 9, kept: true},
			{why: "the late bump", at: s(1), do: "bump", ver: 8},
			{why: "is known already", at: s(2), do: "look", found: fresh, known: 9},
			{why: "an old reader", at: s(2), t0: s(2), do: "fill", ver: 8, kept: true},
			{why: "is not believed", at: s(2), do: "look", found: fresh, known: 9},
		},
		"the floor outlives the record above it": {
			{why: "a change", at: s(24), do: "bump", ver: 8},
			{why: "and one more", at: s(26), do: "bump", ver: 8},
			{why: "the floor is the later one's", at: s(35.999), do: "look", found: nothing, known: 8},
			{why: "and ends", at: s(36), do: "look", found: nothing},
		},
		"a clock that stepped back": {
			{why: "by a clock that is an hour ahead", at: time.Hour, t0: time.Hour, do: "fill", ver: 7, kept: true},
			{why: "set right, the copy is not fresh for an hour", at: s(1), do: "look", found: nothing},
			{why: "a reader is believed", at: s(1), do: "fill", ver: 7, kept: true},
			{why: "from when it began", at: s(9.999), do: "look", found: fresh, known: 7},
			{why: "to its end", at: s(10), do: "look", found: stale, known: 7},
		},
	} {
		t.Run(name, func(t *testing.T) { play(t, steps) })
	}
}

func play(t *testing.T, steps []step) {
	n, now := dial(t), newClock()
	cache, base := n.cache(t, now.Now), now.ms.Load()
	r := record(now.Now())
	r.Absolute, r.Idle, r.Seen = r.IssuedAt+9_000_000, 8_000_000, r.IssuedAt
	for _, s := range steps {
		now.ms.Store(base + s.at.Milliseconds())
		switch s.do {
		case "fill":
			kept, at, err := cache.Fill(t.Context(), session.Fill{Key: key, Now: now.ms.Load(), User: user(s.ver), Record: r, At: base + s.t0.Milliseconds()}, terms)
			must(t, err)
			if kept != s.kept || at != now.ms.Load() {
				t.Errorf("%s: fill: kept %v at %d, want %v", s.why, kept, at-base, s.kept)
			}
		case "bump":
			must(t, cache.Bump(t.Context(), tag, s.ver, terms))
		default:
			got, err := cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token"), VerifyRequest: session.VerifyRequest{NoTouch: true}}, terms)
			must(t, err)
			if got.Found != s.found || got.Version != s.known {
				t.Errorf("%s: found %d by version %d, want %d by %d", s.why, got.Found, got.Version, s.found, s.known)
			}
		}
		n.everyKeyLapses(t)
	}
}

// everyKeyLapses checks all keys under the prefix: named by tag and id only, with a
// TTL, of the format that begins with its number.
func (n node) everyKeyLapses(t testing.TB) {
	t.Helper()
	keys, err := n.Keys(t.Context(), n.prefix+"*").Result()
	must(t, err)
	for _, k := range keys {
		if rest := strings.TrimPrefix(k, n.prefix+"cs:{"); len(rest) != len(k)-len(n.prefix)-4 || !strings.HasSuffix(rest, "}:e") && !strings.Contains(rest, "}:s:") {
			t.Errorf("key %q", k)
		}
		if ttl := n.PTTL(t.Context(), k).Val(); ttl <= 0 {
			t.Errorf("%s lives %s", k, ttl)
		}
		if v := n.Get(t.Context(), k).Val(); !strings.HasPrefix(v, "1 ") && !strings.HasPrefix(v, "2 ") {
			t.Errorf("%s is %q", k, v)
		}
	}
}

// A fill that is believed leaves the floor below it.
func TestFloorOutlivesAFill(t *testing.T) {
	n, now := dial(t), newClock()
	cache, noGrace := n.cache(t, now.Now), session.Terms{Fresh: terms.Fresh}
	at := now.ms.Load()
	now.pass(5 * time.Second)
	must(t, cache.Bump(t.Context(), tag, 8, noGrace))
	_, _, err := cache.Fill(t.Context(), session.Fill{Key: key, Now: now.ms.Load(), User: user(8), Record: record(now.Now()), At: at}, noGrace)
	must(t, err)
	for _, step := range []struct {
		why   string
		after time.Duration
		want  session.Found
		known int64
	}{
		{"fresh", 4_999 * time.Millisecond, fresh, 8},
		{"no longer fresh, still the floor", time.Millisecond, nothing, 8},
		{"to its end", 4_999 * time.Millisecond, nothing, 8},
		{"and then nothing", time.Millisecond, nothing, 0},
	} {
		now.pass(step.after)
		got, err := cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token")}, noGrace)
		must(t, err)
		if got.Found != step.want || got.Version != step.known {
			t.Errorf("%s: %+v", step.why, got)
		}
	}
}

// A session's copy counts only beside the user's record that was read before it.
func TestHitNeedsEqualVersions(t *testing.T) {
	n, now := dial(t), newClock()
	cache := n.cache(t, now.Now)
	fill := func(id string, version int64) {
		k := key
		k.ID = id
		_, _, err := cache.Fill(t.Context(), session.Fill{Key: k, Now: now.ms.Load(), User: user(version), Record: record(now.Now()), At: now.ms.Load()}, terms)
		must(t, err)
	}
	fill(sid, 7)
	fill("other00000000000000000", 8)
	got, err := cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token")}, terms)
	must(t, err)
	if got.Found != nothing || got.Version != 8 {
		t.Errorf("a session read beside an older record: %+v", got)
	}
}

// Each key lives as long as it is of use, a session's to its end at the latest: what
// describes a device is gone soon after its user was erased.
func TestTTLs(t *testing.T) {
	n, now := dial(t), newClock()
	cache := n.cache(t, now.Now)
	ttl := func(what string, cached *keytype.Type, want time.Duration, parts ...string) {
		t.Helper()
		got := n.PTTL(t.Context(), cached.CacheKey(n.prefix, parts...)).Val()
		if got > want || got < want-time.Second {
			t.Errorf("%s: lives %s, want %s", what, got, want)
		}
	}
	at := now.ms.Load()
	r := record(now.Now())
	now.pass(3 * time.Second)
	_, _, err := cache.Fill(t.Context(), session.Fill{Key: key, Now: now.ms.Load(), User: user(7), Record: r, At: at}, terms)
	must(t, err)
	ttl("a user's record ends with its use, counted from before the read", keytype.UserEpoch, 27*time.Second, tag)
	ttl("a session's at idle + D after the last use", keytype.Session, 21*time.Second, tag, sid)
	ttlOfLong := func(what string) { ttl(what, keytype.Session, 30*time.Second, tag, "long000000000000000000") }
	_, err = cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token")}, terms)
	must(t, err)
	ttl("after a use", keytype.Session, 24*time.Second, tag, sid)

	k, long := key, r
	k.ID, long.Absolute, long.Idle = "long000000000000000000", at+session.MaxTTL.Milliseconds(), session.MaxTTL.Milliseconds()
	_, _, err = cache.Fill(t.Context(), session.Fill{Key: k, Now: now.ms.Load(), User: user(7), Record: long, At: at}, terms)
	must(t, err)
	ttlOfLong("no longer than it is of use")
	n.Expire(t.Context(), keytype.Session.CacheKey(n.prefix, tag, k.ID), time.Second)
	now.pass(30 * time.Second)
	_, _, err = cache.Fill(t.Context(), session.Fill{Key: key, Now: now.ms.Load(), User: user(7), At: now.ms.Load()}, terms)
	must(t, err)
	_, err = cache.Verify(t.Context(), session.VerifyOp{Key: k, Now: now.Now(), TokenHash: hash("token")}, terms)
	must(t, err)
	ttlOfLong("and a use grants that anew")

	at = now.ms.Load()
	ending := r
	ending.Absolute = now.ms.Load() + 500
	k.ID = "ending0000000000000000"
	_, _, err = cache.Fill(t.Context(), session.Fill{Key: k, Now: now.ms.Load(), User: user(7), Record: ending, At: at}, terms)
	must(t, err)
	ttl("never past the absolute end", keytype.Session, 500*time.Millisecond, tag, k.ID)
	over := r
	over.Absolute, k.ID = now.ms.Load(), "over000000000000000000"
	_, _, err = cache.Fill(t.Context(), session.Fill{Key: k, Now: now.ms.Load(), User: user(7), Record: over, At: at}, terms)
	must(t, err)
	if n.Exists(t.Context(), keytype.Session.CacheKey(n.prefix, tag, k.ID)).Val() != 0 {
		t.Error("a session past its end was written")
	}
	must(t, cache.Bump(t.Context(), "bump000000000000000000", 3, terms))
	ttl("a floor", keytype.UserEpoch, 10*time.Second, "bump000000000000000000")
	n.everyKeyLapses(t)
}

// A late fill knows less of the last use than the cache.
func TestFillKeepsTheLaterUse(t *testing.T) {
	n, now := dial(t), newClock()
	cache := n.cache(t, now.Now)
	at, r := now.ms.Load(), record(now.Now())
	fill := session.Fill{Key: key, Now: now.ms.Load(), User: user(7), Record: r, At: at}
	_, _, err := cache.Fill(t.Context(), fill, terms)
	must(t, err)
	now.pass(4 * time.Second)
	look := session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token")}
	got, err := cache.Verify(t.Context(), look, terms)
	must(t, err)
	if !got.TouchDurably || got.Record.Seen != now.ms.Load() {
		t.Errorf("a use D later: %+v", got)
	}
	_, _, err = cache.Fill(t.Context(), fill, terms)
	must(t, err)
	now.pass(time.Second)
	look.Now = now.Now()
	got, err = cache.Verify(t.Context(), look, terms)
	must(t, err)
	if got.Record.Seen != now.ms.Load()-1_000 || got.TouchDurably {
		t.Errorf("after a late fill: %+v", got)
	}
}

// What this version did not write is as nothing.
func TestUnknownFormatIsAMiss(t *testing.T) {
	n, now := dial(t), newClock()
	cache := n.cache(t, now.Now)
	fill := session.Fill{Key: key, Now: now.ms.Load(), User: user(7), Record: record(now.Now()), At: now.ms.Load()}
	for _, k := range []string{keytype.UserEpoch.CacheKey(n.prefix, tag), keytype.Session.CacheKey(n.prefix, tag, sid)} {
		for _, garbage := range []string{"", "2 7 1 1 1 1 0 4:acmeann", "1 x", "1 7 1 1 nonsense"} {
			_, _, err := cache.Fill(t.Context(), fill, terms)
			must(t, err)
			must(t, n.Set(t.Context(), k, garbage, time.Minute).Err())
			got, err := cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: now.Now(), TokenHash: hash("token")}, terms)
			must(t, err)
			if got.Found != nothing {
				t.Errorf("%q in %s: %+v", garbage, k, got)
			}
		}
	}
}

// A server that was restarted or flushed does not know the scripts.
func TestR46ScriptsComeBack(t *testing.T) {
	s := engine.StartRedis(t)
	n := dialTo(t, s.Addr)
	cache := n.cache(t, nil)
	for range 2 {
		must(t, n.ScriptFlush(t.Context()).Err())
		must(t, cache.Bump(t.Context(), tag, 3, terms))
		got, err := cache.Verify(t.Context(), session.VerifyOp{Key: key, Now: time.Now(), TokenHash: hash("token")}, terms)
		must(t, err)
		if got.Version != 3 {
			t.Errorf("after the bump: %+v", got)
		}
		if off := time.Since(time.UnixMilli(got.At)); off < -time.Second || off > time.Minute {
			t.Errorf("TIME is off by %s", off)
		}
	}
}

// The caller's wait is its own: neither a server that hangs nor one that is gone
// keeps it longer than the budget.
func TestR28HangingServer(t *testing.T) {
	s := engine.StartRedis(t)
	n := dialTo(t, s.Addr)
	cache := redissession.New(n, redissession.Options{Prefix: n.prefix, Budget: 20 * time.Millisecond})
	warm, err := cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms)
	for deadline := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(deadline); { // the first connection may take longer than a budget
		warm, err = cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms)
	}
	must(t, err)
	if warm.At == 0 {
		t.Fatal("a miss without an instant")
	}
	s.Pause(t)
	for i := range 20 {
		began := time.Now()
		_, err := cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms)
		if took := time.Since(began); !errors.Is(err, keytype.ErrUnavailable) || took > time.Second {
			t.Errorf("call %d took %s: %v", i, took, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cache.Verify(ctx, session.VerifyOp{Key: key}, terms); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
	s.Resume(t)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err = cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms); err == nil || time.Now().After(deadline) {
			break
		}
	}
	must(t, err)
}
