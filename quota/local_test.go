package quota_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

func openFile(t *testing.T, path string) *kv.Bolt {
	t.Helper()
	file, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestMemory(t *testing.T) {
	quotatest.Run(t, func(*testing.T) quota.Store { return quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})) })
}

func TestFile(t *testing.T) {
	quotatest.Run(t, func(t *testing.T) quota.Store {
		return quota.NewLocal(openFile(t, filepath.Join(t.TempDir(), "coordsvc.db")))
	})
}

// What the file's own sweep may remove, and when: never the setting, a window
// without an end or an active reservation, whose units would go with it.
func TestOnlyWhatIsOverIsRemoved(t *testing.T) {
	store := kv.NewMemory(kv.MemoryOptions{})
	now := instant(t, "2026-03-01T12:00:00Z")
	m := quota.New(quota.NewLocal(store), quota.Options{Now: func() time.Time { return now }})
	for _, w := range []quota.Window{quota.Day, quota.None} { // the day's account stays, the other is the current one
		if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: 10, Window: w}); err != nil {
			t.Fatal(err)
		}
	}
	for _, request := range []string{"active", "ended"} {
		g, err := m.Reserve(t.Context(), anyID, quota.ReserveRequest{Amount: 1, RequestID: request, TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if request == "ended" {
			if _, err := m.Cancel(t.Context(), anyID, g.Reservation); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		why  string
		at   string
		want string
	}{
		{"a day is not over", "2026-03-02T11:59:59.999Z", "quota 3, quota_due 1, quota_receipt 2, quota_reservation 2"},
		{"what is remembered for a day", "2026-03-02T12:00:00Z", "quota 3, quota_due 1, quota_receipt 0, quota_reservation 1"},
		{"a week after the window", "2026-03-09T00:00:00Z", "quota 2, quota_due 1, quota_receipt 0, quota_reservation 1"},
		{"for ever", "2036-03-09T00:00:00Z", "quota 2, quota_due 1, quota_receipt 0, quota_reservation 1"},
	} {
		if _, err := store.Sweep(t.Context(), instant(t, c.at), 100); err != nil {
			t.Fatal(err)
		}
		items := map[string]int{}
		if err := store.Walk(t.Context(), func(bucket, _ string, _ []byte) bool { items[bucket]++; return true }); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, kind := range []*keytype.Type{keytype.Quota, keytype.QuotaDue, keytype.QuotaReceipt, keytype.QuotaReservation} {
			got = append(got, fmt.Sprint(kind.Name, " ", items[kind.Bucket()]))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: left is %s, want %s", c.why, text, c.want)
		}
	}
	now = instant(t, "2036-03-09T00:00:00Z")
	if n, err := m.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("%d reservations returned, %v", n, err)
	}
	if q, err := m.Get(t.Context(), anyID); err != nil || q.Available != 10 {
		t.Errorf("%+v, %v", q, err)
	}
}
