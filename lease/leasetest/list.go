package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/lease"
)

// list checks that an owner's leases are found, those alone, and while they are held.
func list(t *testing.T, s Stores) {
	now := start
	m := lease.New(s.Leases, lease.Options{Now: func() time.Time { return now }})
	grants := map[string]lease.Grant{}
	acquire := func(tenant, owner string, resources ...string) {
		t.Helper()
		for _, r := range resources {
			g, err := m.Acquire(t.Context(), tenant, r, lease.AcquireRequest{Owner: owner, TTL: time.Minute, Data: `"` + r + `"`})
			if err != nil {
				t.Fatal(err)
			}
			grants[r] = g
		}
	}
	want := func(why, tenant, owner string, limit int, want ...string) {
		t.Helper()
		var got []string
		for cursor, pages := "", 0; ; pages++ {
			page, err := m.List(t.Context(), tenant, owner, cursor, limit)
			if err != nil || len(page.Leases) > limit || pages > 20 {
				t.Fatalf("%s: page %d: %d leases, %v", why, pages, len(page.Leases), err)
			}
			for _, l := range page.Leases {
				if l.Owner != owner || !l.Held || l.Data != `"`+l.Resource+`"` {
					t.Errorf("%s: listed %+v", why, l)
				}
				got = append(got, l.Resource)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		slices.Sort(got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", why, got, want)
		}
	}
	want("nobody holds anything", "t", "a", 10)
	acquire("t", "a", "r1", "r2", "r3", "a-longer-one", "r:5")
	acquire("t", "b", "s1")
	acquire("t", "ab", "s2")
	acquire("u", "a", "u1")
	all := []string{"a-longer-one", "r1", "r2", "r3", "r:5"}
	want("its own", "t", "a", 100, all...)
	for _, limit := range []int{1, 2, 5} {
		want("in pages", "t", "a", limit, all...)
	}
	want("another owner", "t", "b", 10, "s1")
	want("another tenant", "u", "a", 10, "u1")
	if err := m.Release(t.Context(), "t", "r2", holder(grants["r2"])); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ForceRelease(t.Context(), "t", "r3", grants["r3"].Token, ""); err != nil {
		t.Fatal(err)
	}
	if err := m.ReleaseSet(t.Context(), "t", []lease.HeldLease{{Resource: "r:5", Holder: holder(grants["r:5"])}}); err != nil {
		t.Fatal(err)
	}
	want("released, by its holder, by force and as a set", "t", "a", 10, "a-longer-one", "r1")
	acquire("t", "b", "r2")
	want("granted to another", "t", "b", 10, "r2", "s1")
	if _, err := m.AcquireSet(t.Context(), "t", []string{"r3"}, lease.AcquireRequest{Owner: "b", TTL: time.Hour, Data: `"r3"`}); err != nil {
		t.Fatal(err)
	}
	want("granted as a set", "t", "b", 10, "r2", "r3", "s1")
	now = now.Add(10 * time.Minute)
	want("expired", "t", "a", 10)
	want("expired but for one", "t", "b", 1, "r3")
	if _, err := m.List(t.Context(), "t", strings.Repeat("x", 257), "", 0); err == nil {
		t.Error("an owner that cannot be was listed")
	}
}
