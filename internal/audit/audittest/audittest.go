// Package audittest decides whether a store of events keeps the contract of audit.Store.
package audittest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/audit"
)

// Epoch is around when the suite's events are.
var Epoch = time.Date(2026, 11, 29, 12, 0, 0, 123e6, time.UTC)

// Between oldest and before lies every event of the suite.
var (
	oldest = audit.FirstID(Epoch.Add(-audit.Retention))
	recent = audit.FirstID(Epoch.Add(-time.Hour)) // older than what most cases append: a short span is read faster
	before = audit.FirstID(Epoch.Add(24 * time.Hour))
)

// Run runs the suite. Each call of open returns an empty store.
func Run(t *testing.T, open func(t *testing.T) audit.Store) {
	for name, test := range map[string]func(*testing.T, audit.Store){
		"nothing":              nothing,
		"what is stored comes": roundTrip,
		"appended again":       again,
		"newest first":         newestFirst,
		"bounds":               bounds,
		"pages":                pages,
		"tenants":              tenants,
		"race for one id":      raceForOne,
		"race of many":         raceOfMany,
		"ended context":        endedContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// ID makes an id of the instant; n tells apart, and orders, those of one millisecond.
func ID(at time.Time, n byte) audit.ID {
	id := audit.FirstID(at)
	id[len(id)-1] = n
	return id
}

// Event makes an event with every field set.
func Event(tenant string, id audit.ID) audit.Event {
	return audit.Event{
		ID: id, Tenant: tenant, Actor: "key_0123", Action: audit.Revoke, User: "ann", Subject: "ses_ann",
		Reason: "stolen laptop", RequestID: "req_1", Outcome: audit.OK, Repeats: 3,
	}
}

// ExpectRefused fails where a store takes what stands under the event's id, in a
// format that it does not know, for anything but an error.
func ExpectRefused(t *testing.T, s audit.Store, e audit.Event) {
	t.Helper()
	if err := s.Append(t.Context(), e); err == nil {
		t.Error("append went through")
	}
	if got, err := s.Page(t.Context(), e.Tenant, oldest, before, 10); err == nil {
		t.Errorf("page: %+v", got)
	}
}

func nothing(t *testing.T, s audit.Store) {
	expect(t, s, "a", "an empty store")
	mustAppend(t, s, Event("b", ID(Epoch, 0)))
	expect(t, s, "a", "a store with another tenant's event")
}

func roundTrip(t *testing.T, s audit.Store) {
	least := audit.Event{ID: ID(Epoch, 0), Tenant: "a", Actor: "k", Action: audit.Denied, Outcome: "forbidden_scope"}
	odd := Event("  tenant:1|ü\u200b🦊", ID(Epoch, 1))
	odd.User, odd.Reason = `"name" / 日本 <&>`, "1:a\u2028"
	longest := Event(strings.Repeat("t", 256), ID(Epoch, 2))
	longest.Actor, longest.User, longest.Subject, longest.RequestID = strings.Repeat("k", 256), strings.Repeat("ü", 128), strings.Repeat("s", 256), strings.Repeat("r", 256)
	longest.Reason, longest.Outcome = strings.Repeat("\U0001F98A", audit.MaxReason/4), audit.Outcome(strings.Repeat("o", audit.MaxOutcome))
	largest := Event("largest id", audit.FirstID(Epoch))
	for i := range largest.ID[6:] {
		largest.ID[6+i] = 0xff
	}
	for _, e := range []audit.Event{least, odd, longest, largest} {
		mustAppend(t, s, e)
		expect(t, s, e.Tenant, "one event", e)
	}
}

func again(t *testing.T, s audit.Store) {
	first := Event("a", ID(Epoch, 0))
	for range 3 {
		mustAppend(t, s, first)
		expect(t, s, "a", "the same event again", first)
	}
	for name, change := range map[string]func(*audit.Event){
		"action":     func(e *audit.Event) { e.Action = audit.Enable },
		"actor":      func(e *audit.Event) { e.Actor = "key_4" },
		"outcome":    func(e *audit.Event) { e.Outcome = audit.Unknown },
		"reason":     func(e *audit.Event) { e.Reason = "" },
		"repeats":    func(e *audit.Event) { e.Repeats++ },
		"request id": func(e *audit.Event) { e.RequestID = "" },
		"user":       func(e *audit.Event) { e.User = "bob" },
		"subject":    func(e *audit.Event) { e.Subject = "bob" },
	} {
		other := first
		change(&other)
		if err := s.Append(t.Context(), other); err == nil {
			t.Errorf("an event with another %s took the id", name)
		}
		expect(t, s, "a", "after an event with another "+name, first)
	}
	namesake := Event("b", first.ID)
	mustAppend(t, s, namesake)
	expect(t, s, "b", "another tenant's event of the same id", namesake)
	expect(t, s, "a", "the first, still", first)
}

// instants lie on both sides of days, months and years, and close together.
func instants() []time.Time {
	var all []time.Time
	for _, edge := range []time.Time{
		Epoch, Epoch.Add(-24 * time.Hour), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC),
	} {
		for _, d := range []time.Duration{-time.Hour, -time.Millisecond, 0, time.Millisecond, time.Second} {
			all = append(all, edge.Add(d))
		}
	}
	return all
}

func newestFirst(t *testing.T, s audit.Store) {
	want := fill(t, s, "a")
	if got, err := s.Page(t.Context(), "a", oldest, before, 1000); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v\nwant %v", show(got), err, show(want))
	}
}

