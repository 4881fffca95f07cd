package audit_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/audittest"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

func TestEventsAreChecked(t *testing.T) {
	long := strings.Repeat("a", 257)
	cases := []struct {
		why    string
		change func(*audit.Event)
		field  string // "" = fine
	}{
		{"as it is", func(*audit.Event) {}, ""},
		{"no tenant", func(e *audit.Event) { e.Tenant = "" }, "tenant"},
		{"no actor", func(e *audit.Event) { e.Actor = "" }, "actor"},
		{"a command line", func(e *audit.Event) { e.Actor = "coordsvc keys" }, ""},
		{"no subject", func(e *audit.Event) { e.Subject = "" }, ""},
		{"a long subject", func(e *audit.Event) { e.Subject = long }, "subject"},
		{"no request", func(e *audit.Event) { e.RequestID = "" }, ""},
		{"an odd request", func(e *audit.Event) { e.RequestID = "a\nb" }, "request_id"},
		{"no action", func(e *audit.Event) { e.Action = "" }, "action"},
		{"an unknown action", func(e *audit.Event) { e.Action = "created" }, "action"},
		{"no outcome", func(e *audit.Event) { e.Outcome = "" }, "outcome"},
		{"a sentence for an outcome", func(e *audit.Event) { e.Outcome = "it worked" }, "outcome"},
		{"a code", func(e *audit.Event) { e.Outcome = "session_not_active" }, ""},
		{"a long code", func(e *audit.Event) { e.Outcome = audit.Outcome(strings.Repeat("a", 65)) }, "outcome"},
		{"no reason", func(e *audit.Event) { e.Reason = "" }, ""},
		{"the longest reason", func(e *audit.Event) { e.Reason = strings.Repeat("a", 512) }, ""},
		{"a longer reason", func(e *audit.Event) { e.Reason = strings.Repeat("a", 513) }, "reason"},
		{"half a character", func(e *audit.Event) { e.Reason = "\xc3" }, "reason"},
		{"two lines", func(e *audit.Event) { e.Reason = "a\nb" }, "reason"},
	}
	for _, c := range cases {
		e := audittest.Event("acme", audit.ID{})
		c.change(&e)
		m := node(t, memory(), newClock())
		err := m.Record(t.Context(), e)
		if c.field != "" {
			expectField(t, c.why, err, c.field)
			if _, ok := errors.AsType[*audit.UnrecordedError](err); !ok {
				t.Errorf("%s: the event is not in %v", c.why, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", c.why, err)
		}
		if c.field == "reason" {
			expectField(t, c.why, audit.CheckReason(e.Reason), "reason")
		}
	}
}

func TestEveryActionIsKnown(t *testing.T) {
	m := node(t, memory(), newClock())
	for _, a := range []audit.Action{
		audit.Create, audit.Rotate, audit.StepUp, audit.Revoke, audit.OldTokenUsed, audit.LogoutAll, audit.PermissionEpoch,
		audit.Disable, audit.Enable, audit.Erase, audit.TenantLogoutAll, audit.KeyCreate, audit.KeyRevoke, audit.Denied,
	} {
		if err := m.Record(t.Context(), act(a, "x")); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestSecretsAreCutOut(t *testing.T) {
	token := "cst_" + strings.Repeat("aB3", 31)
	for given, want := range map[string]string{
		token:                            "cst_[redacted]",
		"csk_" + strings.Repeat("-", 20): "csk_[redacted]",
		"was " + token + ", and csk_0123456789abcdef_-: both": "was cst_[redacted], and csk_[redacted]: both",
		token[:60]:                     "cst_[redacted]", // cut short it is a secret still
		"x" + token + token:            "xcst_[redacted]",
		"ses_" + token[4:48]:           "ses_" + token[4:48], // a handle is none
		"key_0123456789abcdef01234567": "key_0123456789abcdef01234567",
		"cst_ is how tokens begin":     "cst_ is how tokens begin",
	} {
		c := newClock()
		m := node(t, memory(), c)
		e := act(audit.Revoke, given)
		e.Reason, e.RequestID, e.Actor = given, given, given
		mustRecord(t, m, e)
		got := mustList(t, m, "acme", "", 0).Events[0]
		for field, text := range map[string]string{"actor": got.Actor, "subject": got.Subject, "reason": got.Reason, "request_id": got.RequestID} {
			if text != want {
				t.Errorf("%s of %q: got %q, want %q", field, given, text, want)
			}
		}
	}
}

// S38: no spelling of a token is in the file, in a log or in an error.
func TestS38CanaryIsNowhere(t *testing.T) {
	const canary = "cst_0123456789abcdefghijCANARYcanaryCANARYcanary"
	path := filepath.Join(t.TempDir(), "store")
	file, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	for _, store := range []audit.Store{audit.NewLocal(file), &broken{n: 99, err: keytype.ErrUnavailable}} {
		m := node(t, store, newClock())
		for i := range 4 {
			e := act(audit.Revoke, "found")
			*[]*string{&e.Actor, &e.Subject, &e.Reason, &e.RequestID}[i] = canary
			if err := m.Record(t.Context(), e); err != nil {
				lost, _ := errors.AsType[*audit.UnrecordedError](err)
				fmt.Fprintf(&said, "%v %+v %#v", err, err, lost)
				slog.New(slog.NewTextHandler(&said, nil)).Error("x", "error", err, "event", lost.Event, "lost", lost)
				slog.New(slog.NewJSONHandler(&said, nil)).Error("x", "error", err, "event", lost.Event, "lost", lost)
			}
		}
		fmt.Fprintf(&said, "%+v", m)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	said.Write(raw)
	if !bytes.Contains(raw, []byte("found")) || !bytes.Contains(raw, []byte("cst_[redacted]")) {
		t.Error("the events are not in the file")
	}
	for _, form := range []string{canary[4:], "CANARY", hex.EncodeToString([]byte("CANARY"))} {
		if strings.Contains(said.String(), form) {
			t.Errorf("found as %s", form)
		}
	}
}

func TestIDs(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 123456789, time.UTC)
	first := audit.FirstID(at)
	if got := first.Time(); !got.Equal(at.Truncate(time.Millisecond)) {
		t.Errorf("the instant is %v, want %v", got, at)
	}
	if got := first.String(); len(got) != 30 {
		t.Errorf("%s has %d characters, want 30", got, len(got))
	}
	var largest audit.ID
	for i := range largest {
		largest[i] = 0xff
	}
	ids := []audit.ID{{}, audit.FirstID(time.Unix(1, 0)), first, audittest.ID(at, 1), audittest.ID(at, 255), audit.FirstID(at.Add(time.Millisecond)), largest}
	for i, id := range ids {
		if got, err := audit.ParseID(id.String()); err != nil || got != id {
			t.Errorf("%s parses as %s, %v", id, got, err)
		}
		if i > 0 && (ids[i-1].Compare(id) >= 0 || ids[i-1].String() >= id.String()) {
			t.Errorf("%s is not before %s", ids[i-1], id)
		}
	}
	if got := audit.FirstID(time.Unix(-1, 0)); got != (audit.ID{}) {
		t.Errorf("the id of an instant before 1970 is %s", got)
	}
	text := first.String()
	for _, bad := range []string{
		"", "evt_", text[4:], text[:29], text + "0", "EVT_" + text[4:], strings.ToLower(text[:20]) + text[20:], text[:10] + "W" + text[11:],
		text[:29] + "1", "evt_\n" + text[4:], text + "\n", text + "======",
	} {
		if id, err := audit.ParseID(bad); err == nil {
			t.Errorf("%q parses as %s", bad, id)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(audit.FirstID(audittest.Epoch).String())
	f.Add("evt_")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := audit.ParseID(text); err == nil && id.String() != text {
			t.Errorf("%q parses as %s", text, id)
		}
	})
}
