package session_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

func TestBadInputIsRefusedByField(t *testing.T) {
	h := newHere(t)
	before := h.items()
	field := func(why string, err error, want string) {
		t.Helper()
		if bad, ok := errors.AsType[*keytype.ValueError](err); !ok || bad.Field != want {
			t.Errorf("%s: %v, want a refusal of %s", why, err, want)
		}
	}
	long := strings.Repeat("x", 257)
	for _, c := range []struct {
		why   string
		req   session.CreateRequest
		field string
	}{
		{"no user", session.CreateRequest{}, "user_id"},
		{"a user of 257 bytes", session.CreateRequest{UserID: long}, "user_id"},
		{"a user of 1 MB", session.CreateRequest{UserID: strings.Repeat("x", 1<<20)}, "user_id"},
		{"a user with a NUL", session.CreateRequest{UserID: "a\x00"}, "user_id"},
		{"a user with a line break", session.CreateRequest{UserID: "a\r\n"}, "user_id"},
		{"a user of invalid UTF-8", session.CreateRequest{UserID: "\xff"}, "user_id"},
		{"a user .", session.CreateRequest{UserID: "."}, "user_id"},
		{"a user ..", session.CreateRequest{UserID: ".."}, "user_id"},
		{"aal -1", session.CreateRequest{UserID: "ann", AAL: -1}, "aal"},
		{"aal 4", session.CreateRequest{UserID: "ann", AAL: 4}, "aal"},
		{"the same factor twice", session.CreateRequest{UserID: "ann", AMR: []string{"otp", "pwd", "otp"}}, "amr"},
		{"11 factors", session.CreateRequest{UserID: "ann", AMR: strings.Split("abcdefghijk", "")}, "amr"},
		{"a factor of 65 bytes", session.CreateRequest{UserID: "ann", AMR: []string{long[:65]}}, "amr"},
		{"an empty factor", session.CreateRequest{UserID: "ann", AMR: []string{""}}, "amr"},
		{"a device of 257 bytes", session.CreateRequest{UserID: "ann", DeviceID: long}, "device_id"},
		{"an address of 65 bytes", session.CreateRequest{UserID: "ann", IP: long[:65]}, "ip"},
		{"an address with a NUL", session.CreateRequest{UserID: "ann", IP: "\x00"}, "ip"},
		{"a user agent of 513 bytes", session.CreateRequest{UserID: "ann", UserAgent: strings.Repeat("x", 513)}, "user_agent"},
		{"a user agent of invalid UTF-8", session.CreateRequest{UserID: "ann", UserAgent: "\xc3"}, "user_agent"},
		{"a life of 499 ms", session.CreateRequest{UserID: "ann", AbsoluteTTL: 499 * time.Millisecond}, "absolute_ttl_ms"},
		{"a life of less than no time", session.CreateRequest{UserID: "ann", AbsoluteTTL: -1}, "absolute_ttl_ms"},
		{"a life of a year and 1 ms", session.CreateRequest{UserID: "ann", AbsoluteTTL: session.MaxTTL + time.Millisecond}, "absolute_ttl_ms"},
		{"idle after 499 ms", session.CreateRequest{UserID: "ann", IdleTTL: 499 * time.Millisecond}, "idle_ttl_ms"},
		{"idle before it began", session.CreateRequest{UserID: "ann", IdleTTL: -time.Hour}, "idle_ttl_ms"},
		{"idle after its end", session.CreateRequest{UserID: "ann", AbsoluteTTL: time.Second, IdleTTL: 1_001 * time.Millisecond}, "idle_ttl_ms"},
		{"a limit below 0", session.CreateRequest{UserID: "ann", MaxSessions: -1}, "max_sessions"},
		{"a limit of 101", session.CreateRequest{UserID: "ann", MaxSessions: 101}, "max_sessions"},
		{"data that are no JSON", session.CreateRequest{UserID: "ann", Data: []byte("{")}, "data"},
		{"empty data", session.CreateRequest{UserID: "ann", Data: []byte{}}, "data"},
		{"data of 4097 bytes", session.CreateRequest{UserID: "ann", Data: []byte(`"` + strings.Repeat("x", 4095) + `"`)}, "data"},
		{"idle after the default end", session.CreateRequest{UserID: "ann", IdleTTL: 13 * time.Hour}, "idle_ttl_ms"},
	} {
		_, _, err := h.m.Create(t.Context(), "acme", c.req)
		field(c.why, err, c.field)
	}
	for _, c := range []struct {
		why   string
		req   session.VerifyRequest
		field string
	}{
		{"min_aal -1", session.VerifyRequest{MinAAL: -1}, "min_aal"},
		{"min_aal 4", session.VerifyRequest{MinAAL: 4}, "min_aal"},
		{"an age below 0", session.VerifyRequest{MaxAuthAge: -time.Second}, "max_auth_age_ms"},
		{"an age below 1 ms", session.VerifyRequest{MaxAuthAge: time.Microsecond}, "max_auth_age_ms"},
		{"an age over a year", session.VerifyRequest{MaxAuthAge: session.MaxTTL + time.Millisecond}, "max_auth_age_ms"},
		{"a user of 257 bytes", session.VerifyRequest{UserID: long}, "user_id"},
	} {
		_, err := h.m.Verify(t.Context(), "acme", h.token, c.req)
		field(c.why, err, c.field)
	}
	for _, cursor := range []string{"x", h.s.Handle, strings.Repeat("z", 22), strings.Repeat("0", 21), strings.Repeat("0", 23), strings.Repeat("-", 22)} {
		_, err := h.m.List(t.Context(), "acme", "ann", cursor, 0)
		field("cursor "+cursor, err, "cursor")
	}
	for _, limit := range []int{-1, 101} {
		_, err := h.m.List(t.Context(), "acme", "ann", "", limit)
		field("limit", err, "limit")
	}
	for why, req := range map[string]session.RotateRequest{"aal": {AAL: 4}, "amr": {AMR: []string{"otp", "otp"}}} {
		_, err := h.m.Rotate(t.Context(), "acme", h.token, req)
		field("rotate", err, why)
	}
	_, err := h.m.LogoutAll(t.Context(), "acme", long, "")
	field("logout-all", err, "user_id")
	_, err = h.m.Disable(t.Context(), "acme", "\x00")
	field("disable", err, "user_id")
	_, err = h.m.Epochs(t.Context(), "", "ann")
	field("no tenant", err, "tenant")

	if after := h.items(); !reflect.DeepEqual(after, before) {
		t.Errorf("stored after all that: %v", after)
	}
	if _, _, err := h.m.Create(t.Context(), "acme", session.CreateRequest{
		UserID: long[:256], AAL: 3, AMR: strings.Split("abcdefghi"+long[:1], ""), DeviceID: long[:256], IP: long[:64], UserAgent: strings.Repeat("x", 512),
		AbsoluteTTL: session.MaxTTL, IdleTTL: session.MaxTTL, MaxSessions: 100, Data: []byte(`"` + strings.Repeat("x", 4094) + `"`),
	}); err != nil {
		t.Errorf("everything at its limit: %v", err)
	}
}

