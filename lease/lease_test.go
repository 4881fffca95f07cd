package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

func TestHeldErrorSaysWhenToComeBack(t *testing.T) {
	onEachStore(t, 1500*time.Microsecond, func(d *desk) { // the guard counts as 1 ms
		a := d.mustAcquire(d.leases, "a", "")
		d.now = d.now.Add(200 * time.Millisecond)
		_, err := d.acquire(d.leases, "b", "")
		held, ok := errors.AsType[*lease.HeldError](err)
		if !ok || !held.HeldUntil.Equal(a.ExpiresAt.Add(time.Millisecond)) || held.RetryAfter != 802*time.Millisecond {
			d.Fatalf("got %+v", held)
		}
		d.now = d.now.Add(held.RetryAfter - time.Millisecond)
		_, err = d.acquire(d.leases, "b", "")
		d.want("a moment too soon", err, &lease.HeldError{})
		if held, _ := errors.AsType[*lease.HeldError](err); held.RetryAfter != time.Millisecond {
			d.Errorf("in the last moment: %+v", held)
		}
		d.now = d.now.Add(time.Millisecond)
		d.mustAcquire(d.leases, "b", "")
	})
}

func TestInstantsAreWholeMilliseconds(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		d.now = time.Date(2026, 3, 1, 13, 0, 0, 1_999_999, time.FixedZone("CET", 3600))
		g, err := d.leases.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second + 999*time.Microsecond})
		if err != nil {
			d.Fatal(err)
		}
		if want := time.Date(2026, 3, 1, 12, 0, 0, 1_000_000, time.UTC); g.AcquiredAt != want || g.ExpiresAt != want.Add(time.Second) || g.ValidFor != time.Second {
			d.Errorf("granted %+v", g)
		}
		if l := d.stored(); l != g.Lease {
			d.Errorf("stored %+v, answered %+v", l, g.Lease)
		}
	})
}

// A node whose clock is behind sees more left of another's grant than there is.
func TestNoMoreIsPromisedThanWasAskedFor(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		d.skew = -31 * time.Second
		req := lease.AcquireRequest{Owner: "a", RequestID: "q", TTL: time.Second + time.Microsecond}
		set := []string{"s1", "s2"}
		first, err := d.leases.Acquire(d.Context(), "t", "r", req)
		if err != nil {
			d.Fatal(err)
		}
		all, err := d.leases.AcquireSet(d.Context(), "t", set, req)
		if err != nil {
			d.Fatal(err)
		}
		for name, ask := range map[string]func() ([]lease.Grant, error){
			"acquire": func() ([]lease.Grant, error) {
				g, err := d.ahead.Acquire(d.Context(), "t", "r", req)
				return []lease.Grant{g}, err
			},
			"renew": func() ([]lease.Grant, error) {
				g, err := d.ahead.Renew(d.Context(), "t", "r", holder(first), req.TTL)
				return []lease.Grant{g}, err
			},
			"acquire a set": func() ([]lease.Grant, error) { return d.ahead.AcquireSet(d.Context(), "t", set, req) },
			"renew a set": func() ([]lease.Grant, error) {
				return d.ahead.RenewSet(d.Context(), "t", []lease.HeldLease{{Resource: "s1", Holder: holder(all[0])}, {Resource: "s2", Holder: holder(all[1])}}, req.TTL)
			},
		} {
			grants, err := ask()
			if err != nil {
				d.Errorf("%s: %v", name, err)
			}
			for _, g := range grants {
				if g.ValidFor != time.Second || !g.ExpiresAt.Equal(first.ExpiresAt) {
					d.Errorf("%s: %v of 1 s, until %v", name, g.ValidFor, g.ExpiresAt)
				}
			}
		}
	})
}

// What a forced release answered is remembered until the next grant.
func TestForcedReleaseIsRepeatedUntilTheNextGrant(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		g := d.mustAcquire(d.leases, "a", "")
		for range 2 {
			if token, err := d.leases.ForceRelease(d.Context(), "t", "r", g.Token, "f"); err != nil || token != g.Token+1 {
				d.Errorf("got %d, %v", token, err)
			}
		}
		next := d.mustAcquire(d.leases, "b", "")
		_, err := d.leases.ForceRelease(d.Context(), "t", "r", g.Token, "f")
		d.want("after the next grant", err, lease.ErrLost)
		if l := d.stored(); !l.Held || l.Token != next.Token {
			d.Errorf("the next grant is %+v", l)
		}
	})
}

func TestRenewalStopsAtMaxHold(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		g, err := d.leases.Acquire(d.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second, MaxHold: 1500 * time.Millisecond})
		if err != nil {
			d.Fatal(err)
		}
		d.now = d.now.Add(900 * time.Millisecond)
		if g, err = d.renew(g); err != nil || g.ValidFor != 600*time.Millisecond {
			d.Errorf("renewed for %v, %v", g.ValidFor, err)
		}
		d.now = d.now.Add(600 * time.Millisecond)
		_, err = d.renew(g)
		d.want("at its end", err, lease.ErrExpired)
		d.now = d.now.Add(time.Millisecond)
		g = d.mustAcquire(d.leases, "b", "") // as long as any
		for range 10 {
			d.now = d.now.Add(999 * time.Millisecond)
			if g, err = d.renew(g); err != nil || g.ValidFor != time.Second {
				d.Fatalf("renewed for %v, %v", g.ValidFor, err)
			}
		}
	})
}