// fill appends events of many instants, three in each, in no order, and
// returns them newest first.
func fill(t *testing.T, s audit.Store, tenant string) []audit.Event {
	t.Helper()
	var all []audit.Event
	for _, at := range instants() {
		for n := range byte(3) {
			all = append(all, Event(tenant, ID(at, n)))
		}
	}
	for i := range all {
		mustAppend(t, s, all[i*37%len(all)]) // each once, in no order: 37 and the length have no common factor
	}
	slices.SortFunc(all, func(a, b audit.Event) int { return b.ID.Compare(a.ID) })
	return all
}

func bounds(t *testing.T, s audit.Store) {
	last := Epoch.Add(-time.Hour)
	month := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var events []audit.Event // oldest first
	for i, at := range []time.Time{month.Add(-time.Millisecond), month, month.Add(time.Millisecond), last} {
		e := Event("a", ID(at, 1))
		e.RequestID = fmt.Sprint(i)
		mustAppend(t, s, e)
		events = append(events, e)
	}
	steps := []struct {
		why            string
		oldest, before audit.ID
		limit          int
		want           []int
	}{
		{"all", oldest, before, 10, []int{3, 2, 1, 0}},
		{"before is not shown", oldest, events[3].ID, 10, []int{2, 1, 0}},
		{"before need not be there", oldest, ID(last, 2), 10, []int{3, 2, 1, 0}},
		{"nor lie in a month with events", oldest, audit.FirstID(month.AddDate(0, -1, 0)), 10, nil},
		{"oldest is shown", events[1].ID, before, 10, []int{3, 2, 1}},
		{"what is older is not", ID(month, 2), before, 10, []int{3, 2}},
		{"oldest may lie within a millisecond", ID(month.Add(-time.Millisecond), 0), before, 10, []int{3, 2, 1, 0}},
		{"the newest come first", oldest, before, 2, []int{3, 2}},
		{"a limit that is just enough", oldest, before, 4, []int{3, 2, 1, 0}},
		{"a limit is not filled up with what is too old", events[2].ID, before, 4, []int{3, 2}},
		{"one event between the bounds", events[1].ID, events[2].ID, 10, []int{1}},
		{"bounds that are one", events[1].ID, events[1].ID, 10, nil},
		{"bounds the wrong way round", events[3].ID, events[0].ID, 10, nil},
		{"months the wrong way round", before, oldest, 10, nil},
	}
	for _, step := range steps {
		var want []audit.Event
		for _, i := range step.want {
			want = append(want, events[i])
		}
		got, err := s.Page(t.Context(), "a", step.oldest, step.before, step.limit)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s:\n got %v, %v\nwant %v", step.why, show(got), err, show(want))
		}
	}
}