// What the caller does with its slices afterwards is its own business.
func TestManagerKeepsItsOwnCopies(t *testing.T) {
	h := newHere(t)
	key, amr := make([]byte, 32), []string{"pwd"}
	m := session.New(session.NewLocal(h.store), session.Options{RouteKey: key, Now: func() time.Time { return h.now }})
	_, s, err := m.Create(t.Context(), "acme", session.CreateRequest{UserID: "bob", AMR: amr})
	h.must(err)
	key[0], amr[0] = 1, "otp"
	if s.AMR[0] != "pwd" {
		t.Error("the session shares the request's methods")
	}
	page, err := m.List(t.Context(), "acme", "bob", "", 0)
	if err != nil || len(page.Sessions) != 1 {
		t.Errorf("after the route key's buffer was reused: %v %v", page, err)
	}
}

// What cannot be is refused without asking the store.
func TestNonsenseCostsNoTransaction(t *testing.T) {
	h := newHere(t)
	h.must(h.store.Close())
	for _, text := range []string{"", "x", h.s.Handle, h.token[:96], h.token + "0"} {
		if v, err := h.m.Verify(t.Context(), "acme", text, session.VerifyRequest{}); err != nil || v.Reason != session.Unknown {
			t.Errorf("verify %q: %+v %v", text, v, err)
		}
		h.must(second(h.m.Revoke(t.Context(), "acme", text)))
	}
	for _, handle := range []string{"", "x", h.token, h.s.Handle + "0"} {
		if _, err := h.m.Get(t.Context(), "acme", handle); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("get %q: %v", handle, err)
		}
		if err := second(h.m.RevokeHandle(t.Context(), "acme", handle)); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("revoke %q: %v", handle, err)
		}
	}
	for _, except := range []string{"x", h.s.Handle, h.token} { // the last is ann's
		if _, err := h.m.LogoutAll(t.Context(), "acme", "bob", except); !errors.Is(err, session.ErrNotActive) {
			t.Errorf("keep %q: %v", except, err)
		}
	}
}

// A cursor opens for the user and the tenant that it was given to, and for nobody else.
func TestSealedCursors(t *testing.T) {
	sealer, err := seal.New([][]byte{make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	m := session.New(openMemory(t), session.Options{RouteKey: make([]byte, 32), Cursors: sealer})
	for _, who := range [][2]string{{"acme", "ann"}, {"acme", "bob"}, {"bolt", "ann"}} {
		for range 3 {
			if _, _, err := m.Create(t.Context(), who[0], session.CreateRequest{UserID: who[1]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, err := m.List(t.Context(), "acme", "ann", "", 2)
	if err != nil || len(first.Sessions) != 2 || strings.Contains(first.Next, first.Sessions[1].Handle[26:]) {
		t.Fatalf("%+v %v", first, err)
	}
	last, err := m.List(t.Context(), "acme", "ann", first.Next, 2)
	if err != nil || len(last.Sessions) != 1 || last.Next != "" || last.Sessions[0].Handle <= first.Sessions[1].Handle {
		t.Errorf("the second page: %+v %v", last, err)
	}
	for why, c := range map[string][3]string{
		"another user's":   {"acme", "bob", first.Next},
		"another tenant's": {"bolt", "ann", first.Next},
		"altered":          {"acme", "ann", first.Next[1:]},
		"an id":            {"acme", "ann", first.Sessions[0].Handle[26:]},
	} {
		_, err := m.List(t.Context(), c[0], c[1], c[2], 2)
		if bad, ok := errors.AsType[*keytype.ValueError](err); !ok || bad.Field != "cursor" {
			t.Errorf("%s cursor: %v", why, err)
		}
	}
}
