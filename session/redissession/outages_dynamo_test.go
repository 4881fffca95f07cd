package redissession_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

// A far store is some milliseconds away, and at times much farther: half of it on
// the way there, so that what others do comes first, and half on the way back.
type far struct{ *http.Transport }

func (f far) RoundTrip(r *http.Request) (*http.Response, error) {
	way := time.Duration(rand.Int64N(int64(4 * time.Millisecond)))
	if rand.IntN(200) == 0 {
		way = time.Duration(rand.Int64N(int64(fast / 2)))
	}
	time.Sleep(way)
	resp, err := f.Transport.RoundTrip(r)
	time.Sleep(way)
	return resp, err
}

// newDynamoShop is a shop over tables of the engine; alone they are as near as it is.
func newDynamoShop(t *testing.T, db *engine.Dynamo, prefix, redisAddr string, options ...func(*dynamodb.Options)) *shop {
	t.Helper()
	must(t, dynamo.Create(t.Context(), db.Client(), dynamosession.Table(prefix)))
	truth, alone := dynamosession.New(db.Client(options...), prefix), dynamosession.New(db.Client(), prefix)
	return openShop(t, truth, alone, func() redis.UniversalClient { return redis.NewClient(short(redisAddr)) })
}

// DynamoDB is slow, and the cache is flushed and loses updates.
func TestHistoriesOverASlowDynamoDB(t *testing.T) {
	server, db := engine.StartRedis(t), engine.DynamoDB(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	transport := &http.Transport{MaxIdleConnsPerHost: 512}
	t.Cleanup(transport.CloseIdleConnections)
	s := newDynamoShop(t, db, db.Prefix(t), server.Addr, func(o *dynamodb.Options) { o.HTTPClient = &http.Client{Transport: far{transport}} })
	s.run(t, 1_000, 50_000,
		sessiontest.Fault{Name: "FLUSHALL", Loses: true, Do: func(t testing.TB) { must(t, admin.FlushAll(t.Context()).Err()) }},
		s.lostUpdates(),
	)
}

// The engine is killed in the middle of requests and started again on its file:
// what it acknowledged has happened.
func TestHistoriesOverADynamoDBThatIsKilled(t *testing.T) {
	server, db := engine.StartRedis(t), engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db"))
	s := newDynamoShop(t, db.Dynamo, engine.FreshPrefix(), server.Addr)
	s.run(t, 1_000, 50_000, sessiontest.Fault{Name: "engine killed", Stops: true, Do: func(t testing.TB) {
		time.Sleep(fast / 2)
		db.Kill()
		time.Sleep(fast / 4)
		db.Restart(t)
	}})
}

// Nodes are killed in the middle of what they do: between a change and its bump, between
// two reads and a fill, before a use is written down. Redis goes on.
func TestHistoriesOverNodesThatAreKilled(t *testing.T) {
	server, db := engine.StartRedis(t), engine.DynamoDB(t)
	prefix := db.Prefix(t)
	must(t, dynamo.Create(t.Context(), db.Client(), dynamosession.Table(prefix)))
	s := &shop{durable: session.New(dynamosession.New(db.Client(), prefix), session.Options{RouteKey: routeKey})}
	var nodes []*nodeProcess
	for range 3 {
		n := startNode(t, db.Endpoint, prefix, server.Addr)
		nodes = append(nodes, n)
		s.nodes = append(s.nodes, session.New(n, session.Options{RouteKey: routeKey}))
	}
	next := 0
	s.run(t, 1_000, 50_000, sessiontest.Fault{Name: "node killed", Stops: true, Do: func(t testing.TB) {
		n := nodes[next%len(nodes)]
		next++
		n.kill()
		must(t, n.start())
	}})
}

// S19: what was acknowledged before the engine was killed in the middle of many
// changes has ended after it, and what was not asked for has not.
func TestS19AcknowledgedEndsSurviveAKilledStore(t *testing.T) {
	db, server := engine.StartDynamo(t, filepath.Join(t.TempDir(), "engine.db")), engine.Redis(t)
	s := newDynamoShop(t, db.Dynamo, engine.FreshPrefix(), server.Addr)
	const users, each = 40, 3
	tokens := make([][each]string, users)
	var logins sync.WaitGroup
	for u := range users {
		logins.Go(func() {
			for i := range each {
				token, _, err := s.nodes[0].Create(t.Context(), "acme", session.CreateRequest{UserID: fmt.Sprint(u)})
				if err != nil {
					t.Error(err)
				}
				tokens[u][i] = token.Reveal()
			}
		})
	}
	logins.Wait()
	var mu sync.Mutex
	acknowledged, doubtful := map[string]bool{}, map[string]bool{}
	half, killing, killed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	end := func(token string, do func() error) {
		err := do()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			doubtful[token] = true
			return
		}
		acknowledged[token] = true
		if len(acknowledged) == users/2 {
			once.Do(func() { close(half) })
		}
	}
	var ends sync.WaitGroup
	for worker := range 8 {
		ends.Go(func() {
			for u := worker; u < users; u += 8 {
				switch users - u {
				case 9, 10, 11, 12: // these meet the kill
					<-killing
				case 1, 2: // and these come too late, however slow the kill is
					<-killed
				}
				end(tokens[u][0], func() error { _, err := s.nodes[u%3].Revoke(t.Context(), "acme", tokens[u][0]); return err })
				end(tokens[u][1], func() error {
					_, err := s.nodes[u%3].LogoutAll(t.Context(), "acme", fmt.Sprint(u), tokens[u][2])
					return err
				})
			}
		})
	}
	<-half
	close(killing)
	db.Kill()
	close(killed)
	ends.Wait()
	db.Restart(t)
	for u := range users {
		for i, token := range tokens[u] {
			v, err := s.durable.Verify(t.Context(), "acme", token, session.VerifyRequest{})
			must(t, err)
			switch kept := i == each-1; {
			case acknowledged[token] && v.Active:
				t.Errorf("user %d: session %d is active, and its end was acknowledged", u, i)
			case kept && !v.Active:
				t.Errorf("user %d: the kept session is %s", u, v.Reason)
			}
		}
	}
	if t.Logf("%d ends were acknowledged, %d were not", len(acknowledged), len(doubtful)); len(doubtful) == 0 {
		t.Error("the engine was killed too late")
	}
}
