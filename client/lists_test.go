package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/coordsvc/coordsvc/api"
)

// all reads a list to its end.
func all[Item any](t *testing.T, list iter.Seq2[Item, error]) (items []Item) {
	t.Helper()
	for item, err := range list {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	return items
}

// Lists that have more than one page of the service come whole, also where an answer is lost.
func TestLists(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	const user, owner, many = "lists", "lists/of leases", 101
	var handles, resources []string
	for n := range many {
		s, err := c.CreateSession(ctx, api.CreateSession{UserID: user})
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, s.Session.Handle)
		resources = append(resources, fmt.Sprintf("lists %d", n))
	}
	if _, err := c.AcquireLeaseSet(ctx, api.AcquireLeaseSet{Owner: owner, Resources: resources[1:], TTLMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AcquireLease(ctx, resources[0], api.AcquireLease{Owner: owner, TTLMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	demand := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %d, want %d, or others", what, len(got), len(want))
		}
	}

	f.set(none, lost) // the second page comes again
	sessions, leases := c.Sessions(ctx, user), c.Leases(ctx, owner)
	for range 2 { // whoever ranges again gets all again
		var got []string
		for _, s := range all(t, sessions) {
			got = append(got, s.Handle)
		}
		demand("sessions", got, handles)
	}
	if f.sent.Load() != 5 {
		t.Errorf("%d requests for 2 × 2 pages of which one was lost", f.sent.Load())
	}
	for range 2 {
		var got []string
		for _, l := range all(t, leases) {
			got = append(got, l.Resource)
		}
		demand("leases", got, resources)
	}

	var got []string
	for e, err := range c.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if e.UserID == user && e.Subject != "" {
			got = append(got, e.Subject)
		}
		if len(got) == many {
			break
		}
	}
	demand("events", got, handles)

	if s, err := c.Session(ctx, handles[0]); err != nil || s.UserID != user {
		t.Errorf("%+v, %v", s, err)
	}
	if nobody := all(t, c.Sessions(ctx, "nobody")); len(nobody) > 0 {
		t.Errorf("%+v", nobody)
	}
	for _, err := range c.Sessions(ctx, "..") {
		if !isValue(err, "user_id") {
			t.Errorf("no user: %v", err)
		}
	}
	for _, err := range c.Leases(ctx, "") {
		if !isValue(err, "owner") {
			t.Errorf("no owner: %v", err)
		}
	}
}

// A page is read when it is wanted; one may have nothing, and an error ends the list.
func TestPagesAreReadAsTheyAreWanted(t *testing.T) {
	pages := map[string]string{
		"":    `{"leases":[{"resource":"1"},{"resource":"2"}],"next_cursor":"a&b"}`,
		"a&b": `{"leases":[],"next_cursor":"c"}`,
		"c":   `{"leases":[{"resource":"3"}],"next_cursor":"d"}`,
	}
	for want, asked := range map[int]int{1: 1, 2: 1, 3: 3, 4: 4} {
		synctest.Test(t, func(t *testing.T) {
			var queries []url.Values
			c := scripted(t, transport(func(r *http.Request) (*http.Response, error) {
				queries = append(queries, r.URL.Query())
				if page, ok := pages[r.URL.Query().Get("cursor")]; ok {
					return answer(http.StatusOK, "", page), nil
				}
				return answer(http.StatusNotFound, "", says(api.CodeNotFound, http.StatusNotFound, "").body), nil
			}))
			read := 0
			for l, err := range c.Leases(t.Context(), "o w") {
				read++
				if last := read == 4; last != IsCode(err, api.CodeNotFound) || !last && l.Resource != fmt.Sprint(read) {
					t.Errorf("%d: %+v, %v", read, l, err)
				}
				if read == want {
					break
				}
			}
			if read != want || len(queries) != asked {
				t.Errorf("read %d of %d with %d requests, want %d", read, want, len(queries), asked)
			}
			for _, q := range queries {
				if q.Get("owner") != "o w" || len(q["cursor"]) > 1 {
					t.Errorf("asked with %v", q)
				}
			}
		})
	}
}

// A cache that does not look at the query answers every page with the first.
func TestAListThatComesBackToItsPageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := scripted(t, transport(func(*http.Request) (*http.Response, error) {
			asked++
			return answer(http.StatusOK, "", `{"events":[{"id":"1"}],"next_cursor":"c"}`), nil
		}))
		var got []error
		for _, err := range c.Events(t.Context()) {
			if got = append(got, err); len(got) == 10 {
				break
			}
		}
		if len(got) != 3 || got[0] != nil || got[1] != nil || !outage(got[2]) || asked != 2 {
			t.Errorf("%v after %d requests", got, asked)
		}
	})
}

// A list ends with its caller's context, between two pages too.
func TestAListEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := scripted(t, transport(func(r *http.Request) (*http.Response, error) {
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			return answer(http.StatusOK, "", `{"events":[{"id":"1"}],"next_cursor":"c"}`), nil
		}))
		var got []error
		for _, err := range c.Events(ctx) {
			got = append(got, err)
			cancel()
		}
		if len(got) != 2 || got[0] != nil || !errors.Is(got[1], context.Canceled) {
			t.Errorf("%v", got)
		}
	})
}
