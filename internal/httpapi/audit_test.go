package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/internal/auth"
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
	s.must(204, s.post("/v1/sessions/revoke", `{"token":"`+token+`"}`))
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
