package quota_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

// What makes this test binary the process to be killed.
const (
	killFile = "COORD_TEST_KILL_FILE"
	killLife = "COORD_TEST_KILL_LIFE"
)

// depth is how much a test does: a part of it in CI, all of it as a proof.
func depth(ci, proof int) int {
	if os.Getenv("COORD_TEST_DEPTH") == "proof" {
		return proof
	}
	return ci
}

// A note is what a process makes known of a job: that it begins, and how it ended.
type note struct {
	Job     quotatest.Job
	Ended   bool
	Refused bool
	Used    int64
}

// TestL47NoUnitIsLostAcrossKill has 50 workers use a quota in a process that is
// killed in the midst of it, again and again on one file. A job that had ended
// comes to the same when it is done again, and one that had not is done once: in
// the end exactly what the jobs used is used.
func TestL47NoUnitIsLostAcrossKill(t *testing.T) {
	if path := os.Getenv(killFile); path != "" {
		workUntilKilled(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "coordsvc.db")
	total, jobs, open, wanted := int64(0), 0, 0, depth(400, 20_000)
	for life := 0; jobs < wanted; life++ {
		notes := killedWork(t, path, life, 40+rand.IntN(wanted/4))
		file := openFile(t, path)
		m := quota.New(quota.NewLocal(file), quota.Options{})
		for _, n := range notes {
			jobs++
			if n.Refused {
				continue
			}
			used, err := n.Job.Run(t.Context(), m, anyID)
			if _, exceeded := errors.AsType[*quota.ExceededError](err); exceeded && !n.Ended {
				open++
				continue
			}
			if err != nil || n.Ended && used != n.Used {
				t.Fatalf("life %d: %+v came to %d, %v, when it was done again", life, n, used, err)
			}
			if !n.Ended {
				open++
			}
			total += used
		}
		accounted(t, quota.NewLocal(file), total)
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d jobs used %d units, %d jobs were cut off", jobs, total, open)
}

// accounted demands that nothing but total is missing once what was abandoned is returned.
func accounted(t *testing.T, s quota.Store, total int64) {
	t.Helper()
	m := quota.New(s, quota.Options{Now: func() time.Time { return time.Now().Add(2 * quota.MinTTL) }})
	for n := 1; n > 0; {
		var err error
		if n, err = m.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if q, err := m.Get(t.Context(), anyID); err != nil || q.Used != total || q.Reserved != 0 || q.Available != q.Limit-total {
		t.Fatalf("stored is %+v, %v, the jobs used %d", q, err, total)
	}
}

// killedWork starts the process, kills it after some jobs and returns what it made known of each.
func killedWork(t *testing.T, path string, life, killAt int) map[string]note {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestL47NoUnitIsLostAcrossKill$")
	child.Env = append(os.Environ(), killFile+"="+path, killLife+"="+fmt.Sprint(life))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	notes, ended := map[string]note{}, 0
	for lines := bufio.NewScanner(out); lines.Scan(); { // to the end: what was made known before the kill counts
		var n note
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			t.Fatalf("life %d: %q", life, lines.Text())
		}
		notes[n.Job.RequestID] = n
		if n.Ended {
			ended++
		}
		if ended == killAt {
			time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond) // into any part of a step
			_ = child.Process.Kill()
		}
	}
	return notes
}

// workUntilKilled writes a note before each job and after it. The limit changes
// meanwhile, and a sweeper returns what is abandoned.
func workUntilKilled(t *testing.T, path string) {
	m := quota.New(quota.NewLocal(openFile(t, path)), quota.Options{})
	limit := int64(1000)
	if q, err := m.Get(t.Context(), anyID); err == nil {
		limit += q.Used
	}
	if _, err := m.Set(t.Context(), anyID, quota.Definition{Limit: limit, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards stdout
	out := json.NewEncoder(os.Stdout)
	tell := func(n note) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(n)
	}
	var workers sync.WaitGroup
	for w := range 50 {
		workers.Go(func() {
			for i := 0; ; i++ {
				job := quotatest.SomeJob(fmt.Sprintf("%s-%d-%d", os.Getenv(killLife), w, i))
				tell(note{Job: job})
				used, err := job.Run(t.Context(), m, anyID)
				_, refused := errors.AsType[*quota.ExceededError](err)
				if err != nil && !refused {
					t.Errorf("%+v: %v", job, err)
					return
				}
				tell(note{job, true, refused, used})
			}
		})
	}
	workers.Go(func() {
		for {
			limit += rand.Int64N(200)
			_, err := m.Set(t.Context(), anyID, quota.Definition{Limit: limit, Window: quota.None})
			_, swept := m.Sweep(t.Context())
			if err := errors.Join(err, swept); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	workers.Wait()
}