func pages(t *testing.T, s audit.Store) {
	want := fill(t, s, "a")
	fill(t, s, "b")
	for _, limit := range []int{1, 2, 7, len(want) - 1, len(want), len(want) + 1} {
		var got []audit.Event
		for next := before; ; {
			page, err := s.Page(t.Context(), "a", oldest, next, limit)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			next = page[limit-1].ID
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %d events, want %d:\n%v\n%v", limit, len(got), len(want), show(got), show(want))
		}
	}
}

// Tenants whose names begin or end alike, or look like a stored key, never meet.
func tenants(t *testing.T, s audit.Store) {
	names := []string{"a", "aa", "A", "1:a", "a2:", "a7:2026-11.0", "7:2026-11.0", "1:a9:2026-11.0", "a/", "ä", "a\u0308"}
	for i, name := range names {
		mustAppend(t, s, Event(name, ID(Epoch, byte(i))))
	}
	for i, name := range names {
		expect(t, s, name, "its own event alone", Event(name, ID(Epoch, byte(i))))
	}
}

func raceForOne(t *testing.T, s audit.Store) {
	for n := range byte(5) {
		var wg sync.WaitGroup
		stored := make([]bool, 16)
		for i := range stored {
			wg.Go(func() {
				e := Event("a", ID(Epoch, n))
				e.Repeats = i / 4 // each event is appended four times
				stored[i] = s.Append(t.Context(), e) == nil
			})
		}
		wg.Wait()
		page, err := s.Page(t.Context(), "a", ID(Epoch, n), before, 10)
		if err != nil || len(page) != 1 {
			t.Fatalf("%v, %v; want one event", show(page), err)
		}
		for i, ok := range stored {
			if wins := i/4 == page[0].Repeats; ok != wins {
				t.Errorf("append %d of %d: acknowledged is %v, stored is %v", i, page[0].Repeats, ok, wins)
			}
		}
		if page, err = s.Page(t.Context(), "a", recent, page[0].ID, 10); err != nil || len(page) != int(n) {
			t.Errorf("%v, %v; want the %d of before", show(page), err, n)
		}
	}
}

func raceOfMany(t *testing.T, s audit.Store) {
	const each = 6
	var wg sync.WaitGroup
	for w := range byte(8) {
		wg.Go(func() {
			for i := range each {
				e := Event("a", ID(Epoch.Add(time.Duration(i)*time.Millisecond), w))
				if err := s.Append(t.Context(), e); err != nil {
					t.Error(err)
					return
				}
				page, err := s.Page(t.Context(), "a", e.ID, before, 1000)
				if err != nil || len(page) == 0 || page[len(page)-1] != e {
					t.Errorf("after append returned, a page does not end with %s: %v, %v", e.ID, show(page), err)
				}
			}
		})
	}
	wg.Wait()
	if page, err := s.Page(t.Context(), "a", recent, before, 1000); err != nil || len(page) != 8*each {
		t.Errorf("%d events, %v; want %d", len(page), err, 8*each)
	}
}

func endedContext(t *testing.T, s audit.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Append(ctx, Event("a", ID(Epoch, 0))); err == nil {
		t.Error("append went through")
	}
	expect(t, s, "a", "after an append that could not begin")
	if page, err := s.Page(ctx, "a", oldest, before, 1); err == nil {
		t.Errorf("page: %v", show(page))
	}
}

func mustAppend(t *testing.T, s audit.Store, e audit.Event) {
	t.Helper()
	if err := s.Append(t.Context(), e); err != nil {
		t.Fatalf("append %s: %v", e.ID, err)
	}
}

// expect fails unless these are all of the tenant's recent events.
func expect(t *testing.T, s audit.Store, tenant, why string, want ...audit.Event) {
	t.Helper()
	got, err := s.Page(t.Context(), tenant, recent, before, 1000)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s:\n got %v, %v\nwant %v", why, show(got), err, show(want))
	}
}

// show names events, and shows a lone one whole.
func show(events []audit.Event) string {
	if len(events) == 1 {
		return fmt.Sprintf("%+v", events[0])
	}
	var names []string
	for _, e := range events {
		names = append(names, e.At().Format(time.RFC3339Nano)+" "+e.ID.String())
	}
	return strings.Join(names, ", ")
}
