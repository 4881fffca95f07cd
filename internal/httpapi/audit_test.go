package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// told lists the events, oldest first, as "action user outcome reason".
func (s *service) told() []string {
	s.t.Helper()
	var list struct {
		Events []struct {
			Action, Outcome, Reason, Subject, Actor string
			User                                    string `json:"user_id"`
			RequestID                               string `json:"request_id"`
		}
	}
	if err := json.Unmarshal([]byte(s.must(200, s.get("/v1/events")).body), &list); err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for _, e := range list.Events {
		if !strings.HasPrefix(e.Actor, "key_") || e.RequestID == "" {
			s.t.Errorf("an event without actor or request id: %+v", e)
		}
		lines = append([]string{strings.TrimRight(fmt.Sprintln(e.Action, e.User, e.Outcome, e.Reason), " \n")}, lines...)
	}
	return lines
}

func TestEventsTellWhoDidWhatAndWhatCameOfIt(t *testing.T) {
	s := startService(t)
	made := s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`))
	token := made.field("token")
	rotated := s.must(200, s.post("/v1/sessions/rotate", `{"token":"`+token+`"}`))
	s.must(200, s.post("/v1/sessions/rotate", `{"token":"`+rotated.field("token")+`","aal":2}`))
	s.must(409, s.post("/v1/sessions/rotate", `{"token":"`+token+`"}`))
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+rotated.field("token")+`"}`))
	s.must(200, s.post("/v1/users/ann/logout-all", `{"reason":"stolen laptop"}`))
	s.must(200, s.post("/v1/users/ann/permission-epoch", `{}`))
	s.must(200, s.post("/v1/users/ann/disable", `{"reason":"left"}`))
	s.must(403, s.post("/v1/sessions", `{"user_id":"ann"}`))
	s.must(422, s.post("/v1/sessions", `{"user_id":""}`)) // could not be read: nothing was decided
	s.must(200, s.post("/v1/users/ann/enable", `{"reason":"back"}`))
	id := s.must(201, s.post("/v1/api-keys", `{"name":"k","scopes":["leases:read"]}`)).field("id")
	s.must(204, s.do(request{method: "DELETE", path: "/v1/api-keys/" + id}))

	want := []string{
		"create ann ok", "rotate ann ok", "step_up ann ok", "rotate  session_not_active", "revoke  ok",
		"logout_all ann ok stolen laptop", "permission_epoch ann ok", "disable ann ok left", "create  user_disabled",
		"enable ann ok back", "key_create  ok", "key_revoke  ok",
	}
	if got := s.told(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// No token ends a session that is not its own, and no event says that it did.
func TestWhatWasNotRevokedIsNotRecorded(t *testing.T) {
	s := startService(t)
	made := s.must(201, s.post("/v1/sessions", ann))
	first := made.field("token")
	second := s.must(200, s.post("/v1/sessions/rotate", `{"token":"`+first+`"}`)).field("token")
	third := s.must(200, s.post("/v1/sessions/rotate", `{"token":"`+second+`"}`)).field("token")
	other := s.as(s.newKey("other", auth.AllScopes()...))
	for _, token := range []string{"garbage", "cst_" + strings.Repeat("0", 93), first} {
		s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`))
	}
	for range 3 {
		other.must(204, other.post("/v1/sessions/revoke", `{"token":"`+third+`"}`))
		s.must(404, s.delete("/v1/sessions/"+made.sub("session").field("handle")+"x"))
	}
	if v := s.must(200, s.post("/v1/sessions/verify", `{"token":"`+third+`"}`)); v.field("active") != "true" {
		t.Errorf("the session ended: %s", v.body)
	}
	if got := other.told(); len(got) != 0 {
		t.Errorf("another tenant's events tell of it: %q", got)
	}
	want := []string{"create ann ok", "rotate ann ok", "rotate ann ok", "revoke  not_found"} // refusals once a minute
	if got := s.told(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	for range 3 {
		s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+second+`"}`))
	}
	if got := s.told(); !slices.Equal(got, append(want, "revoke  ok")) {
		t.Errorf("events %q after a revocation, want one", got)
	}
}

// A measured store fails, and knows how long it had.
type measured struct {
	kv.Store
	left time.Duration
}

func (m *measured) fail(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	m.left = time.Until(deadline)
	return keytype.ErrOutcomeUnknown
}

func (m *measured) Update(ctx context.Context, _ func(kv.Tx) error) error { return m.fail(ctx) }
func (m *measured) View(ctx context.Context, _ func(kv.Tx) error) error   { return m.fail(ctx) }

// The store of a route with an event leaves some of the request's time to the event.
func TestAnEventHasTimeLeft(t *testing.T) {
	store := &measured{}
	s := startService(t, func(d *Deps) {
		d.Timeout = time.Hour
		d.Sessions = session.New(session.NewLocal(store), session.Options{RouteKey: make([]byte, 32)})
	})
	s.get("/v1/users/ann/epochs").refused(t, 503, "store_unavailable")
	if store.left < 50*time.Minute {
		t.Errorf("a read without an event has %v", store.left)
	}
	s.post("/v1/users/ann/logout-all", `{}`).refused(t, 503, "outcome_unknown")
	if store.left > 45*time.Minute || store.left < 35*time.Minute {
		t.Errorf("a change with an event has %v", store.left)
	}
	if got := s.told(); !slices.Equal(got, []string{"logout_all ann outcome_unknown"}) {
		t.Errorf("events %q", got)
	}
}

func TestADeniedKeyIsRecordedOnceAMinute(t *testing.T) {
	s := startService(t)
	weak := map[string]string{"Authorization": "Bearer " + s.newKey("default", auth.LeasesRead)}
	for range 5 {
		s.must(403, s.do(request{method: "POST", path: "/v1/users/ann/logout-all", body: `{}`, header: weak}))
	}
	if got := s.told(); len(got) != 1 || got[0] != "denied ann forbidden_scope users:revoke" {
		t.Errorf("events %q, want one", got)
	}
}

func TestAnotherTenantsEventsAreNotShown(t *testing.T) {
	s := startService(t)
	s.must(201, s.post("/v1/sessions", `{"user_id":"ann"}`))
	s.must(201, s.post("/v1/sessions", `{"user_id":"bob"}`))
	first := s.must(200, s.get("/v1/events?limit=1"))
	other := map[string]string{"Authorization": "Bearer " + s.newKey("other", auth.AuditRead)}
	if a := s.must(200, s.do(request{method: "GET", path: "/v1/events", header: other})); a.body != `{"events":[]}`+"\n" && a.body != `{"events":[]}` {
		t.Errorf("another tenant reads %s", a.body)
	}
	cursor := first.field("next_cursor")
	s.must(200, s.get("/v1/events?cursor="+cursor))
	s.must(422, s.do(request{method: "GET", path: "/v1/events?cursor=" + cursor, header: other}))
}

// TestAnEventThatCannotBeStoredIsLogged: the change stands, and the log has it whole.
func TestAnEventThatCannotBeStoredIsLogged(t *testing.T) {
	s := startService(t)
	if err := s.events.Close(); err != nil {
		t.Fatal(err)
	}
	s.must(200, s.post("/v1/users/ann/logout-all", `{"reason":"stolen laptop"}`))
	if log := s.log.String(); !strings.Contains(log, "an event was not stored") || !strings.Contains(log, "stolen laptop") {
		t.Errorf("the log lacks the event:\n%s", log)
	}
	s.get("/v1/events").refused(t, 503, "store_unavailable")
}