func TestIDsAreChecked(t *testing.T) {
	long := strings.Repeat("x", 257)
	onEachStore(t, 0, func(d *desk) {
		ctx, ok := d.Context(), lease.AcquireRequest{Owner: "a", TTL: time.Second}
		for _, bad := range []string{"", ".", "..", long, "a\x00", "a\xff", "a\u0085"} {
			_, err := d.leases.Acquire(ctx, bad, "r", ok)
			d.wantField("acquire", err, "tenant")
			_, err = d.leases.Acquire(ctx, "t", bad, ok)
			d.wantField("acquire", err, "resource")
			_, err = d.leases.Acquire(ctx, "t", "r", lease.AcquireRequest{Owner: bad, TTL: time.Second})
			d.wantField("acquire", err, "owner")
			_, err = d.leases.Renew(ctx, "t", bad, lease.Holder{ID: "x", Token: 1}, time.Second)
			d.wantField("renew", err, "resource")
			d.wantField("release", d.leases.Release(ctx, "t", "r", lease.Holder{ID: bad, Token: 1}), "lease_id")
			_, err = d.leases.Get(ctx, "t", bad)
			d.wantField("get", err, "resource")
			if bad != "" {
				_, err = d.leases.Acquire(ctx, "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second, RequestID: bad})
				d.wantField("acquire", err, "request_id")
			}
		}
		for _, token := range []fencing.Token{0, -1, fencing.MaxToken + 1} {
			_, err := d.leases.Renew(ctx, "t", "r", lease.Holder{ID: "x", Token: token}, time.Second)
			d.wantField("renew", err, "fencing_token")
		}
		_, err := d.leases.Get(ctx, "t", "r")
		d.want("nothing was granted", err, lease.ErrNotFound)
	})
}

func TestNeverGranted(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		h := lease.Holder{ID: "lse_x", Token: 1}
		d.want("release", d.leases.Release(d.Context(), "t", "r", h), lease.ErrLost)
		_, err := d.leases.Renew(d.Context(), "t", "r", h, time.Second)
		d.want("renew", err, lease.ErrLost)
		_, err = d.leases.Get(d.Context(), "t", "r")
		d.want("get", err, lease.ErrNotFound)
	})
}

func TestNoTokenIsLeft(t *testing.T) {
	onEachStore(t, 0, func(d *desk) {
		if _, err := d.fences.Admit(d.Context(), "t", "r", fencing.Position{Token: fencing.MaxToken}); err != nil {
			d.Fatal(err)
		}
		_, err := d.acquire(d.leases, "a", "")
		d.want("acquire", err, fencing.ErrExhausted)
	})
}

func TestFaultsAreNoRefusals(t *testing.T) {
	store := kv.NewMemory(kv.MemoryOptions{})
	m := lease.New(lease.NewLocal(store), lease.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Acquire(ctx, "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"acquire": second(m.Acquire(t.Context(), "t", "r", lease.AcquireRequest{Owner: "a", TTL: time.Second})),
		"renew":   second(m.Renew(t.Context(), "t", "r", lease.Holder{ID: "x", Token: 1}, time.Second)),
		"release": m.Release(t.Context(), "t", "r", lease.Holder{ID: "x", Token: 1}),
		"get":     second(m.Get(t.Context(), "t", "r")),
	} {
		if !errors.Is(err, kv.ErrClosed) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}

// A cursor is of one tenant's list of one owner, and nobody makes one up.
func TestSealedCursors(t *testing.T) {
	sealer, err := seal.New([][]byte{make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	store := lease.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	m := lease.New(store, lease.Options{Cursors: sealer})
	for _, who := range []struct{ tenant, owner string }{{"t", "a"}, {"t", "b"}, {"u", "a"}} {
		for _, resource := range []string{"r1", "r2", "r3"} {
			if _, err := m.Acquire(t.Context(), who.tenant, who.owner+resource, lease.AcquireRequest{Owner: who.owner, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, err := m.List(t.Context(), "t", "a", "", 2)
	if err != nil || len(first.Leases) != 2 || strings.Contains(first.Next, "r2") {
		t.Fatalf("the first page: %+v, %v", first, err)
	}
	second, err := m.List(t.Context(), "t", "a", first.Next, 2)
	if err != nil || len(second.Leases) != 1 || second.Leases[0].Resource != "ar3" {
		t.Errorf("the second page: %+v, %v", second, err)
	}
	plain, err := lease.New(store, lease.Options{}).List(t.Context(), "t", "a", "", 2)
	if err != nil || plain.Next != "ar2" {
		t.Errorf("without a sealer: %+v, %v", plain, err)
	}
	for _, bad := range []struct{ why, tenant, owner, cursor string }{
		{"made up", "t", "a", "ar2"},
		{"another tenant's", "u", "a", first.Next},
		{"another owner's", "t", "b", first.Next},
		{"cut", "t", "a", first.Next[:len(first.Next)-1]},
	} {
		_, err := m.List(t.Context(), bad.tenant, bad.owner, bad.cursor, 2)
		if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != "cursor" {
			t.Errorf("%s: %v", bad.why, err)
		}
	}
}
