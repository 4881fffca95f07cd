package dynamoquota_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

// depth is how much a test does: a part of it in CI, all of it as a proof.
func depth(ci, proof int) int {
	if os.Getenv("COORD_TEST_DEPTH") == "proof" {
		return proof
	}
	return ci
}

// TestL47NoUnitIsLostAcrossKill has 50 workers on two nodes use one quota while
// the engine is killed and started again on its file. They repeat what failed until
// it is answered: in the end exactly what they used is used.
func TestL47NoUnitIsLostAcrossKill(t *testing.T) {
	e := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	client := e.Client(func(o *dynamodb.Options) {
		o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
			s.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
		})
	})
	crew := quotatest.Crew{
		Stores:  []quota.Store{open(t, client, "kill_"), open(t, client, "kill_")},
		Workers: 50, Jobs: depth(200, 12_000), Limits: []int64{1000, 800, 1200},
		Again: func(err error) bool {
			return errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown)
		},
	}
	if n := int64(crew.Jobs); n > 1000 {
		crew.Limits = []int64{3 * n, 2 * n, 4 * n} // some 20,000 changes: a job is one or two
	}
	type result struct {
		quotatest.Tally
		err error
	}
	done := make(chan result)
	go func() {
		tally, err := crew.Work(t.Context(), id)
		done <- result{tally, err}
	}()
	for kills := 0; ; {
		select {
		case r := <-done:
			if r.err != nil {
				t.Fatal(r.err)
			}
			t.Logf("%d kills: %+v", kills, r.Tally)
			// Few kills may all fall between two steps; forty do not.
			if kills == 0 || r.Repeated < int64(depth(0, 1)) || r.Reads == 0 || r.Changes == 0 || r.Done == 0 {
				t.Errorf("nothing came of it: %d kills, %+v", kills, r.Tally)
			}
			return
		case <-time.After(300*time.Millisecond + rand.N(500*time.Millisecond)): // into any part of a step
			if kills < depth(2, 40) {
				kills++
				e.Kill()
				e.Restart(t)
			}
		}
	}
}
