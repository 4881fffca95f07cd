package sessiontest

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coordsvc/coordsvc/session"
)

// DataVersions is what is kept beside a session: each write names the version that it replaces.
func DataVersions(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	if d, err := w.m.Data(t.Context(), w.tenant, s.Handle); err != nil || d.Version != 0 || d.Value != nil {
		t.Errorf("nothing written yet: %+v %v", d, err)
	}
	for _, step := range []struct {
		why     string
		version int64
		data    string
		want    error
		next    int64
	}{
		{"a version from the future", 1, `1`, session.ErrDataVersion, 0},
		{"the first", 0, `{"a": 1}`, nil, 1},
		{"the first again", 0, `{"a": 1}`, session.ErrDataVersion, 0},
		{"the second", 1, `null`, nil, 2},
		{"an older version", 1, `2`, session.ErrDataVersion, 0},
	} {
		if next, err := w.m.SetData(t.Context(), w.tenant, s.Handle, step.version, []byte(step.data)); !errors.Is(err, step.want) || next != step.next {
			t.Errorf("%s: version %d, %v", step.why, next, err)
		}
	}
	if d, err := w.m.Data(t.Context(), w.tenant, s.Handle); err != nil || string(d.Value) != "null" || d.Version != 2 {
		t.Errorf("read %q at %d, %v", d.Value, d.Version, err)
	}
	for why, bad := range map[string]string{"no JSON": `{`, "nothing": ``, "too long": `"` + string(make([]byte, session.MaxData)) + `"`} {
		if _, err := w.m.SetData(t.Context(), w.tenant, s.Handle, 2, []byte(bad)); err == nil || !strings.HasPrefix(err.Error(), "data ") {
			t.Errorf("%s: %v", why, err)
		}
	}
	w.want("data are no use and no harm", token, s, "")

	_, with, err := w.create(session.CreateRequest{UserID: "ann", Data: []byte(`[1]`)})
	w.must("create with data", err)
	if d, err := w.m.Data(t.Context(), w.tenant, with.Handle); err != nil || string(d.Value) != `[1]` || d.Version != 1 {
		t.Errorf("read %q at %d, %v", d.Value, d.Version, err)
	}
}

// S1S8S11DataAfterTheEnd is about a late save: it brings nothing back, and makes nothing.
func S1S8S11DataAfterTheEnd(t *testing.T, open Open) {
	w := start(t, open)
	token, s := w.login("ann")
	_, err := w.m.SetData(t.Context(), w.tenant, s.Handle, 0, []byte(`1`))
	w.must("save", err)
	w.must("revoke", second(w.m.Revoke(t.Context(), w.tenant, token)))
	nobody := "ses_" + s.Handle[4:26] + id("nobody")
	idle, si := w.login("ann")
	w.pass(idleTime + slack)
	expired, se := w.login("bob")
	w.logoutAll("bob", "")
	for why, c := range map[string]struct{ tenant, handle string }{
		"revoked":        {w.tenant, s.Handle},
		"idle":           {w.tenant, si.Handle},
		"logged out":     {w.tenant, se.Handle},
		"nobody's":       {w.tenant, nobody},
		"no handle":      {w.tenant, "x"},
		"another tenant": {newTenant(), s.Handle},
	} {
		for version := range int64(2) {
			if _, err := w.m.SetData(t.Context(), c.tenant, c.handle, version, []byte(`2`)); !errors.Is(err, session.ErrNotFound) {
				t.Errorf("%s: saved: %v", why, err)
			}
		}
		if _, err := w.m.Data(t.Context(), c.tenant, c.handle); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%s: read: %v", why, err)
		}
	}
	w.want("revoked", token, s, session.Revoked)
	w.want("idle", idle, si, session.IdleExpired)
	w.want("logged out", expired, se, session.Epoch)
}

// DataAgainstData races saves: one of each version wins.
func DataAgainstData(t *testing.T, open Open) {
	w := start(t, open)
	_, s := w.login("ann")
	for version := range int64(rounds) {
		var won atomic.Int64
		save := func() {
			switch _, err := w.m.SetData(t.Context(), w.tenant, s.Handle, version, []byte(strconv.FormatInt(version, 10))); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, session.ErrDataVersion):
				t.Error(err)
			}
		}
		together(four(save)...)
		if won.Load() != 1 {
			t.Fatalf("%d saves replaced version %d", won.Load(), version)
		}
	}
}
