package redislock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/redisonce/redisoncetest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/redislock"
)

// A Cluster's client repeats a command whose answer is lost, whatever its retries: a
// lock that was taken would then meet itself, and seem to be held by somebody else.
func TestR45AClusterAcquiresOnce(t *testing.T) {
	client, w := redisoncetest.Cluster(t, engine.StartRedis(t).Addr)
	s := redislock.New(client, "p")
	acquire := func(name string) (lock.Outcome, error) {
		return s.Acquire(t.Context(), "t", name, lock.Acquire{ID: "lck_a", Owner: "w", TTL: time.Hour})
	}
	if out, err := acquire("first"); err != nil || out.Verdict != lock.Done {
		t.Fatalf("got %+v, %v", out, err)
	}
	w.Lose = true
	if out, err := acquire("second"); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("the answer is lost: got %+v, %v", out, err)
	}
	if want := "[evalsha true eval true evalsha true]"; fmt.Sprint(w.Sent) != want {
		t.Errorf("sent %v, want %s: the server does not know the script at first", w.Sent, want)
	}
	w.Lose = false
	if out, err := acquire("second"); err != nil || out.Verdict != lock.Held {
		t.Errorf("it was taken: got %+v, %v", out, err)
	}
}
