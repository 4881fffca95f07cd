package redislimit_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A gate is a client that stops before and after each script, and may lose its answer.
type gate struct {
	redis.UniversalClient
	before func(first bool, op, key string) error // first = of the first attempt
	after  func(op, key string) error
	later  time.Duration // by how much the instant of what goes back is
}

func (g gate) Process(ctx context.Context, cmd redis.Cmder) error {
	words := cmd.Args()
	if words[0] != "evalsha" {
		return g.UniversalClient.Process(ctx, cmd)
	}
	op, _ := words[3+words[2].(int)].(string) // a swap has none
	key, _ := words[3].(string)
	if op == "undone" && g.later > 0 {
		at := 4 + words[2].(int)
		now, err := strconv.ParseInt(words[at].(string), 10, 64)
		if err != nil {
			return err
		}
		words[at] = strconv.FormatInt(now+g.later.Microseconds(), 10)
	}
	if err := g.before(ctx.Value(attempt{}) == 1, op, key); err != nil {
		cmd.SetErr(err)
		return err
	}
	err := g.UniversalClient.Process(ctx, cmd)
	if g.after != nil && err == nil {
		if err = g.after(op, key); err != nil {
			cmd.SetErr(err)
		}
	}
	return err
}

// raceOverSlots has 16 callers at a time find the last unit of a user's limit, and one of
// them get it, on a late store: what the others took of the route goes back, and it is as
// full as a twin that was charged for who passed only.
func raceOverSlots(t *testing.T, client redis.UniversalClient, rounds int) {
	const callers = 16
	var looked sync.WaitGroup
	var undone atomic.Int64
	late := gate{UniversalClient: client, before: func(_ bool, op, _ string) error {
		if op == "undone" {
			undone.Add(1)
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	}, after: func(op, key string) error {
		if op == "peek" && strings.Contains(key, "user") {
			looked.Done()
			looked.Wait() // so that all see the same
		}
		return nil
	}}
	prefix := engine.FreshPrefix()
	var leftovers atomic.Int64
	store := redislimit.New(late, redislimit.Options{Prefix: prefix, Leftover: func() { leftovers.Add(1) }})
	exact := redislimit.New(client, redislimit.Options{Prefix: prefix})
	route, twin := bucketOf("route", 20, time.Second, 5000), bucketOf("twin", 20, time.Second, 5000)
	take(t, exact, ratelimit.Take{Buckets: []ratelimit.Bucket{route, twin}, Cost: 3000}) // 150 s, so that there is always a debt
	for round := range rounds {
		user := bucketOf(fmt.Sprint("user", round), 1, 24*time.Hour, 1)
		user.Tag = user.Key
		looked.Add(callers)
		var all sync.WaitGroup
		var passed atomic.Int64
		for range callers {
			all.Go(func() {
				out, err := store.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{route, user}, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				if out.Allowed {
					passed.Add(1)
				}
			})
		}
		all.Wait()
		if passed.Load() != 1 {
			t.Fatalf("%d passed", passed.Load())
		}
		take(t, exact, ratelimit.Take{Buckets: []ratelimit.Bucket{twin}, Cost: 1})
	}
	both := ratelimit.Take{Buckets: []ratelimit.Bucket{route, twin}, Cost: 1, Peek: true}
	left := take(t, exact, both).Verdicts
	for begun := time.Now(); left[0] != left[1] && time.Since(begun) < 5*time.Second; time.Sleep(time.Millisecond) {
		left = take(t, exact, both).Verdicts // until all is settled
	}
	t.Logf("%d calls took charges back, %d units are left, and %d of the twin", undone.Load(), left[0].Remaining, left[1].Remaining)
	// Where an age ends meanwhile some are tried again.
	if left[0] != left[1] || undone.Load() < int64(rounds*(callers-1)) || leftovers.Load() != 0 {
		t.Errorf("%+v is left, and %+v of the twin; %d went back, %d leftovers", left[0], left[1], undone.Load(), leftovers.Load())
	}
}

func TestWhatGoesBackLeavesASharedLimitAlone(t *testing.T) {
	t.Parallel()
	raceOverSlots(t, dial(t, engine.Redis(t).Addr), 10)
}

// A charge counts as left over where it may stay though the request did not pass, and
// where nobody could say that it stays.
func TestLeftoversAreCounted(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	lost := errors.New("the answer is lost")
	for _, c := range []struct {
		why       string
		op, key   string
		sent      bool // before it was lost
		used      bool // whether the second limit is used up once it was looked at
		leftovers int64
		left      int64 // of the first limit's 10
	}{
		{"passed", "", "", false, false, 0, 9},
		{"the first charge is lost, and may stay", "hold", "first", true, false, 1, 9},
		{"the second is, and the first goes back", "take", "second", true, false, 1, 10},
		{"the second refuses", "", "", false, true, 0, 10},
		{"and what takes the first back is lost", "undone", "first", false, true, 1, 9},
		{"what settles it is lost", "settled", "first", false, false, 1, 9},
	} {
		var leftovers atomic.Int64
		done := make(chan struct{}, 8)
		prefix := engine.FreshPrefix()
		second := bucketOf("second", 1, time.Hour, 1)
		second.Tag = "other"
		direct := redislimit.New(client, redislimit.Options{Prefix: prefix})
		fail := func(op, key string) error {
			if op == c.op && strings.Contains(key, c.key) {
				return lost
			}
			return nil
		}
		broken := gate{UniversalClient: client, before: func(_ bool, op, key string) error {
			if c.used && op == "hold" {
				take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{second}, Cost: 1})
			}
			if c.sent {
				return nil
			}
			return fail(op, key)
		}, after: func(op, key string) error {
			if op == "settled" {
				done <- struct{}{}
			}
			if !c.sent {
				return nil
			}
			return fail(op, key)
		}}
		store := redislimit.New(broken, redislimit.Options{Prefix: prefix, Leftover: func() { leftovers.Add(1); done <- struct{}{} }})
		first := bucketOf("first", 1, time.Hour, 10)
		_, err := store.Take(t.Context(), ratelimit.Take{Buckets: []ratelimit.Bucket{first, second}, Cost: 1})
		if c.sent != errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v", c.why, err)
		}
		if !c.used || c.leftovers > 0 {
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Errorf("%s: nothing ends the charge", c.why)
			}
		}
		left := take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{first}, Cost: 1, Peek: true}).Verdicts[0].Remaining
		if leftovers.Load() != c.leftovers || left != c.left {
			t.Errorf("%s: %d leftovers and %d of 10 left, want %d and %d", c.why, leftovers.Load(), left, c.leftovers, c.left)
		}
	}
}

