package tokenlease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

var key = tokenlease.Key{Tenant: "t", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": "u", "request": "x"}}

// A bank is a source that grants what is asked for until its units are used up, and
// remembers what it was asked.
type bank struct {
	mu       sync.Mutex
	units    int64
	room     int64 // that is left when it grants
	fault    error
	takes    time.Duration // each call
	asks     []tokenlease.Ask
	returned []tokenlease.Unspent
	granted  int64
}

func (b *bank) Lease(_ context.Context, ask tokenlease.Ask) (tokenlease.Grant, error) {
	time.Sleep(b.takes)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks = append(b.asks, ask)
	g := tokenlease.Grant{MaxOvershoot: 500, Room: b.room}
	switch n := min(ask.Want, b.units); {
	case b.fault != nil:
		return g, b.fault
	case b.room < 0:
		g.Room = 0
	case n < ask.Least:
		g.RetryAfter = 200 * time.Millisecond
	default:
		b.units, b.granted = b.units-n, b.granted+n
		g.Granted, g.ValidFor = n, time.Second
	}
	return g, nil
}

func (b *bank) Return(_ context.Context, u tokenlease.Unspent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.returned = append(b.returned, u)
	b.units += u.Units
	return b.fault
}

// A desk is a lessee in a bubble of time, with what became of its units.
type desk struct {
	*tokenlease.Lessee
	bank  *bank
	t     *testing.T
	units map[tokenlease.Event]*atomic.Int64
}

func open(t *testing.T, b *bank) *desk {
	d := &desk{bank: b, t: t, units: map[tokenlease.Event]*atomic.Int64{tokenlease.Taken: {}, tokenlease.Returned: {}, tokenlease.Lapsed: {}}}
	d.Lessee = tokenlease.New(b, tokenlease.Options{Observe: func(_ string, e tokenlease.Event, n int64) { d.units[e].Add(n) }})
	return d
}

func (d *desk) spend(cost int64) tokenlease.Answer {
	d.t.Helper()
	a, err := d.Spend(d.t.Context(), key, cost)
	if err != nil {
		d.t.Fatal(err)
	}
	synctest.Wait() // for what it began
	return a
}

// heat asks until a batch is there. It leaves some of that.
func (d *desk) heat() {
	d.t.Helper()
	for range 3 * tokenlease.MinBatch {
		d.spend(1)
	}
	if d.Held()["p"] == 0 {
		d.t.Fatal("nothing is held")
	}
}

// run gives back what is idle until the test ends.
func (d *desk) run() (end func()) {
	ctx, cancel := context.WithCancel(d.t.Context())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

func TestAKeyThatIsAskedForSeldomIsLeftToTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		for range 40 {
			if a := d.spend(1); !a.Exact {
				t.Fatalf("at 16 a second: %+v", a)
			}
			time.Sleep(tokenlease.LookAhead / 4)
		}
		if len(d.bank.asks) > 0 {
			t.Errorf("asked for %+v", d.bank.asks)
		}
	})
}

// The batch is what is asked for within the LookAhead: it grows with the rate and falls with it.
func TestTheBatchFollowsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		defer d.run()()
		rate := func(perSecond int) (batch int64) {
			for range 4 * perSecond {
				d.spend(1)
				time.Sleep(time.Second / time.Duration(perSecond))
			}
			synctest.Wait()
			last := d.bank.asks[len(d.bank.asks)-1]
			return last.Left + last.Want
		}
		for _, c := range []struct {
			perSecond   int
			least, most int64
		}{{200, 40, 60}, {1000, 220, 280}, {20_000, 500, 500}, {200, 40, 60}} {
			before := len(d.bank.asks)
			if got := rate(c.perSecond); got < c.least || got > c.most {
				t.Errorf("at %d a second the batch is %d", c.perSecond, got)
			}
			if asks := len(d.bank.asks) - before; asks > 40+4*c.perSecond/200 {
				t.Errorf("at %d a second %d calls for %d units", c.perSecond, asks, 4*c.perSecond)
			}
		}
	})
}

// The next batch is fetched before this one is used up, so that nobody waits for it.
func TestTheNextBatchIsFetchedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500, takes: 5 * time.Millisecond})
		defer d.run()()
		for range 1000 {
			d.spend(1)
			time.Sleep(time.Millisecond)
		}
		begun := time.Now()
		for range 1000 {
			if a := d.spend(1); !a.Allowed {
				t.Fatalf("%+v", a)
			}
			time.Sleep(time.Millisecond)
		}
		if waited := time.Since(begun) - time.Second; waited > 0 {
			t.Errorf("waited for %v", waited)
		}
		synctest.Wait()
		for _, ask := range d.bank.asks[len(d.bank.asks)-3:] {
			if ask.Left == 0 || ask.Left > ask.Held/5 {
				t.Errorf("asked with %d of %d left", ask.Left, ask.Held)
			}
		}
	})
}

