package redislimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/redisonce/redisoncetest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A Cluster's client repeats a command whose answer is lost, whatever its retries: a
// charge must not be sent again.
func TestR45AClusterChargesOnce(t *testing.T) {
	client, w := redisoncetest.Cluster(t, engine.Redis(t).Addr)
	store := redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, 24*time.Hour, 10)}, Cost: 1}
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Fatalf("got %+v", out)
	}
	w.Sent, w.Lose = nil, true
	if _, err := store.Take(t.Context(), charge); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("the answer is lost: got %v", err)
	}
	if fmt.Sprint(w.Sent) != "[evalsha true]" {
		t.Errorf("sent %v", w.Sent)
	}
	w.Lose = false
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 7 {
		t.Errorf("two charges and one whose answer was lost leave %d of 10", out.Verdicts[0].Remaining)
	}
}
