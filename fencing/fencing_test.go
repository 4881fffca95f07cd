package fencing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

func newManager() *fencing.Manager {
	return fencing.New(fencing.NewLocal(kv.NewMemory(kv.MemoryOptions{})))
}

func request(token fencing.Token, sequence int64, value string) fencing.WriteRequest {
	return fencing.WriteRequest{Position: fencing.Position{Token: token, Sequence: sequence}, Mode: fencing.HighWater, Value: []byte(value)}
}

func wantField(t *testing.T, why string, err error, field string) {
	t.Helper()
	if e, ok := errors.AsType[*keytype.ValueError](err); !ok || e.Field != field {
		t.Errorf("%.40s: got %v, want that %s is refused", why, err, field)
	}
}

func TestL34Positions(t *testing.T) {
	m := newManager()
	for _, at := range []fencing.Position{{Token: 0}, {Token: -1}, {Token: fencing.MaxToken + 1}, {Token: -1 << 63}} {
		_, err := m.Admit(t.Context(), "t", "r", at)
		wantField(t, "admit", err, "fencing_token")
		_, err = m.Write(t.Context(), "t", "r", "k", request(at.Token, 1, "1"))
		wantField(t, "write", err, "fencing_token")
	}
	for _, sequence := range []int64{-1, fencing.MaxSequence + 1, -1 << 63} {
		_, err := m.Admit(t.Context(), "t", "r", fencing.Position{Token: 1, Sequence: sequence})
		wantField(t, "admit", err, "sequence")
		_, err = m.Write(t.Context(), "t", "r", "k", request(1, sequence, "1"))
		wantField(t, "write", err, "sequence")
	}
	if _, err := m.Mark(t.Context(), "t", "r"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("mark: %v", err)
	}
	if _, err := m.Read(t.Context(), "t", "r", "k"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("record: %v", err)
	}
}

func TestValuesAreChecked(t *testing.T) {
	m := newManager()
	for _, value := range []string{
		"", " ", "{", "nul", "NaN", "1 2", `{"a":1}x`, "'a'", "\"\xff\"", "01", "\"" + strings.Repeat("x", fencing.MaxValue-1) + "\"",
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000),
	} {
		_, err := m.Write(t.Context(), "t", "r", "k", request(1, 1, value))
		wantField(t, value, err, "value")
	}
	for i, value := range []string{"null", "0", `"` + strings.Repeat("x", fencing.MaxValue-2) + `"`, `"` + strings.Repeat(" ", 9) + `"`} {
		r, err := m.Write(t.Context(), "t", "r", "k", request(1, int64(i+1), value))
		if err != nil || string(r.Value) != value {
			t.Errorf("%.40s: %v", value, err)
		}
	}
	for field, w := range map[string]fencing.WriteRequest{
		"mode":     {Position: fencing.Position{Token: 9}, Mode: "other", Value: []byte("1")},
		"lease_id": {Position: fencing.Position{Token: 9}, Value: []byte("1")},
	} {
		_, err := m.Write(t.Context(), "t", "r", "k", w)
		wantField(t, field, err, field)
	}
	w := request(9, 1, "1")
	w.LeaseID = "lse_1"
	_, err := m.Write(t.Context(), "t", "r", "k", w)
	wantField(t, "a lease that nobody looks at", err, "lease_id")
}

func TestIDsAreChecked(t *testing.T) {
	m := newManager()
	for _, bad := range []string{"", "..", strings.Repeat("x", 257), "a\n"} {
		_, err := m.Admit(t.Context(), bad, "r", fencing.Position{Token: 1})
		wantField(t, "admit", err, "tenant")
		_, err = m.Mark(t.Context(), "t", bad)
		wantField(t, "mark", err, "resource")
		_, err = m.Write(t.Context(), "t", "r", bad, request(1, 1, "1"))
		wantField(t, "write", err, "key")
		_, err = m.Read(t.Context(), "t", bad, "k")
		wantField(t, "read", err, "resource")
	}
}

// A repetition may be spelled differently: space between tokens is no part of a value.
func TestValuesAreComparedCompact(t *testing.T) {
	m := newManager()
	first, err := m.Write(t.Context(), "t", "r", "k", request(1, 1, "{ \"a\" : [1, 2] }\n"))
	if err != nil || string(first.Value) != `{"a":[1,2]}` {
		t.Fatalf("got %s, %v", first.Value, err)
	}
	again, err := m.Write(t.Context(), "t", "r", "k", request(1, 1, `{"a":[1,2]}`))
	if err != nil || again.Version != 1 {
		t.Errorf("got version %d, %v", again.Version, err)
	}
	if _, err := m.Write(t.Context(), "t", "r", "k", request(1, 1, `{"a":[2,1]}`)); !errors.Is(err, fencing.ErrSequenceReused) {
		t.Errorf("another value: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	m := newManager()
	if _, err := m.Write(t.Context(), "t", "r", "k", request(5, 2, "1")); err != nil {
		t.Fatal(err)
	}
	r, err := m.Write(t.Context(), "t", "r", "k", request(4, 9, "2"))
	if stale, ok := errors.AsType[*fencing.StaleError](err); !ok || stale.HighWater != (fencing.Position{Token: 5, Sequence: 2}) || r.Version != 0 {
		t.Errorf("write: %+v, %v", r, err)
	}
	if _, err := m.Admit(t.Context(), "t", "r", fencing.Position{Token: 7, Sequence: 3}); err != nil {
		t.Fatal(err)
	}
	p, err := m.Admit(t.Context(), "t", "r", fencing.Position{Token: 7, Sequence: 2})
	if stale, ok := errors.AsType[*fencing.StaleError](err); !ok || stale.HighWater != (fencing.Position{Token: 7, Sequence: 3}) || p != (fencing.Position{}) {
		t.Errorf("admit: %+v, %v", p, err)
	}
	if p, err := m.Mark(t.Context(), "t", "r"); err != nil || p != (fencing.Position{Token: 7, Sequence: 3}) {
		t.Errorf("mark: %+v, %v", p, err)
	}
}

// A record of a mode that this version does not know is not overwritten.
func TestModeIsFixed(t *testing.T) {
	store := fencing.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	if _, err := store.Write(t.Context(), "t", "r", "k", fencing.Write{Position: fencing.Position{Token: 1}, Mode: "later", Value: []byte("1"), ID: "w"}); err != nil {
		t.Fatal(err)
	}
	if _, err := fencing.New(store).Write(t.Context(), "t", "r", "k", request(2, 0, "2")); !errors.Is(err, fencing.ErrModeFixed) {
		t.Errorf("got %v", err)
	}
}

func TestFaultsAreNoRefusals(t *testing.T) {
	store := kv.NewMemory(kv.MemoryOptions{})
	m := fencing.New(fencing.NewLocal(store))
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"admit": second(m.Admit(t.Context(), "t", "r", fencing.Position{Token: 1})),
		"mark":  second(m.Mark(t.Context(), "t", "r")),
		"write": second(m.Write(t.Context(), "t", "r", "k", request(1, 1, "1"))),
		"read":  second(m.Read(t.Context(), "t", "r", "k")),
	} {
		if !errors.Is(err, kv.ErrClosed) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