// Where the source refuses it is not asked until it said, and then once.
func TestARefusalHoldsUntilTheSourceSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 10, room: 500})
		passed := 0
		for range 100 {
			if a := d.spend(1); a.Allowed {
				passed++
			}
		}
		if passed != 10 {
			t.Fatalf("%d passed", passed)
		}
		asked := len(d.bank.asks)
		time.Sleep(150 * time.Millisecond)
		if a := d.spend(1); a.Allowed || a.Exact || a.RetryAfter != 50*time.Millisecond || len(d.bank.asks) != asked {
			t.Errorf("before: %+v, asked %d times", a, len(d.bank.asks)-asked)
		}
		d.bank.units = 1
		time.Sleep(50 * time.Millisecond)
		if a := d.spend(1); !a.Allowed || len(d.bank.asks) != asked+1 {
			t.Errorf("then: %+v, asked %d times", a, len(d.bank.asks)-asked)
		}
	})
}

// A cost that the batch does not cover is asked for; a smaller one was not refused with it.
func TestARefusalIsOfACost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 8, room: 500})
		for range tokenlease.MinBatch {
			d.spend(1)
		}
		left := d.Held()["p"]
		for range tokenlease.MinRequests {
			if a := d.spend(9); a.Allowed {
				t.Fatalf("%+v", a)
			}
		}
		if a := d.spend(9); a.Exact {
			t.Errorf("%+v", a)
		}
		if a := d.spend(10); !a.Exact {
			t.Errorf("when a larger cost passes the source did not say: %+v", a)
		}
		if a := d.spend(left); !a.Allowed {
			t.Errorf("%+v with %d", a, left)
		}
		if a := d.spend(1); !a.Exact {
			t.Errorf("of a smaller cost the source was not asked: %+v", a)
		}
		if a := d.spend(tokenlease.MaxBatch/tokenlease.MinRequests + 1); !a.Exact {
			t.Errorf("more than batches are for: %+v", a)
		}
	})
}

func TestNothingIsSpentLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		d.heat()
		d.bank.units = 0
		time.Sleep(time.Second - time.Nanosecond)
		if a := d.spend(1); !a.Allowed {
			t.Errorf("in time: %+v", a)
		}
		time.Sleep(time.Nanosecond)
		if d.Held()["p"] != 0 {
			t.Errorf("%v are held", d.Held())
		}
		if a := d.spend(1); a.Allowed {
			t.Errorf("late: %+v", a)
		}
	})
}

// Where nothing runs short, what is idle goes back, and a key that nobody asks for is
// forgotten; on Close all goes back, and afterwards everything is for the source.
func TestWhatIsNotNeededGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		end := d.run()
		d.heat()
		held := d.Held()["p"]
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if len(d.bank.returned) != 1 || d.bank.returned[0].Units != held || d.bank.returned[0].Holder != d.bank.asks[len(d.bank.asks)-1].Holder || d.Held()["p"] != 0 {
			t.Fatalf("of %d: returned %+v", held, d.bank.returned)
		}
		d.heat()
		if first, last := d.bank.asks[0].Holder, d.bank.asks[len(d.bank.asks)-1].Holder; first == last {
			t.Error("the name of what went back is used again")
		}
		end()
		held = d.Held()["p"]
		if err := d.Close(t.Context()); err != nil || d.bank.returned[1].Units != held || d.Held()["p"] != 0 {
			t.Errorf("of %d: returned %+v, %v", held, d.bank.returned, err)
		}
		if a := d.spend(1); !a.Exact {
			t.Errorf("afterwards: %+v", a)
		}
	})
}

// After an outcome that nobody knows the holder has another name, and what was left may
// be spent all the same.
func TestAFaultOfTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		d.heat()
		fault := errors.New("no answer")
		d.bank.fault = fault
		before := d.bank.asks[len(d.bank.asks)-1].Holder
		for range d.Held()["p"] {
			if a := d.spend(1); !a.Allowed {
				t.Fatalf("%+v", a)
			}
		}
		if _, err := d.Spend(t.Context(), key, 1); !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
		d.bank.fault = nil
		if a := d.spend(1); !a.Allowed {
			t.Errorf("%+v", a)
		}
		if ask := d.bank.asks[len(d.bank.asks)-1]; ask.Holder == before || ask.Held != 0 {
			t.Errorf("asked by the name %s for more than %d", ask.Holder, ask.Held)
		}
	})
}

// Where others hold all that may be held the source decides each request, and is asked
// for a batch again only after a while.
func TestNoRoomForABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: -1})
		for range 100 {
			if a := d.spend(1); !a.Exact {
				t.Fatalf("%+v", a)
			}
		}
		if len(d.bank.asks) != 1 {
			t.Errorf("asked %d times", len(d.bank.asks))
		}
		d.bank.room = 500
		time.Sleep(100 * time.Millisecond)
		if a := d.spend(1); !a.Allowed {
			t.Errorf("%+v", a)
		}
	})
}

