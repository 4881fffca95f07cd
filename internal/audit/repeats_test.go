package audit

import (
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// Events that change nothing are bounded, with nothing kept from who reads.
func TestRepeats(t *testing.T) {
	denied := Event{Tenant: "a", Actor: "k", Action: Denied, Subject: "ann", Reason: "users:revoke", Outcome: "forbidden_scope"}
	old := Event{Tenant: "a", Actor: "k", Action: OldTokenUsed, Subject: "ses_1", Outcome: OK}
	refused := Event{Tenant: "a", Actor: "k", Action: Create, User: "ann", Outcome: "epoch_mismatch"}
	revoked := Event{Tenant: "a", Actor: "k", Action: Revoke, Subject: "ses_1", Outcome: OK}
	with := func(e Event, change func(*Event)) Event { change(&e); return e }
	steps := []struct {
		why     string
		wait    time.Duration
		event   Event
		stored  bool
		repeats int
	}{
		{"the first is stored", 0, denied, true, 0},
		{"the next is not", time.Millisecond, denied, false, 0},
		{"nor with another subject, which the caller chooses", 0, with(denied, func(e *Event) { e.Subject = "bob" }), false, 0},
		{"nor under another request", 0, with(denied, func(e *Event) { e.RequestID = "req_2" }), false, 0},
		{"another scope is another event", 0, with(denied, func(e *Event) { e.Reason = "keys:admin" }), true, 0},
		{"so is another key", 0, with(denied, func(e *Event) { e.Actor = "l" }), true, 0},
		{"and another tenant", 0, with(denied, func(e *Event) { e.Tenant = "b" }), true, 0},
		{"an old token is as well", 0, old, true, 0},
		{"not twice", 0, old, false, 0},
		{"but that of another session is", 0, with(old, func(e *Event) { e.Subject = "ses_2" }), true, 0},
		{"a minute after the first, not the last", quiet - time.Millisecond, denied, true, 3},
		{"the count begins anew", quiet - 1, denied, false, 0},
		{"and ends", 1, denied, true, 1},
		{"a refusal is stored", 0, refused, true, 0},
		{"not twice, though of another user", 0, with(refused, func(e *Event) { e.User = "bob" }), false, 0},
		{"another refusal is", 0, with(refused, func(e *Event) { e.Outcome = "session_not_active" }), true, 0},
		{"that of a disabled user is", 0, with(refused, func(e *Event) { e.Outcome = disabled }), true, 0},
		{"and of another one", 0, with(refused, func(e *Event) { e.Outcome, e.User = disabled, "bob" }), true, 0},
		{"what may have happened is each time", 0, with(refused, func(e *Event) { e.Outcome = Unknown }), true, 0},
		{"so it is", 0, with(refused, func(e *Event) { e.Outcome = Unknown }), true, 0},
		{"a revocation is stored", 0, revoked, true, 0},
		{"not again of the same session", 0, revoked, false, 0},
		{"but of another", 0, with(revoked, func(e *Event) { e.Subject = "ses_2" }), true, 0},
		{"a clock that went back keeps nobody quiet", -time.Hour, denied, true, 0},
	}
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var r repeats
	for _, step := range steps {
		now = now.Add(step.wait)
		leftOut, stored := r.admit(step.event, now)
		if stored != step.stored || leftOut != step.repeats {
			t.Errorf("%s: stored is %v with %d left out, want %v with %d", step.why, stored, leftOut, step.stored, step.repeats)
		}
	}
	for _, a := range []Action{Create, Rotate, StepUp, Revoke, LogoutAll, PermissionEpoch, Disable, Enable, Erase, TenantLogoutAll, KeyCreate, KeyRevoke} {
		for range 3 {
			if _, stored := r.admit(Event{Tenant: "a", Actor: "k", Action: a}, now); !stored {
				t.Errorf("%s, which changes something, was left out", a)
			}
		}
	}
}

func TestRepeatsAreShown(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	m := New(NewLocal(kv.NewMemory(kv.MemoryOptions{})), nil, Options{Now: func() time.Time { return now }})
	denied := Event{Tenant: "a", Actor: "k", Action: Denied, Reason: "users:revoke", Outcome: "forbidden_scope"}
	for range 1000 {
		if err := m.Record(t.Context(), denied); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(quiet)
	if err := m.Record(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	page, err := m.List(t.Context(), "a", "", 0)
	if err != nil || len(page.Events) != 2 || page.Events[0].Repeats != 999 || page.Events[1].Repeats != 0 {
		t.Errorf("%+v, %v; want two events, 999 left out between them", page.Events, err)
	}
}

// What is watched is bounded, and a flood does not stop what comes after it from being stored.
func TestRepeatsAreBounded(t *testing.T) {
	var r repeats
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for i := range maxWatched + 500 {
		if _, stored := r.admit(Event{Tenant: "a", Action: OldTokenUsed, Subject: fmt.Sprint(i)}, now); !stored {
			t.Fatalf("the first event of %d was left out", i)
		}
	}
	if n := len(r.seen); n != maxWatched {
		t.Errorf("%d kinds are watched, want %d", n, maxWatched)
	}
}
