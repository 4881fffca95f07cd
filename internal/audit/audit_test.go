package audit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/audittest"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
)

// A clock stands until it is moved.
type clock struct{ now time.Time }

func (c *clock) read() time.Time         { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newClock() *clock { return &clock{now: audittest.Epoch.Add(456789 * time.Nanosecond)} }

func sealer(t testing.TB, keys ...byte) *seal.Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range keys {
		all = append(all, bytes.Repeat([]byte{b}, seal.KeySize))
	}
	s, err := seal.New(all)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func node(t testing.TB, store audit.Store, c *clock) *audit.Manager {
	t.Helper()
	return audit.New(store, sealer(t, 1), audit.Options{Now: c.read})
}

func act(action audit.Action, subject string) audit.Event {
	return audit.Event{Tenant: "acme", Actor: "key_0123", Action: action, Subject: subject, Outcome: audit.OK}
}

func mustRecord(t *testing.T, m *audit.Manager, e audit.Event) {
	t.Helper()
	if err := m.Record(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

func mustList(t *testing.T, m *audit.Manager, tenant, cursor string, limit int) audit.Page {
	t.Helper()
	page, err := m.List(t.Context(), tenant, cursor, limit)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func expectField(t *testing.T, why string, err error, field string) {
	t.Helper()
	if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != field {
		t.Errorf("%s: got %v, want a ValueError of %s", why, err, field)
	}
}

func ExampleManager() {
	ctx := context.Background()
	clock := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sealer, _ := seal.New([][]byte{bytes.Repeat([]byte{1}, seal.KeySize)})
	events := audit.New(audit.NewLocal(kv.NewMemory(kv.MemoryOptions{})), sealer, audit.Options{Now: func() time.Time { return clock }})

	for _, user := range []string{"ann", "bob", "cid"} {
		if err := events.Record(ctx, audit.Event{
			Tenant: "acme", Actor: "key_0123", Action: audit.LogoutAll, Subject: user, Reason: "stolen laptop", Outcome: audit.OK,
		}); err != nil {
			fmt.Println("log it:", err)
		}
	}
	var page audit.Page
	for more := true; more; more = page.Next != "" {
		page, _ = events.List(ctx, "acme", page.Next, 2)
		for _, e := range page.Events {
			fmt.Println(e.At().Format(time.RFC3339), e.Actor, e.Action, e.Subject, e.Reason, e.Outcome)
		}
		fmt.Println("more:", page.Next != "")
	}
	// Output:
	// 2026-03-01T12:00:00Z key_0123 logout_all cid stolen laptop ok
	// 2026-03-01T12:00:00Z key_0123 logout_all bob stolen laptop ok
	// more: true
	// 2026-03-01T12:00:00Z key_0123 logout_all ann stolen laptop ok
	// more: false
}

func TestWhatIsRecordedIsShown(t *testing.T) {
	c := newClock()
	m := node(t, memory(), c)
	want := audit.Event{
		Tenant: "acme", Actor: "key_0123", Action: audit.Disable, Subject: "ann", Reason: "left – see #7",
		RequestID: "req_1", Outcome: "user_disabled",
	}
	sent := want
	sent.ID, sent.Repeats = audittest.ID(time.Unix(1, 0), 1), 7 // both are Record's to make
	mustRecord(t, m, sent)
	page := mustList(t, m, "acme", "", 0)
	if len(page.Events) != 1 || page.Next != "" {
		t.Fatalf("%+v, want one event", page)
	}
	got := page.Events[0]
	if at := c.now.Truncate(time.Millisecond); !got.At().Equal(at) || got.At().Location() != time.UTC {
		t.Errorf("recorded at %v, want %v", got.At(), at)
	}
	if want.ID = got.ID; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if page := mustList(t, m, "other", "", 0); len(page.Events) != 0 {
		t.Errorf("another tenant sees %+v", page)
	}
}

// Of one node events lie in the order of their recording, however fast.
func TestOrderWithinAMillisecond(t *testing.T) {
	c := newClock()
	m := node(t, memory(), c)
	const n = 300
	for i := range n {
		if i%100 == 50 {
			c.advance(time.Millisecond)
		}
		mustRecord(t, m, act(audit.Create, fmt.Sprint(i)))
	}
	for i, e := range walk(t, m, "acme", 100) {
		if e.Subject != fmt.Sprint(n-1-i) {
			t.Fatalf("event %d is %s, want %d", i, e.Subject, n-1-i)
		}
	}
}

// walk reads every page, each but the last one full.
func walk(t *testing.T, m *audit.Manager, tenant string, limit int) (all []audit.Event) {
	t.Helper()
	for cursor := ""; ; {
		page := mustList(t, m, tenant, cursor, limit)
		all = append(all, page.Events...)
		if page.Next == "" {
			return all
		}
		if len(page.Events) != limit {
			t.Fatalf("a page of %d with more to come, want %d", len(page.Events), limit)
		}
		cursor = page.Next
	}
}

func TestIDsDiffer(t *testing.T) {
	c := newClock()
	store := memory()
	var wg sync.WaitGroup
	for range 8 { // nodes, and in each two at once
		m := node(t, store, c)
		for range 2 {
			wg.Go(func() {
				for range 50 {
					if err := m.Record(t.Context(), act(audit.Create, "s")); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := len(walk(t, node(t, store, c), "acme", 100)); n != 800 {
		t.Errorf("%d events, want 800", n)
	}
}

func TestPagesAcrossDays(t *testing.T) {
	c := newClock()
	m := node(t, memory(), c)
	var want []string
	for day := range 40 {
		for i := range day % 4 { // days without events among them
			mustRecord(t, m, act(audit.Create, fmt.Sprintf("%d.%d", day, i)))
			want = append(want, fmt.Sprintf("%d.%d", day, i))
		}
		c.advance(24 * time.Hour)
	}
	slices.Reverse(want)
	for _, limit := range []int{1, 7, len(want) - 1, len(want), len(want) + 1} {
		var got []string
		for _, e := range walk(t, m, "acme", limit) {
			got = append(got, e.Subject)
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, want %v", limit, got, want)
		}
	}
}

// A walk shows what was there when it began, once, whatever is recorded meanwhile.
func TestPagesWhileEventsCome(t *testing.T) {
	c := newClock()
	m := node(t, memory(), c)
	for i := range 10 {
		mustRecord(t, m, act(audit.Create, fmt.Sprint(i)))
	}
	var got []string
	for cursor := ""; ; {
		page := mustList(t, m, "acme", cursor, 3)
		for _, e := range page.Events {
			got = append(got, e.Subject)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
		mustRecord(t, m, act(audit.Create, "late"))
	}
	if want := []string{"9", "8", "7", "6", "5", "4", "3", "2", "1", "0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An event is shown until its retention ends, whether or not it has been removed.
func TestRetentionIsShown(t *testing.T) {
	c := newClock()
	m := node(t, memory(), c)
	mustRecord(t, m, act(audit.Create, "s"))
	for _, step := range []struct {
		why  string
		wait time.Duration
		want int
	}{
		{"its last millisecond", audit.Retention, 1},
		{"the next one", time.Millisecond, 0},
	} {
		c.advance(step.wait)
		if n := len(mustList(t, m, "acme", "", 0).Events); n != step.want {
			t.Errorf("%s: %d events, want %d", step.why, n, step.want)
		}
	}
}

// A node whose clock is behind shows what others have recorded.
func TestClocksDiffer(t *testing.T) {
	ahead, behind := newClock(), newClock()
	behind.advance(-time.Hour)
	store := memory()
	mustRecord(t, node(t, store, ahead), act(audit.Create, "s"))
	if n := len(mustList(t, node(t, store, behind), "acme", "", 0).Events); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestListChecks(t *testing.T) {
	m := node(t, memory(), newClock())
	for _, limit := range []int{-1, audit.MaxPage + 1} {
		_, err := m.List(t.Context(), "acme", "", limit)
		expectField(t, fmt.Sprint("limit ", limit), err, "limit")
	}
	for range audit.MaxPage + 1 {
		mustRecord(t, m, act(audit.Create, "s"))
	}
	if n := len(mustList(t, m, "acme", "", 0).Events); n != audit.MaxPage {
		t.Errorf("%d events on a page without a limit, want %d", n, audit.MaxPage)
	}
}

func TestCursors(t *testing.T) {
	c := newClock()
	store := memory()
	m := node(t, store, c)
	for _, tenant := range []string{"acme", "other"} {
		for i := range 3 {
			e := act(audit.Create, fmt.Sprint(i))
			e.Tenant = tenant
			mustRecord(t, m, e)
		}
	}
	first := mustList(t, m, "acme", "", 1)
	cursor := first.Next
	refuse := func(why string, m *audit.Manager, tenant, cursor string) {
		t.Helper()
		page, err := m.List(t.Context(), tenant, cursor, 1)
		expectField(t, why, err, "cursor")
		if !reflect.DeepEqual(page, audit.Page{}) {
			t.Errorf("%s: a page beside the error: %+v", why, page)
		}
	}
	refuse("another tenant's", m, "other", cursor)
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		raw[i] ^= 1
		refuse(fmt.Sprintf("byte %d altered", i), m, "acme", base64.RawURLEncoding.EncodeToString(raw))
		raw[i] ^= 1
	}
	id := first.Events[0].ID
	for why, text := range map[string]string{
		"an id":                     id.String(),
		"cut":                       cursor[:len(cursor)-1],
		"a line break behind it":    cursor + "\n",
		"a blank":                   " ",
		"of another list":           sealer(t, 1).Seal("sessions", "acme", id[:]),
		"of another length":         sealer(t, 1).Seal("audit events", "acme", id[:15]),
		"sealed with a foreign key": sealer(t, 9).Seal("audit events", "acme", id[:]),
		"megabytes":                 strings.Repeat("A", 2<<20),
	} {
		refuse(why, m, "acme", text)
	}

	with := func(keys ...byte) *audit.Manager {
		return audit.New(store, sealer(t, keys...), audit.Options{Now: c.read})
	}
	second := mustList(t, m, "acme", cursor, 1)
	for why, other := range map[string]*audit.Manager{"another node": with(1), "a newer key": with(1, 2), "a key to come": with(2, 1)} {
		if page := mustList(t, other, "acme", cursor, 1); !slices.Equal(page.Events, second.Events) {
			t.Errorf("%s: %+v, want %+v", why, page.Events, second.Events)
		}
	}
	newer := mustList(t, with(1, 2), "acme", "", 1).Next
	refuse("sealed with the newer key, opened without it", m, "acme", newer)
	refuse("the old key is gone", with(2), "acme", cursor)
	if page := mustList(t, with(2), "acme", newer, 1); !slices.Equal(page.Events, second.Events) {
		t.Errorf("the newer key seals: %+v, want %+v", page.Events, second.Events)
	}
}

// A cursor tells its holder nothing: not even the id that it stands for.
func TestCursorIsSealed(t *testing.T) {
	m := node(t, memory(), newClock())
	mustRecord(t, m, act(audit.Create, "1"))
	mustRecord(t, m, act(audit.Create, "2"))
	page := mustList(t, m, "acme", "", 1)
	raw, err := base64.RawURLEncoding.DecodeString(page.Next)
	if id := page.Events[0].ID; err != nil || bytes.Contains(raw, id[:6]) || strings.Contains(page.Next, "evt_") {
		t.Errorf("the cursor %q shows %s, %v", page.Next, id, err)
	}
}

// golden is a cursor of the tenant acme, sealed with the key 1: it opens in every version.
const golden = "AY-gsDmHM2otOw2rcShCou4yKrBptVQ_pfhm1GBneqE8Zd96hfT36gCw4dTLuVw9jS1SrrqDbnYg"

// Each worker of a fuzz run is a process of its own, so the one cursor that opens must be fixed.
func FuzzCursor(f *testing.F) {
	m := node(f, memory(), newClock())
	for _, text := range []string{"", golden, golden[1:], "A", "evt_0", golden + "=", golden + "\n"} {
		f.Add("acme", text)
		f.Add("other", text)
	}
	f.Fuzz(func(t *testing.T, tenant, cursor string) {
		_, err := m.List(t.Context(), tenant, cursor, 1)
		first := cursor == "" && keytype.CheckID("tenant", tenant) == nil
		if valid := first || tenant == "acme" && cursor == golden; valid != (err == nil) {
			t.Errorf("tenant %q, cursor %q: %v", tenant, cursor, err)
		}
		if _, ok := errors.AsType[*keytype.ValueError](err); err != nil && !ok {
			t.Errorf("tenant %q, cursor %q: %v is not a ValueError", tenant, cursor, err)
		}
	})
}

// A broken store answers its first n appends with err, some after the event was stored.
type broken struct {
	audit.Store
	n      int
	err    error
	stored bool
	hang   bool // until the caller gives up
	ctxs   []context.Context
}

func (b *broken) Append(ctx context.Context, e audit.Event) error {
	if b.ctxs = append(b.ctxs, ctx); len(b.ctxs) > b.n {
		return b.Store.Append(ctx, e)
	}
	if b.stored {
		if err := b.Store.Append(ctx, e); err != nil {
			return err
		}
	}
	if b.hang {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, ctx.Err())
	}
	return b.err
}

func (b *broken) Page(ctx context.Context, tenant string, oldest, before audit.ID, limit int) ([]audit.Event, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.Store.Page(ctx, tenant, oldest, before, limit)
}

func TestRecordOnAFailingStore(t *testing.T) {
	down := fmt.Errorf("boom: %w", keytype.ErrUnavailable)
	unknown := fmt.Errorf("boom: %w", keytype.ErrOutcomeUnknown)
	cases := []struct {
		why    string
		store  broken
		tries  int
		err    error
		events int
	}{
		{"works", broken{}, 1, nil, 1},
		{"the second try works", broken{n: 1, err: down}, 2, nil, 1},
		{"the third try works", broken{n: 2, err: down}, 3, nil, 1},
		{"no try works", broken{n: 9, err: down}, 3, keytype.ErrUnavailable, 0},
		{"an answer is lost", broken{n: 1, err: unknown, stored: true}, 2, nil, 1},
		{"all answers are lost", broken{n: 9, err: unknown, stored: true}, 3, keytype.ErrOutcomeUnknown, 1},
		{"one hangs", broken{n: 1, hang: true}, 2, nil, 1},
		{"all hang", broken{n: 9, hang: true}, 3, context.DeadlineExceeded, 0},
	}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.store.Store = memory()
				m := audit.New(&c.store, sealer(t, 1), audit.Options{})
				start := time.Now()
				err := m.Record(t.Context(), act(audit.Revoke, "ses_1"))
				if took := time.Since(start); took >= 2*time.Second {
					t.Errorf("took %v, want less than 2 s", took)
				}
				if !errors.Is(err, c.err) || len(c.store.ctxs) != c.tries {
					t.Errorf("%v after %d tries, want %v after %d", err, len(c.store.ctxs), c.err, c.tries)
				}
				lost, ok := errors.AsType[*audit.UnrecordedError](err)
				if ok != (c.err != nil) {
					t.Errorf("%v is an UnrecordedError: %v", err, ok)
				}
				page, err := audit.New(c.store.Store, sealer(t, 1), audit.Options{}).List(t.Context(), "acme", "", 0)
				if err != nil || len(page.Events) != c.events {
					t.Fatalf("%+v, %v; want %d events", page, err, c.events)
				}
				if ok && c.events == 1 && page.Events[0] != lost.Event {
					t.Errorf("stored %+v, handed back %+v", page.Events[0], lost.Event)
				}
			})
		})
	}
}

// A client that hangs up, or has used up its request's time, does not keep its act out of the log.
func TestRecordAfterTheRequestEnded(t *testing.T) {
	store := &broken{Store: memory()}
	m := audit.New(store, sealer(t, 1), audit.Options{})
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
	cancel()
	if err := m.Record(ctx, act(audit.Revoke, "ses_1")); err != nil {
		t.Errorf("record: %v", err)
	}
	if n := len(mustList(t, m, "acme", "", 0).Events); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	if store.ctxs[0].Value(key{}) != "trace" {
		t.Error("the store does not see what the request's context carries")
	}
}

// What the store did not take can be logged whole; the error's own text names no user and quotes nobody.
func TestUnrecordedEventIsLoggedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &broken{Store: memory(), n: 9, err: keytype.ErrUnavailable}
		e := act(audit.Disable, "ann")
		e.Reason, e.RequestID = "left", "req_7"
		err := audit.New(store, sealer(t, 1), audit.Options{}).Record(t.Context(), e)
		lost, ok := errors.AsType[*audit.UnrecordedError](err)
		if !ok {
			t.Fatalf("%v", err)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("event was not recorded", "event", lost.Event, "error", err)
		for _, want := range []string{
			`"id":"` + lost.Event.ID.String(), `"at":"2000-01-01T00:00:00Z"`, `"tenant":"acme"`, `"actor":"key_0123"`, `"action":"disable"`,
			`"subject":"ann"`, `"reason":"left"`, `"request_id":"req_7"`, `"outcome":"ok"`, `"repeats":0`,
			`"error":"audit: ` + lost.Event.ID.String() + ` (disable) was not recorded: keytype: the store is unavailable"`,
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s is not in %s", want, log.String())
			}
		}
	})
}

func TestListOnAFailingStore(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for _, c := range []struct {
		why       string
		ctx       context.Context
		err, want error
	}{
		{"down", t.Context(), keytype.ErrUnavailable, keytype.ErrUnavailable},
		{"a read has no outcome to be unknown", t.Context(), keytype.ErrOutcomeUnknown, keytype.ErrUnavailable},
		{"the store's own time is up", t.Context(), context.DeadlineExceeded, keytype.ErrUnavailable},
		{"the asker left", ended, context.Canceled, context.Canceled},
		{"the asker's time is up", late, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		m := audit.New(&broken{err: c.err}, sealer(t, 1), audit.Options{})
		page, err := m.List(c.ctx, "acme", "", 0)
		if !errors.Is(err, c.want) || errors.Is(err, keytype.ErrOutcomeUnknown) || page.Events != nil {
			t.Errorf("%s: %+v, %v; want %v", c.why, page, err, c.want)
		}
	}
}
