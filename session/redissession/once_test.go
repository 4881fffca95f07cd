package redissession_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/redisonce/redisoncetest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// A Cluster's client repeats a command whose answer is lost, whatever its retries. The
// caller of a verify waits no longer than its budget, so the second try would only
// be work for a server that is slow already.
func TestR45AClusterIsAskedOnce(t *testing.T) {
	client, w := redisoncetest.Cluster(t, engine.StartRedis(t).Addr)
	cache := redissession.New(client, redissession.Options{Budget: 10 * time.Second})
	for what, ask := range map[string]func() error{
		"verify": func() error {
			_, err := cache.Verify(t.Context(), session.VerifyOp{Key: key}, terms)
			return err
		},
		"fill": func() error {
			_, _, err := cache.Fill(t.Context(), session.Fill{Key: key, User: user(7), Record: record(time.Now()), At: time.Now().UnixMilli()}, terms)
			return err
		},
		"bump": func() error { return cache.Bump(t.Context(), tag, 8, terms) },
	} {
		w.Sent, w.Lose = nil, false
		must(t, ask())
		w.Lose = true
		if err := ask(); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("%s: the answer is lost: %v", what, err)
		}
		if want := "[evalsha true eval true evalsha true]"; fmt.Sprint(w.Sent) != want {
			t.Errorf("%s: sent %v, want %s: the server does not know the script at first", what, w.Sent, want)
		}
	}
}
