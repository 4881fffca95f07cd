package redislimit_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// A site is a limiter as the service has it, on a Redis that the test may break.
type site struct {
	*ratelimit.Limiter
	t      *testing.T
	server *engine.RedisServer
	client *redis.Client
}

// budget is longer than the service's, for a machine on which everything else runs
// too, and patience bounds what must come but has no promise of its own here.
const (
	budget   = time.Second
	patience = 10 * time.Second
)

func newSite(t *testing.T) *site {
	t.Helper()
	server := engine.StartRedis(t)
	options := &redis.Options{
		Addr: server.Addr, MaxRetries: -1, DialerRetries: 1, PoolSize: 20,
		DialTimeout: 2 * budget, ReadTimeout: 2 * budget, WriteTimeout: 2 * budget, PoolTimeout: 2 * budget,
	}
	options.Dialer = redislimit.Dialer(options)
	client := redis.NewClient(options)
	guard := ratelimit.NewGuard(redislimit.New(client, redislimit.Options{}), ratelimit.GuardOptions{Budget: budget})
	memory := kv.NewMemory(kv.MemoryOptions{})
	t.Cleanup(func() {
		_ = guard.Close()
		_ = client.Close()
		_ = memory.Close()
	})
	var policies []ratelimit.Policy
	for _, posture := range []ratelimit.Posture{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.Local} {
		policies = append(policies, ratelimit.Policy{
			Name: strings.ReplaceAll(string(posture), "_", "-"), Posture: posture, Stage: ratelimit.Enforce,
			Limits: []ratelimit.Limit{{
				Name: "user", Key: []string{"user"}, Algorithm: ratelimit.TokenBucket,
				Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 30 * time.Minute}, Burst: 1_000_000},
			}},
		})
	}
	limits, err := ratelimit.New(guard, policies, ratelimit.Options{Fallback: ratelimit.NewLocal(memory)})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Limiter: limits, t: t, server: server, client: client}
	s.healthy("at the start")
	return s
}

func (s *site) check(policy, id string) (ratelimit.Decision, error) {
	return s.Check(s.t.Context(), "t", ratelimit.Request{Policy: policy, Descriptors: map[string]string{"user": "ann"}, Cost: 1, RequestID: id})
}