// Who closes a store waits until what has passed is settled.
func TestCloseSettles(t *testing.T) {
	client, prefix := dial(t, engine.Redis(t).Addr), engine.FreshPrefix()
	begun, settled := make(chan struct{}), atomic.Bool{}
	store := redislimit.New(gate{UniversalClient: client, before: func(_ bool, op, _ string) error {
		if op == "settled" {
			close(begun)
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}, after: func(op, _ string) error {
		settled.Store(op == "settled")
		return nil
	}}, redislimit.Options{Prefix: prefix})
	first, second := bucketOf("first", 1, time.Hour, 10), bucketOf("second", 1, time.Hour, 1)
	second.Tag = "other"
	take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{first, second}, Cost: 1})
	<-begun
	if err := store.Close(); err != nil || !settled.Load() {
		t.Errorf("settled %t, %v", settled.Load(), err)
	}
}

// A charge that goes back so late that it has lapsed is one of which something stays.
func TestALapsedChargeIsALeftover(t *testing.T) {
	client, leftovers := dial(t, engine.Redis(t).Addr), 0
	prefix, start := engine.FreshPrefix(), int64(2_000_000_000_000_000)
	first, second := bucketOf("first", 1, time.Hour, 10), bucketOf("second", 1, time.Hour, 1)
	second.Tag = "other"
	direct := redislimit.New(client, redislimit.Options{Prefix: prefix, TakesNow: true})
	for after, want := range map[time.Duration]int{4 * time.Second: 0, 11 * time.Second: 1} {
		late := gate{UniversalClient: client, before: func(_ bool, op, _ string) error {
			if op == "hold" {
				take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{second}, Cost: 1, Now: start})
			}
			return nil
		}, later: after}
		store := redislimit.New(late, redislimit.Options{Prefix: prefix, TakesNow: true, Leftover: func() { leftovers++ }})
		out := take(t, store, ratelimit.Take{Buckets: []ratelimit.Bucket{first, second}, Cost: 1, Now: start})
		if left := out.Verdicts[0].Remaining; out.Allowed || leftovers != want || left != int64(10-want) {
			t.Errorf("after %v: %d leftovers and %d of 10 left, want %d", after, leftovers, left, want)
		}
		leftovers = 0
		if err := direct.Forget(t.Context(), []ratelimit.Bucket{first, second}); err != nil {
			t.Fatal(err)
		}
	}
}

