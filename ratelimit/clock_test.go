package ratelimit

import (
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// A limiter and sweeps of its store by the wall clock, while somebody sets that.
func TestR37SweepsByAWallClockThatWasSet(t *testing.T) {
	start := time.Date(2030, 1, 1, 10, 0, 0, 0, time.UTC)
	c := &clock{start: start}
	var counted, set time.Duration
	wall := func() time.Time { return start.Add(counted + set) }
	store := kv.NewMemory(kv.MemoryOptions{MaxItems: 1, Now: wall})
	window := Limit{Name: "l", Key: []string{"user"}, Algorithm: FixedWindow, Numbers: Numbers{Rate: Rate{Count: 3, Per: 24 * time.Hour}}}
	l, err := New(NewLocal(store), []Policy{{Name: "p", Posture: FailClosed, Stage: Enforce, Limits: []Limit{window}}}, Options{
		Now: func() time.Time { return c.read(wall(), counted) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		why    string
		set    time.Duration // of the wall clock, against what was counted
		passes int
		reset  time.Duration
	}{
		{"the first day", 0, 3, 13*time.Hour + 50*time.Minute},
		{"the machine slept for a day and an hour: the next day", 25 * time.Hour, 3, 12*time.Hour + 40*time.Minute},
		{"an hour back", 24 * time.Hour, 0, 12*time.Hour + 30*time.Minute},
		{"and ahead again", 25 * time.Hour, 0, 12*time.Hour + 20*time.Minute},
		{"back to before the start", -48 * time.Hour, 0, 12*time.Hour + 10*time.Minute},
	} {
		set = s.set
		passed := 0
		var last Decision
		for range 10 {
			counted += time.Minute
			if _, err := store.Sweep(t.Context(), wall(), 100); err != nil {
				t.Fatal(err)
			}
			last, err = l.Check(t.Context(), "t", Request{Policy: "p", Descriptors: map[string]string{"user": "u"}, Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			if last.Allowed {
				passed++
			}
		}
		if passed != s.passes || last.Limits[0].Reset != s.reset {
			t.Errorf("%s: %d pass and the window ends in %v, want %d and %v", s.why, passed, last.Limits[0].Reset, s.passes, s.reset)
		}
	}
}

func TestClockIsTheWallClock(t *testing.T) {
	now := Clock()
	before := time.Now().Round(0)
	got := now()
	if after := time.Now().Round(0); got.Before(before) || got.After(after.Add(time.Second)) {
		t.Errorf("got %v between %v and %v", got, before, after)
	}
}
