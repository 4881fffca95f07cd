package lease_test

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// A desk is what a caller of the library has: a manager of leases, one of fences
// over the same data, and a clock that the test moves. The other manager's clock
// is ahead by skew.
type desk struct {
	*testing.T
	leases *lease.Manager
	ahead  *lease.Manager
	fences *fencing.Manager
	now    time.Time
	skew   time.Duration
}

// onEachStore runs the test in memory and on a file. The DynamoDB store meets the
// same situations in package leasetest.
func onEachStore(t *testing.T, guard time.Duration, test func(*desk)) {
	for name, store := range map[string]kv.Store{
		"memory": kv.NewMemory(kv.MemoryOptions{}),
		"file":   openFile(t, filepath.Join(t.TempDir(), "coordsvc.db")),
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{T: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			d.leases = lease.New(lease.NewLocal(store), lease.Options{Guard: guard, Now: func() time.Time { return d.now }})
			d.ahead = lease.New(lease.NewLocal(store), lease.Options{Guard: guard, Now: func() time.Time { return d.now.Add(d.skew) }})
			d.fences = fencing.New(fencing.NewLocal(store))
			test(d)
		})
	}
}

func (d *desk) acquire(m *lease.Manager, owner, requestID string) (lease.Grant, error) {
	return m.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: owner, RequestID: requestID, TTL: time.Second})
}

func (d *desk) mustAcquire(m *lease.Manager, owner, requestID string) lease.Grant {
	d.Helper()
	g, err := d.acquire(m, owner, requestID)
	if err != nil {
		d.Fatal(err)
	}
	return g
}

func (d *desk) renew(g lease.Grant) (lease.Grant, error) {
	return d.leases.Renew(d.Context(), "t", "r", holder(g), time.Second)
}

func (d *desk) release(g lease.Grant) error {
	return d.leases.Release(d.Context(), "t", "r", holder(g))
}

func (d *desk) stored() lease.Lease {
	d.Helper()
	l, err := d.leases.Get(d.Context(), "t", "r")
	if err != nil {
		d.Fatal(err)
	}
	return l
}

// want demands the error, of which a *lease.HeldError stands for all of its kind.
func (d *desk) want(why string, got, want error) {
	d.Helper()
	_, gotHeld := errors.AsType[*lease.HeldError](got)
	_, wantHeld := errors.AsType[*lease.HeldError](want)
	if gotHeld != wantHeld || !wantHeld && !errors.Is(got, want) {
		d.Errorf("%s: got %v, want %v", why, got, want)
	}
}

func holder(g lease.Grant) lease.Holder { return lease.Holder{ID: g.ID, Token: g.Token} }

func TestL5RepeatedRequestGetsTheSameGrant(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		first := d.mustAcquire(d.leases, "a", "q")
		d.now = d.now.Add(300 * time.Millisecond)
		again := d.mustAcquire(d.leases, "a", "q")
		if again.ID != first.ID || again.Token != first.Token || again.ExpiresAt != first.ExpiresAt || again.ValidFor != 700*time.Millisecond {
			d.Errorf("first %+v, again %+v", first, again)
		}
		d.want("release", d.release(first), nil)
		if next := d.mustAcquire(d.leases, "a", "q2"); next.Token != first.Token+1 {
			d.Errorf("the repetition cost a token: %d after %d", next.Token, first.Token)
		}
	})
}

func TestL6RepeatedRequestLeavesTheLeaseAlone(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		first := d.mustAcquire(d.leases, "a", "q")
		d.mustAcquire(d.leases, "a", "q")
		if _, err := d.renew(first); err != nil {
			d.Errorf("the first grant was replaced: %v", err)
		}
	})
}

func TestL8RepeatedRequestAfterItsGrantEnded(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		d.mustAcquire(d.leases, "a", "q1")
		d.now = d.now.Add(time.Minute)
		_, err := d.acquire(d.leases, "a", "q1")
		d.want("after the expiry", err, lease.ErrRequestExpired)
		if l := d.stored(); l.Held || l.Token != 1 {
			d.Errorf("stored %+v", l)
		}
		b := d.mustAcquire(d.leases, "b", "q4")
		_, err = d.acquire(d.leases, "a", "q1")
		d.want("while another holds it", err, &lease.HeldError{})
		d.want("release", d.release(b), nil)
		_, err = d.leases.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: "a", RequestID: "q1", TTL: time.Second, NotAfter: d.now.Add(-time.Second)})
		d.want("a request that said until when it is meant", err, lease.ErrRequestExpired)
		// Only the latest request id is remembered: an older one that arrives this late
		// gets a grant nobody waits for. It is fenced in like any other and runs out.
		if orphan := d.mustAcquire(d.leases, "a", "q1"); orphan.Token != b.Token+1 {
			d.Errorf("got %+v", orphan)
		}
	})
}

func TestL14RenewAfterTakeover(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		d.now = d.now.Add(time.Minute)
		_, err := d.renew(a)
		d.want("expired", err, lease.ErrExpired)
		b := d.mustAcquire(d.leases, "b", "")
		_, err = d.renew(a)
		d.want("taken over", err, lease.ErrLost)
		if l := d.stored(); l.Owner != "b" || l.Token != b.Token || l.ExpiresAt != b.ExpiresAt {
			d.Errorf("stored %+v", l)
		}
	})
}