// Where there is little room left the lessee takes less, so that others get some.
func TestALesseeMakesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch := func(room int64) int64 {
			d := open(t, &bank{units: 1e9, room: room})
			for range 20_000 {
				d.spend(1)
				time.Sleep(50 * time.Microsecond)
			}
			synctest.Wait()
			last := d.bank.asks[len(d.bank.asks)-1]
			return last.Left + last.Want
		}
		if much, little := batch(500), batch(10); much != tokenlease.MaxBatch || little > tokenlease.MaxBatch/4 {
			t.Errorf("%d with room and %d without", much, little)
		}
	})
}

// What was leased is given back, and a refusal forgotten, when somebody changes the
// limit.
func TestReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 60, room: 500})
		d.heat()
		held := d.Held()["p"]
		if err := d.Return(t.Context(), key); err != nil || len(d.bank.returned) != 1 || d.bank.returned[0].Units != held {
			t.Errorf("of %d: returned %+v, %v", held, d.bank.returned, err)
		}
		d.bank.units = 0
		if a := d.spend(1); a.Allowed || a.Exact {
			t.Errorf("%+v", a)
		}
		d.bank.units = 50
		if err := d.Return(t.Context(), key); err != nil {
			t.Error(err)
		}
		if a := d.spend(1); !a.Allowed {
			t.Errorf("after the refusal was forgotten: %+v", a)
		}
		other := key
		other.Descriptors = map[string]string{"user": "unheard"}
		if err := d.Return(t.Context(), other); err != nil {
			t.Error(err)
		}
	})
}

// Requests share a batch exactly when they are the same to the policy.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		d.heat()
		for why, c := range map[string]struct {
			key  tokenlease.Key
			same bool
		}{
			"the same":                    {key, true},
			"another that does not count": {tokenlease.Key{Tenant: "t", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": "u"}}, true},
			"another user":                {tokenlease.Key{Tenant: "t", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": "v"}}, false},
			"another tenant":              {tokenlease.Key{Tenant: "s", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": "u"}}, false},
			"another policy":              {tokenlease.Key{Tenant: "t", Policy: "q", Names: []string{"user"}, Descriptors: map[string]string{"user": "u"}}, false},
			"another version":             {tokenlease.Key{Tenant: "t", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": "u"}, Version: 1}, false},
			"all count":                   {tokenlease.Key{Tenant: "t", Policy: "p", Descriptors: map[string]string{"user": "u"}}, false},
			"one is missing":              {tokenlease.Key{Tenant: "t", Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"app": "u"}}, false},
		} {
			a, err := d.Spend(t.Context(), c.key, 1)
			synctest.Wait()
			if err != nil || a.Allowed != c.same || a.Exact == c.same {
				t.Errorf("%s: %+v, %v", why, a, err)
			}
		}
		if asked := d.bank.asks[0].Key; len(asked.Descriptors) != 1 || !slices.Equal(asked.Names, key.Names) {
			t.Errorf("asked with %+v", asked)
		}
	})
}

func TestACallerThatLeavesDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500, takes: 500 * time.Millisecond})
		for range tokenlease.MinBatch - 1 {
			d.spend(1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := d.Spend(ctx, key, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if d.Held()["p"] == 0 {
			t.Error("what it asked for is not there for others")
		}
	})
}

func TestCloseWaitsNoLongerThanItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, &bank{units: 1e9, room: 500})
		d.heat()
		d.bank.takes = 500 * time.Millisecond
		d.spend(d.Held()["p"]) // and the next batch is on its way
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begun := time.Now()
		if err := d.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if err := d.Close(t.Context()); err != nil || len(d.bank.returned) != 1 || d.Held()["p"] != 0 {
			t.Errorf("then: returned %+v, %v", d.bank.returned, err)
		}
	})
}

// However many spend at once, while batches go back and are asked for, no unit is spent
// twice and none is forgotten.
func TestNoUnitIsSpentTwice(t *testing.T) {
	d := open(t, &bank{units: 1e9, room: 500})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	var spent atomic.Int64
	all.Go(func() { d.Run(ctx) })
	for range 8 {
		all.Go(func() {
			own := int64(0)
			for ctx.Err() == nil {
				for range 100 {
					if a, err := d.Spend(ctx, key, 3); err == nil && a.Allowed {
						own += 3
					}
				}
			}
			spent.Add(own)
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			_ = d.Return(ctx, key)
			time.Sleep(time.Millisecond)
		}
	})
	all.Wait()
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	taken, returned, lapsed := d.units[tokenlease.Taken].Load(), d.units[tokenlease.Returned].Load(), d.units[tokenlease.Lapsed].Load()
	if taken != d.bank.granted || taken != spent.Load()+returned+lapsed || spent.Load() == 0 || returned == 0 {
		t.Errorf("taken %d of %d granted, spent %d, returned %d, lapsed %d", taken, d.bank.granted, spent.Load(), returned, lapsed)
	}
}
