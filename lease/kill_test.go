package lease_test

import (
	"bufio"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/leasetest"
)

// What makes this test binary the process to be killed.
const (
	killFile = "COORD_TEST_KILL_FILE"
	killLife = "COORD_TEST_KILL_LIFE"
)

// TestL9RaceAcrossKill races in a process that is killed in the midst of it, again
// and again on one file: no acknowledged step is lost, and tokens go on rising.
func TestL9RaceAcrossKill(t *testing.T) {
	if path := os.Getenv(killFile); path != "" {
		raceUntilKilled(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "coordsvc.db")
	var last leasetest.Series
	for life := range 5 {
		series := killedRace(t, path, life)
		if series.Granted <= last.Granted {
			t.Fatalf("life %d: token %d after token %d", life, series.Granted, last.Granted)
		}
		file, err := kv.Open(path, kv.BoltOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, err := lease.NewLocal(file).Get(t.Context(), "t", "r")
		if err != nil {
			t.Fatal(err)
		}
		if err := series.CheckAfterCrash(stored); err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		last = series
	}
	t.Logf("%d tokens in 5 lives", last.Granted)
}

// killedRace starts the process, kills it after some acknowledgements and returns
// the last one that it made known.
func killedRace(t *testing.T, path string, life int) (last leasetest.Series) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestL9RaceAcrossKill$")
	child.Env = append(os.Environ(), killFile+"="+path, killLife+"="+strconv.Itoa(life))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	lines, killAt := bufio.NewScanner(out), 5+rand.IntN(60)
	for n := 1; lines.Scan(); n++ { // to the end: what was made known before the kill counts
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			t.Fatalf("life %d: %q", life, lines.Text())
		}
		if n == killAt {
			time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond) // into any part of a step
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return last
}

// raceUntilKilled writes each acknowledgement to stdout. Its clock is hours ahead
// of its predecessor's, whose lease has expired therefore.
func raceUntilKilled(t *testing.T, path string) {
	life, err := strconv.Atoi(os.Getenv(killLife))
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Now().Add(time.Duration(life) * time.Hour) }
	m := lease.New(lease.NewLocal(openFile(t, path)), lease.Options{Now: now})
	out := json.NewEncoder(os.Stdout)
	err = leasetest.Race(t.Context(), m, "r", math.MaxInt, func(s leasetest.Series) { _ = out.Encode(s) })
	t.Fatal(err)
}
