package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session/dynamosession"
)

// dataStores are those of a node over fresh tables, and over a fresh file.
func dataStores(t *testing.T) map[string]stores {
	t.Helper()
	db := engine.DynamoDB(t)
	prefix := db.Prefix(t)
	if err := dynamo.Create(t.Context(), db.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	file, err := kv.Open(filepath.Join(t.TempDir(), "store"), kv.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return map[string]stores{prefix: {tables: db.Client()}, "": {file: file}}
}

// The first process decides under which route key the data lies, also where several come at once.
func TestDataBelongsToOneRouteKey(t *testing.T) {
	for prefix, s := range dataStores(t) {
		c, keys := config{tablePrefix: prefix}, [][]byte{[]byte(strings.Repeat("k", 32)), []byte(strings.Repeat("l", 32))}
		var wg sync.WaitGroup
		var mu sync.Mutex
		first := map[string]int{} // ids, and "" for those that were refused
		for n := range 8 {
			wg.Go(func() {
				d, err := s.deployment(t.Context(), c, keys[n%2])
				if err != nil && !errors.Is(err, errOtherKeys) {
					t.Errorf("%q: %v", prefix, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					d.ID = ""
				}
				first[d.ID]++
			})
		}
		wg.Wait()
		if first[""] != 4 || len(first) != 2 {
			t.Errorf("%q: %v: one key wins", prefix, first)
		}
		refused := 0
		for range 2 {
			for _, key := range keys {
				if _, err := s.deployment(t.Context(), c, key); errors.Is(err, errOtherKeys) {
					refused++
				} else if err != nil {
					t.Errorf("%q: %v", prefix, err)
				}
			}
		}
		if refused != 2 {
			t.Errorf("%q: later %d were refused, want 2", prefix, refused)
		}
	}
}

// What is stored tells nothing of the key.
func TestRouteKeyIsNotGivenAway(t *testing.T) {
	key := []byte(strings.Repeat("k", 32))
	a, b := newDeployment(key), newDeployment(key)
	if a.ID == b.ID || a.Check == b.Check || len(a.Check) != 32 || strings.Contains(a.Check+a.ID, "kkk") {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestNobodyIsKnownBeforeTheDataIs(t *testing.T) {
	opened := make(chan struct{})
	keys := auth.New(closed{auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), opened}, auth.Options{})
	secret := auth.NewSecret().Reveal()
	if _, err := keys.Add(t.Context(), "t", "n", secret); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Authenticate(t.Context(), secret); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("before: %v", err)
	}
	close(opened)
	if _, err := keys.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("after: %v", err)
	}
}

// A node whose clock may be far off says nothing of times.
func TestCacheOfANodeWithAnUnknownClock(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for prefix, s := range dataStores(t) {
		if s.tables == nil {
			continue
		}
		c := config{tablePrefix: prefix}
		s.sharing, s.clock = newSharing(s.tables, c), dynamo.NewClock(time.Now)
		d, err := s.deployment(t.Context(), c, make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		s.sharing.id = d.ID
		mark := newMarker(nil, c, make([]byte, 32), deployment{})
		sure, err := s.pair(t.Context(), mark, c, log)
		if elsewhere, _ := s.sharing.elsewhere(); sure || err != nil || !elsewhere {
			t.Errorf("no answer told the time yet: %v, %v, elsewhere %v", sure, err, elsewhere)
		}
		client := engine.DynamoDB(t).Client(s.clock.Listen)
		if _, err := dynamo.Get(t.Context(), client, keytype.Deployment.TableName(prefix), deploymentKey()); err != nil {
			t.Fatal(err)
		}
		sure, err = s.pair(t.Context(), mark, c, log)
		if elsewhere, _ := s.sharing.elsewhere(); !sure || err != nil || elsewhere {
			t.Errorf("the clock is near: %v, %v, elsewhere %v", sure, err, elsewhere)
		}
	}
}

// Of the nodes over one set of tables those with one cache are in force, until none of them is left.
func TestOneCacheIsInForce(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for prefix, s := range dataStores(t) {
		if s.tables == nil {
			continue
		}
		now := time.Now()
		node := func(bound time.Duration) *sharing {
			n := newSharing(s.tables, config{tablePrefix: prefix})
			n.bound, n.now = bound, func() time.Time { return now }
			return n
		}
		a1, a2, b, none := node(12*time.Second), node(12*time.Second), node(27*time.Second), node(0)
		renew := func(n *sharing, cache string) {
			t.Helper()
			if err := n.renew(t.Context(), cache, log); err != nil {
				t.Errorf("%s: %v", cache, err)
			}
		}
		want := func(why string, n *sharing, mine bool, bound time.Duration) {
			t.Helper()
			if elsewhere, other := n.elsewhere(); elsewhere == mine || other != bound {
				t.Errorf("%s: elsewhere %v, bound %s", why, elsewhere, other)
			}
		}
		if err := a1.renew(t.Context(), "a", log); !errors.Is(err, errNoDeployment) {
			t.Errorf("before the deployment is known: %v", err)
		}
		want("before the deployment is known", a1, false, largestBound)
		d, err := s.deployment(t.Context(), config{tablePrefix: prefix}, make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []*sharing{a1, a2, b, none} {
			n.id = d.ID
		}
		renew(a1, "a")
		renew(a2, "a")
		renew(b, "b")
		renew(none, noCache)
		want("the first", a1, true, 12*time.Second)
		want("with the same", a2, true, 12*time.Second)
		want("another", b, false, 12*time.Second)
		want("without one", none, false, 12*time.Second)

		now = now.Add(sharingHeld - time.Millisecond)
		want("the last moment that it is held", a1, true, 12*time.Second)
		now = now.Add(time.Millisecond)
		want("it did not say so again", a1, false, largestBound)
		want("nor heard the other", none, false, largestBound)
		renew(b, "b")
		want("too early for another", b, false, 12*time.Second)
		renew(a2, "a")
		want("again", a2, true, 12*time.Second)
		now = now.Add(sharingEnds)
		renew(b, "b")
		want("at the very end", b, false, 12*time.Second)
		now = now.Add(time.Millisecond)
		renew(b, "b")
		want("no node with the first is left", b, true, 27*time.Second)
		want("nor goes one on", a2, false, largestBound)
		renew(a1, "a")
		want("one that comes back is another now", a1, false, 27*time.Second)
		renew(none, noCache)
		want("without one", none, false, 27*time.Second)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.renew(ctx, "b", log); err == nil {
			t.Error("tables that do not answer")
		}
		want("until it is over", b, true, 27*time.Second)
	}
}

// Tables that were replaced by others are not asked, but by who looks whether they are the right ones again.
func TestOtherTablesAreBarred(t *testing.T) {
	var logged strings.Builder
	log := slog.New(slog.NewTextHandler(&logged, nil))
	for prefix, s := range dataStores(t) {
		if s.tables == nil {
			continue
		}
		c := config{tablePrefix: prefix}
		s.clock, s.tablesBar = dynamo.NewClock(time.Now), &bar{store: "dynamodb"}
		s.tables = engine.DynamoDB(t).Client(s.clock.Listen, dynamo.Bar(s.tablesBar.check))
		s.sharing = newSharing(s.tables, c)
		d, err := s.deployment(t.Context(), c, make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		mark, sessions := newMarker(nil, c, make([]byte, 32), d), dynamosession.New(s.tables, prefix)
		step := func(why, id string, wantPair, wantUse error) {
			t.Helper()
			s.sharing.id = id
			if _, err := s.pair(t.Context(), mark, c, log); !errors.Is(err, wantPair) || !errors.Is(s.tablesBar.reason(), wantPair) {
				t.Errorf("%s: %v, barred for %v", why, err, s.tablesBar.reason())
			}
			_, readErr := sessions.TenantEpoch(t.Context(), "acme")
			_, writeErr := sessions.RaiseTenantEpoch(t.Context(), "acme")
			for _, err := range []error{readErr, writeErr} {
				if !errors.Is(err, wantUse) || errors.Is(err, keytype.ErrOutcomeUnknown) {
					t.Errorf("%s: %v, want %v", why, err, wantUse)
				}
			}
		}
		step("the first", d.ID, nil, nil)
		step("another's", "another", errNoDeployment, keytype.ErrUnavailable)
		step("still", "another", errNoDeployment, keytype.ErrUnavailable)
		step("the right ones again", d.ID, nil, nil)
		if err := newSharing(s.tables, c).renew(t.Context(), noCache, log); !errors.Is(err, errNoDeployment) {
			t.Errorf("a cache of another's: %v", err)
		}
		if _, err := s.tables.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: &s.sharing.table, Key: deploymentKey()}); err != nil {
			t.Fatal(err)
		}
		step("empty", d.ID, errNoDeployment, keytype.ErrUnavailable)
		if got := strings.Count(logged.String(), "level=ERROR"); got != 2 {
			t.Errorf("told %d times:\n%s", got, logged.String())
		}
	}
}