func TestL15PausedHolderWrites(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		write := func(g lease.Grant, value string) error {
			_, err := d.fences.Write(d.Context(), "t", "r", "checkpoint", fencing.WriteRequest{
				Position: fencing.Position{Token: g.Token}, Mode: fencing.HighWater, Value: []byte(value),
			})
			return err
		}
		admit := func(g lease.Grant) error {
			_, err := d.fences.Admit(d.Context(), "t", "r", fencing.Position{Token: g.Token})
			return err
		}
		a := d.mustAcquire(d.leases, "a", "")
		d.want("a writes", errors.Join(admit(a), write(a, "100")), nil)
		d.now = d.now.Add(time.Minute) // a pauses
		b := d.mustAcquire(d.leases, "b", "")
		d.want("b writes", errors.Join(admit(b), write(b, "200")), nil)
		for _, err := range []error{admit(a), write(a, "101")} {
			if stale, ok := errors.AsType[*fencing.StaleError](err); !ok || stale.HighWater.Token != b.Token {
				d.Errorf("a wakes up: %v", err)
			}
		}
		if r, err := d.fences.Read(d.Context(), "t", "r", "checkpoint"); err != nil || string(r.Value) != "200" {
			d.Errorf("stored %s, %v", r.Value, err)
		}
	})
}

func TestL17StaleHolderSeesNoOtherGrant(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "qa")
		d.now = d.now.Add(time.Minute)
		b := d.mustAcquire(d.leases, "b", "qb")
		g, err := d.renew(a)
		d.want("renew", err, lease.ErrLost)
		if g != (lease.Grant{}) {
			d.Errorf("the refusal gives away %+v", g)
		}
		g, err = d.acquire(d.leases, "a", "qa")
		d.want("acquire", err, &lease.HeldError{})
		if g != (lease.Grant{}) || strings.Contains(err.Error(), b.ID) {
			d.Errorf("the refusal gives away %+v, %v", g, err)
		}
	})
}

func TestL18ReleaseByNonOwner(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		for why, h := range map[string]lease.Holder{
			"another id":    {ID: "lse_other", Token: a.Token},
			"a part of it":  {ID: a.ID[:len(a.ID)-1], Token: a.Token},
			"another token": {ID: a.ID, Token: a.Token + 1},
		} {
			d.want(why, d.leases.Release(d.Context(), "t", "r", h), lease.ErrLost)
			_, err := d.leases.Renew(d.Context(), "t", "r", h, time.Minute)
			d.want(why, err, lease.ErrLost)
		}
		if l := d.stored(); !l.Held || l.ExpiresAt != a.ExpiresAt {
			d.Errorf("stored %+v", l)
		}
	})
}

func TestL19StaleHolderReleases(t *testing.T) { testReleaseAfterTakeover(t) }

func TestL21FormerLeaderReleases(t *testing.T) { testReleaseAfterTakeover(t) }

func testReleaseAfterTakeover(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		d.now = d.now.Add(time.Minute)
		b := d.mustAcquire(d.leases, "b", "")
		d.want("a releases", d.release(a), lease.ErrLost)
		if l := d.stored(); !l.Held || l.Owner != "b" || l.Token != b.Token {
			d.Errorf("stored %+v", l)
		}
		_, err := d.acquire(d.leases, "c", "")
		d.want("b still has it", err, &lease.HeldError{})
	})
}

func TestL23TakerWithAFastClock(t *testing.T) {
	onEachStore(t, 2*time.Second, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		d.skew = 2 * time.Second
		_, err := d.acquire(d.ahead, "b", "")
		d.want("ahead by the guard, a's lease is live", err, &lease.HeldError{})
		d.now = d.now.Add(999 * time.Millisecond)
		_, err = d.acquire(d.ahead, "b", "")
		d.want("and it is in its last millisecond", err, &lease.HeldError{})
		if a, err = d.renew(a); err != nil {
			d.Fatal(err)
		}
		// Beyond what the guard covers it is stolen, and the fence is what holds.
		d.skew = time.Hour
		b := d.mustAcquire(d.ahead, "b", "")
		_, err = d.fences.Admit(d.Context(), "t", "r", fencing.Position{Token: b.Token})
		d.want("b writes", err, nil)
		_, err = d.fences.Admit(d.Context(), "t", "r", fencing.Position{Token: a.Token})
		if _, stale := errors.AsType[*fencing.StaleError](err); !stale {
			d.Errorf("a, by its own clock the holder, writes: %v", err)
		}
	})
}

func TestL25ExpiredLeaseThatIsStillStored(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		d.now = d.now.Add(time.Second)
		if l := d.stored(); l.Held || l.Owner != "a" || l.Token != a.Token {
			d.Errorf("stored %+v, want what it was, not held", l)
		}
		d.now = d.now.Add(time.Millisecond)
		if b := d.mustAcquire(d.leases, "b", ""); b.Token != a.Token+1 {
			d.Errorf("token %d after %d", b.Token, a.Token)
		}
	})
}

