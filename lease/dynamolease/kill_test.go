package dynamolease_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

// TestL9RaceAcrossKill races on an engine that is killed in the midst of it, again
// and again on one file: no acknowledged step is lost, and tokens go on rising.
func TestL9RaceAcrossKill(t *testing.T) {
	e := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	store := open(t, e.Client(), "kill_").Leases
	var life atomic.Int64 // each life's clock is hours ahead of its predecessor's, whose lease has expired therefore
	m := lease.New(store, lease.Options{Now: func() time.Time { return time.Now().Add(time.Duration(life.Load()) * time.Hour) }})
	var last leasetest.Series
	for range 4 {
		killAt := 5 + rand.IntN(40)
		series, steps := last, 0
		killed := make(chan struct{})
		err := leasetest.Race(t.Context(), m, "r", math.MaxInt, func(s leasetest.Series) {
			series = s
			if steps++; steps == killAt {
				delay := time.Duration(rand.IntN(10_000)) * time.Microsecond // into any part of a step
				go func() { defer close(killed); time.Sleep(delay); e.Kill() }()
			}
		})
		if !errors.Is(err, keytype.ErrUnavailable) && !errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Fatalf("the race ended with %v", err)
		}
		if steps < killAt {
			t.Fatalf("the race ended before the kill, with %v", err)
		}
		<-killed
		if series.Granted <= last.Granted {
			t.Fatalf("token %d after token %d", series.Granted, last.Granted)
		}
		e.Restart(t)
		stored, err := store.Get(t.Context(), "t", "r")
		if err != nil {
			t.Fatal(err)
		}
		if err := series.CheckAfterCrash(stored); err != nil {
			t.Fatal(err)
		}
		last = series
		life.Add(1)
	}
	t.Logf("%d tokens in 4 lives", last.Granted)
}
