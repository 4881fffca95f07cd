package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
)

// What the API promises of waiting: one poller per resource and node, which asks every
// 500 ms ± 20 %.
const (
	shortestPoll = 400 * time.Millisecond
	longestPoll  = 600 * time.Millisecond
)

// slack is for what no contract bounds: the machine, which may have other things to do.
const slack = 3 * time.Second

// A tap lies between nodes and their engine, and counts which requests concern a resource.
type tap struct {
	*httptest.Server
	pk string
	// answer may answer a request in the engine's place, with a body under status 400; nil = never.
	answer func(operation string, body []byte) string

	mu   sync.Mutex // guards seen
	seen int
}

func newTap(t *testing.T, db *engine.Dynamo, resource string, answer func(operation string, body []byte) string) *tap {
	t.Helper()
	target, err := url.Parse(db.Watched())
	if err != nil {
		t.Fatal(err)
	}
	w := &tap{pk: keytype.Lease.Key("default", resource), answer: answer}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return // the node has gone away
		}
		var body struct {
			Key struct{ PK struct{ S string } }
		}
		if json.Unmarshal(raw, &body) == nil && body.Key.PK.S == w.pk {
			w.mu.Lock()
			w.seen++
			w.mu.Unlock()
		}
		if w.answer != nil {
			_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			if refusal := w.answer(operation, raw); refusal != "" {
				out.Header().Set("Content-Type", "application/x-amz-json-1.0")
				out.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(out, refusal)
				return
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(raw))
		proxy.ServeHTTP(out, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// take returns how many there were since it was last called.
func (w *tap) take() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.seen = 0 }()
	return w.seen
}

// A granted is one waiter's answer.
type granted struct {
	answer
	node int
	at   time.Time
}

