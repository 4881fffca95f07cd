package kv

import (
	"strings"
	"testing"
	"time"
)

type thing struct {
	Name string `json:"name"`
}

func TestLoadAndSave(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	err := m.Update(t.Context(), func(tx Tx) error {
		if item, found, err := Load[thing](tx, "things", "a"); found || err != nil || item != (thing{}) {
			t.Errorf("Load of nothing: %v, %t, %v", item, found, err)
		}
		if err := Save(tx, "things", "a", thing{"x"}, time.Time{}); err != nil {
			t.Error(err)
		}
		if raw := string(tx.Get("things", "a")); raw != `1{"name":"x"}` {
			t.Errorf("stored %s, want JSON behind the format number", raw)
		}
		if item, found, err := Load[thing](tx, "things", "a"); !found || err != nil || item != (thing{"x"}) {
			t.Errorf("Load: %v, %t, %v", item, found, err)
		}
		if err := Save(tx, "things", "b", make(chan int), time.Time{}); err == nil {
			t.Error("Save of what JSON cannot say: no error")
		}
		for stored, want := range map[string]string{
			"":              "unknown format",
			`2{"name":"x"}`: "unknown format",
			`1{"name":`:     "decode item",
			`1{"name":1}`:   "decode item",
		} {
			tx.Put("things", "b", []byte(stored), time.Time{})
			if _, _, err := Load[thing](tx, "things", "b"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "things") {
				t.Errorf("Load of %q: %v, want %q and the bucket", stored, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