// healthy waits until Redis decides.
func (s *site) healthy(why string) {
	s.t.Helper()
	begun := time.Now()
	for {
		d, err := s.check("fail-closed", "")
		if err == nil && d.Source == redislimit.Redis {
			s.t.Logf("%s: redis decides after %v", why, time.Since(begun))
			return
		}
		if time.Since(begun) > patience {
			s.t.Errorf("%s: redis does not decide after %v: %+v, %v", why, patience, d, err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// degraded sends checks from many callers for a while, and demands the posture's
// answers, and that none hangs.
func (s *site) degraded(why string, reasons ...string) {
	s.t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	seen := map[string]int{}
	var callers sync.WaitGroup
	for range 30 {
		callers.Go(func() {
			for range 20 {
				for _, policy := range []string{"fail-open", "fail-closed", "local"} {
					begun := time.Now()
					d, err := s.check(policy, "")
					mu.Lock()
					took = append(took, time.Since(begun))
					seen[s.judge(policy, d, err)]++
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()
	slices.Sort(took)
	s.t.Logf("%s: %d answers, p50 %v, p99 %v, longest %v, reasons %v", why, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], seen)
	if longest := took[len(took)-1]; longest > patience {
		s.t.Errorf("%s: somebody waited %v", why, longest)
	}
	for reason := range seen {
		if !slices.Contains(append(reasons, ratelimit.ReasonBreakerOpen), reason) {
			s.t.Errorf("%s: degraded because of %q, want %v", why, reason, reasons)
		}
	}
}

// judge demands the posture's answer and returns its reason.
func (s *site) judge(policy string, d ratelimit.Decision, err error) string {
	if closed, ok := errors.AsType[*ratelimit.ClosedError](err); ok && policy == "fail-closed" {
		return closed.Reason
	}
	want := map[string]ratelimit.Source{"fail-open": ratelimit.SourceFailOpen, "local": ratelimit.SourceLocal}[policy]
	if err != nil || !d.Allowed || !d.Degraded || d.Source != want {
		s.t.Errorf("%s: got %+v, %v", policy, d, err)
	}
	return d.DegradedReason
}

// decided repeats a request until Redis has decided it.
func (s *site) decided(id string) ratelimit.Decision {
	s.t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		d, err := s.check("fail-closed", id)
		if err == nil {
			return d
		}
		if time.Since(begun) > patience {
			s.t.Fatal(err)
		}
	}
}

func TestR26R27KilledRedis(t *testing.T) {
	s := newSite(t)
	s.server.Kill()
	s.degraded("killed", "unreachable", "connection_lost", "timeout")
	s.server.Restart(t)
	s.healthy("restarted, without the scripts")
	for range 100 {
		if d, err := s.check("fail-closed", ""); err != nil || d.Degraded {
			t.Fatalf("a call is lost after the recovery: %+v, %v", d, err)
		}
	}
}

func TestR28HungRedis(t *testing.T) {
	s := newSite(t)
	s.server.Pause(t)
	s.degraded("hung", "timeout")
	s.server.Resume(t)
	s.healthy("resumed")
}

func TestR26R27ReadonlyRedis(t *testing.T) {
	s := newSite(t)
	if err := s.client.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	s.degraded("a replica", "readonly", "timeout")
	if err := s.client.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	s.healthy("a master again")
}

// What is lost with Redis is one fresh burst, and no call fails.
func TestFlushedRedis(t *testing.T) {
	s := newSite(t)
	ask := ratelimit.Request{Policy: "fail-closed", Descriptors: map[string]string{"user": "bob"}, Cost: 1_000_000}
	for i, want := range []bool{true, false, true, false} {
		if i == 2 {
			if err := s.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if d, err := s.Check(t.Context(), "t", ask); err != nil || d.Allowed != want || d.Degraded {
			t.Errorf("check %d: %+v, %v", i, d, err)
		}
	}
}

// A charge whose answer did not come in time may have happened. With its request id
// a retry is exact, whether it had or not.
func TestR45NoDoubleCharge(t *testing.T) {
	s := newSite(t)
	before := s.decided("before")
	s.server.Pause(t)
	var closed atomic.Int64
	var callers sync.WaitGroup
	const requests = 20
	for i := range requests {
		callers.Go(func() {
			if _, err := s.check("fail-closed", fmt.Sprint(i)); err != nil {
				closed.Add(1)
			}
		})
	}
	callers.Wait()
	s.server.Resume(t)
	if closed.Load() != requests {
		t.Errorf("%d of %d were closed", closed.Load(), requests)
	}
	for i := range requests {
		for range 2 {
			s.decided(fmt.Sprint(i))
		}
	}
	after := s.decided("after")
	if used := before.Limits[0].Remaining - after.Limits[0].Remaining; used != requests+1 {
		t.Errorf("%d requests and one more took %d", requests, used)
	}
}

// What the server answers is named as what it is, and never taken for a charge.
func TestFaultsHaveTheirNames(t *testing.T) {
	client := dial(t, engine.StartRedis(t).Addr)
	store := redislimit.New(client, redislimit.Options{})
	charge := ratelimit.Take{Buckets: []ratelimit.Bucket{bucketOf("k", 1, time.Hour, 10)}, Cost: 1}
	key := charge.Buckets[0].Type().Tagged("", "tag", "k")
	refused := func(reason string, ofKey bool) {
		t.Helper()
		_, err := store.Take(t.Context(), charge)
		e, ok := errors.AsType[*ratelimit.FaultError](err)
		if !ok || e.Reason != reason || e.OfKey != ofKey || !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("got %#v, want %s, of the key alone %t", err, reason, ofKey)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	refused("oom", false)
	must(client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	must(client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	refused("noreplicas", false)
	must(client.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	must(client.Set(t.Context(), key, "2:of a later version", 0).Err())
	refused("corrupt", true)
	must(client.Del(t.Context(), key).Err())
	must(client.HSet(t.Context(), key, "a", "b").Err())
	refused(ratelimit.ReasonStoreError, true)
	must(client.Del(t.Context(), key).Err())
	if out := take(t, store, charge); out.Verdicts[0].Remaining != 9 {
		t.Errorf("after all that: %+v", out)
	}
	_ = client.Close()
	refused("unreachable", false)
}

// Where nobody listens nothing was sent, and so nothing was charged.
func TestNobodyListens(t *testing.T) {
	for _, own := range []bool{false, true} {
		o := &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second}
		if own {
			o.Dialer = redislimit.Dialer(o)
		}
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		store := redislimit.New(client, redislimit.Options{})
		for range 30 {
			err := store.Probe(t.Context())
			if e, ok := errors.AsType[*ratelimit.FaultError](err); !ok || e.Reason != "unreachable" || !errors.Is(err, keytype.ErrUnavailable) {
				t.Fatalf("own dialer %t: got %v", own, err)
			}
		}
	}
}