// 200 callers wait for one resource at two nodes.
func TestTwoHundredWaitersOnTwoNodes(t *testing.T) {
	t.Parallel()
	const waiters, guard = 200, 500 * time.Millisecond
	db := engine.DynamoDB(t)
	tap := newTap(t, db, "r", nil)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	env = append(env, "COORD_DYNAMODB="+tap.URL, fmt.Sprintf("COORD_LEASE_GUARD_MS=%d", guard.Milliseconds()))
	nodes := []*service{start(t, env...), start(t, env...)}
	nodes[0].key, nodes[1].key = key, key
	prefix := nodes[0].setting("COORD_TABLE_PREFIX")
	outside := lease.New(dynamolease.New(db.Client(), prefix), lease.Options{Guard: guard}) // wakes nobody

	first := granted{answer: nodes[0].call(200, "POST", "/v1/leases/r/acquire", `{"owner":"first","ttl_ms":86400000}`)}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: waiters}}
	answers := make(chan granted, waiters)
	tap.take()
	for i := range waiters {
		go func() {
			g, err := waitOn(t, client, nodes[i%2], key, "r", i)
			g.node = i % 2
			if err == nil || t.Context().Err() == nil {
				answers <- g
			}
		}()
	}
	time.Sleep(2 * time.Second) // they come
	tap.take()
	watched := atDepth(5*time.Second, 30*time.Second)
	time.Sleep(watched)
	polls := tap.take()
	if most := 2 * (int(watched/shortestPoll) + 1); polls > most || polls < 2 {
		t.Errorf("%d requests in %v: two pollers send at most %d", polls, watched, most)
	}
	t.Logf("%d waiters on 2 nodes sent %d requests in %v; two pollers send %d on average", waiters, polls, watched, 2*(watched/(500*time.Millisecond)))

	holder := func(g granted) lease.Holder {
		var h struct {
			LeaseID      string `json:"lease_id"`
			FencingToken int64  `json:"fencing_token"`
		}
		if err := json.Unmarshal([]byte(g.raw), &h); err != nil {
			t.Fatal(err)
		}
		return lease.Holder{ID: h.LeaseID, Token: fencing.Token(h.FencingToken)}
	}
	next := func(why string, from time.Time, within time.Duration) (granted, time.Duration) {
		t.Helper()
		select {
		case g := <-answers:
			if g.status != 200 {
				t.Fatalf("%s: a waiter got %d %s", why, g.status, g.raw)
			}
			took := g.at.Sub(from)
			if took > within+slack {
				t.Errorf("%s: after %v, not within %v", why, took, within)
			}
			return g, took
		case <-time.After(within + 30*time.Second):
			t.Fatalf("%s: nobody was granted it", why)
			panic("unreachable")
		}
	}
	release := func(g granted, through func(lease.Holder) error) time.Time {
		t.Helper()
		if err := through(holder(g)); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	}
	elsewhere := func(h lease.Holder) error { return outside.Release(t.Context(), "default", "r", h) }

	g, last := first, fencing.Token(0)
	grown := func(to granted) {
		t.Helper()
		if token := holder(to).Token; token <= last {
			t.Errorf("token %d after %d", token, last)
		} else {
			last = token
		}
	}
	var polled, woken times
	for range atDepth(5, 50) { // nobody on the two nodes knows of it: a poll finds out
		at := release(g, elsewhere)
		var took time.Duration
		g, took = next("released on a third node", at, longestPoll)
		polled = append(polled, took)
		grown(g)
	}
	for range atDepth(50, 70) { // whoever waits on the releasing node is woken
		node := g.node
		at := release(g, func(h lease.Holder) error {
			nodes[node].call(204, "POST", "/v1/leases/r/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, h.ID, h.Token))
			return nil
		})
		var took time.Duration
		g, took = next("released on a node", at, longestPoll)
		woken = append(woken, took)
		grown(g)
	}
	t.Logf("hand-over after a release on a third node: %v", polled)
	t.Logf("hand-over after a release on the holder's node: %v", woken)

	// A holder that dies: its lease is granted once its time, the guard and a poll are over.
	var died times
	for round := range atDepth(2, 10) {
		resource := fmt.Sprint("dead", round)
		dead := nodes[0].call(200, "POST", "/v1/leases/"+resource+"/acquire", `{"owner":"dead","ttl_ms":1000}`)
		var lease struct {
			ExpiresAt time.Time `json:"expires_at"`
		}
		if err := json.Unmarshal([]byte(dead.raw), &lease); err != nil {
			t.Fatal(err)
		}
		heirs := make(chan granted, 10)
		for i := range cap(heirs) {
			go func() {
				if g, err := waitOn(t, client, nodes[i%2], key, resource, i); err == nil {
					heirs <- g
				}
			}()
		}
		g := <-heirs
		took := g.at.Sub(lease.ExpiresAt)
		if g.status != 200 || took < guard || took > guard+longestPoll+slack {
			t.Errorf("round %d: %d %v after the expiry: the guard is %v", round, g.status, took, guard)
		}
		died = append(died, took)
	}
	t.Logf("a dead holder's lease was granted so long after its expiry, with a guard of %v: %v", guard, died)
}

// waitOn waits for the resource under one request id, again where it waited in vain or
// was told that the outcome is unknown.
func waitOn(t *testing.T, client *http.Client, node *service, key, resource string, i int) (granted, error) {
	body := fmt.Sprintf(`{"owner":"w%d","ttl_ms":3600000,"wait_ms":60000,"request_id":"w%d"}`, i, i)
	for {
		g, err := waitOnce(t, client, node, key, resource, body)
		if err != nil || g.status != 409 && !strings.Contains(g.raw, "outcome_unknown") {
			return g, err
		}
	}
}

func waitOnce(t *testing.T, client *http.Client, node *service, key, resource, body string) (granted, error) {
	req, err := http.NewRequestWithContext(t.Context(), "POST", node.url+"/v1/leases/"+resource+"/acquire", strings.NewReader(body))
	if err != nil {
		return granted{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := client.Do(req)
	if err != nil {
		return granted{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return granted{answer: answer{status: resp.StatusCode, raw: string(raw)}, at: time.Now()}, err
}

// times prints as how they are spread.
type times []time.Duration

func (all times) String() string {
	sorted := slices.Sorted(slices.Values(all))
	rounded := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("%d times, median %v, longest %v", len(all), rounded(sorted[len(sorted)/2]), rounded(sorted[len(sorted)-1]))
}