type attempt struct{}

// Two attempts with one id run at once over two slots. The first is refused by the second
// slot, which the other then passes: whenever the first takes its charge back, the other
// has paid for both.
func TestR45TwoAttemptsAtOnce(t *testing.T) {
	client := dial(t, engine.Redis(t).Addr)
	for _, c := range []struct {
		why     string
		undoBy  string // before which call of the second attempt the first one takes its charge back, "" = at last
		full    bool   // whether somebody else then takes the rest of the first limit
		allowed bool
		left    [2]int64
	}{
		{"at last", "", false, true, [2]int64{4, 0}},
		{"before the second's charge of the other slot", "take other", false, true, [2]int64{4, 0}},
		{"and somebody else has what came back", "take other", true, false, [2]int64{0, 1}},
		{"before the second asks again", "take tag", false, true, [2]int64{4, 0}},
		{"before the second looks", "peek", false, true, [2]int64{4, 0}},
	} {
		prefix := engine.FreshPrefix()
		direct := redislimit.New(client, redislimit.Options{Prefix: prefix})
		near, far := bucketOf("near", 1, time.Hour, 5), bucketOf("far", 1, time.Hour, 1)
		far.Tag = "other"
		refused, undo, undone := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var once sync.Once
		back := func() {
			close(undo)
			<-undone
			if c.full {
				take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{near}, Cost: 5})
			}
		}
		gated := gate{UniversalClient: client, before: func(first bool, op, key string) error {
			name := op + " other"
			if strings.Contains(key, "near") {
				name = op + " tag"
			}
			switch {
			case first && name == "take other":
				take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{far}, Cost: 1})
			case first && op == "undone":
				close(refused)
				<-undo
			case !first && (name == c.undoBy || op == c.undoBy || op == "hold" && name == "hold other" && c.undoBy == "take other"):
				once.Do(back)
			}
			return nil
		}}
		store := redislimit.New(gated, redislimit.Options{Prefix: prefix})
		ask := ratelimit.Take{Buckets: []ratelimit.Bucket{near, far}, Cost: 1, Record: "r"}
		go func() {
			defer close(undone)
			if out, err := store.Take(context.WithValue(t.Context(), attempt{}, 1), ask); err != nil || out.Allowed {
				t.Errorf("%s: the first attempt: got %+v, %v", c.why, out, err)
			}
		}()
		<-refused
		if _, err := direct.Give(t.Context(), ratelimit.Give{Buckets: []ratelimit.Bucket{far}, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		out, err := store.Take(context.WithValue(t.Context(), attempt{}, 2), ask)
		if err != nil || out.Allowed != c.allowed {
			t.Errorf("%s: the second attempt: got %+v, %v", c.why, out, err)
		}
		once.Do(back)
		near.Cost = 1
		left := take(t, direct, ratelimit.Take{Buckets: []ratelimit.Bucket{near, far}, Cost: 1, Peek: true}).Verdicts
		if got := [2]int64{left[0].Remaining, left[1].Remaining}; got != c.left {
			t.Errorf("%s: %d are left, want %d", c.why, got, c.left)
		}
		if !c.allowed {
			continue
		}
		if again := take(t, store, ask); !again.Allowed || again.Verdicts[0].Remaining != c.left[0] {
			t.Errorf("%s: a third: got %+v", c.why, again)
		}
	}
}