func TestL34Durations(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		for _, ttl := range []time.Duration{0, -1, -time.Second, lease.MinTTL - 1, lease.MaxTTL + time.Millisecond, math.MaxInt64, math.MinInt64, 1 << 50} {
			_, err := d.leases.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: ttl})
			d.wantField(ttl.String(), err, "ttl_ms")
			_, err = d.leases.Renew(d.Context(), "t", "r", lease.Holder{ID: "x", Token: 1}, ttl)
			d.wantField(ttl.String(), err, "ttl_ms")
		}
		for _, hold := range []time.Duration{-1, time.Second - time.Millisecond, lease.MaxHold + time.Millisecond, math.MaxInt64, math.MinInt64} {
			_, err := d.leases.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second, MaxHold: hold})
			d.wantField(hold.String(), err, "max_ttl_ms")
		}
		_, err := d.leases.Get(d.Context(), "t", "r")
		d.want("nothing was granted", err, lease.ErrNotFound)
		for _, ttl := range []time.Duration{lease.MinTTL, lease.MaxTTL} {
			g, err := d.leases.Acquire(d.Context(), "t", ttl.String(), lease.AcquireRequest{Owner: "a", TTL: ttl, MaxHold: ttl})
			if err != nil || g.ValidFor != ttl {
				d.Errorf("%v: got %v, %v", ttl, g.ValidFor, err)
			}
		}
	})
}

func (d *desk) wantField(why string, err error, field string) {
	d.Helper()
	if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != field {
		d.Errorf("%s: got %v, want that %s is refused", why, err, field)
	}
}

func TestL36BordersOfIDs(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		for _, place := range [][2]string{{"t", "a:b"}, {"t:a", "b"}, {"t1:a", "b"}, {"t", "a/b"}, {"t", "a#b"}, {"t", "a:B"}} {
			if _, err := d.leases.Acquire(d.Context(), place[0], place[1], lease.AcquireRequest{Owner: "a", TTL: time.Second}); err != nil {
				d.Errorf("%q shares another place's lease: %v", place, err)
			}
		}
	})
}

// L1, L3: what is free, however long, keeps its counter: no sweep takes it away.
func TestL1L3NoSweepTakesACounter(t *testing.T) {
	for name, store := range map[string]interface {
		kv.Store
		kv.Sweeper
	}{
		"memory": kv.NewMemory(kv.MemoryOptions{}),
		"file":   openFile(t, filepath.Join(t.TempDir(), "coordsvc.db")),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			m := lease.New(lease.NewLocal(store), lease.Options{Now: func() time.Time { return now }})
			fences := fencing.New(fencing.NewLocal(store))
			for want := fencing.Token(1); want <= 3; want++ {
				g, err := m.Acquire(t.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second})
				if err != nil || g.Token != want {
					t.Fatalf("token %d, %v, want %d", g.Token, err, want)
				}
				if _, err := fences.Admit(t.Context(), "t", "r", fencing.Position{Token: want}); err != nil {
					t.Fatal(err)
				}
				if want == 2 {
					if err := m.Release(t.Context(), "t", "r", holder(g)); err != nil {
						t.Fatal(err)
					}
				}
				now = now.AddDate(10, 0, 0)
				if n, err := store.Sweep(t.Context(), now, 1000); n != 0 || err != nil {
					t.Errorf("a sweep ten years later removed %d items, %v", n, err)
				}
			}
			if mark, err := fences.Mark(t.Context(), "t", "r"); err != nil || mark.Token != 3 {
				t.Errorf("mark %+v, %v", mark, err)
			}
		})
	}
}

func TestL39TenantsHaveTheirOwn(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "q")
		g, err := d.leases.Acquire(d.Context(), "other", "r", lease.AcquireRequest{Owner: "a", RequestID: "q", TTL: time.Second})
		if err != nil || g.ID == a.ID {
			d.Errorf("another tenant: %+v, %v", g, err)
		}
		d.want("another tenant's holder", d.leases.Release(d.Context(), "other", "r", holder(a)), lease.ErrLost)
	})
}

func TestL41OwnerProvesNothing(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		a := d.mustAcquire(d.leases, "a", "")
		_, err := d.acquire(d.leases, "a", "")
		d.want("the owner, restarted, asks again", err, &lease.HeldError{})
		d.wantField("empty owner", second(d.acquire(d.leases, "", "")), "owner")
		d.wantField("empty lease id", d.leases.Release(d.Context(), "t", "r", lease.Holder{Token: a.Token}), "lease_id")
		d.wantField("no token", d.leases.Release(d.Context(), "t", "r", lease.Holder{ID: a.ID}), "fencing_token")
		d.want("release", d.release(a), nil)
		if b := d.mustAcquire(d.leases, "a", ""); b.ID == a.ID || len(b.ID) < 26 {
			d.Errorf("lease ids %s, %s", a.ID, b.ID)
		}
	})
}

func second[T any](_ T, err error) error { return err }
