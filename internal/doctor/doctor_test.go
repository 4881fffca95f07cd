package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/doctor"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// expect fails the test unless exactly the one check says so, and says what to do.
func expect(t *testing.T, findings []doctor.Finding, check string, status doctor.Status) {
	t.Helper()
	found := false
	for _, f := range findings {
		switch {
		case f.Status == status && f.Check == check:
			found = true
			if f.Fix == "" || f.Detail == "" || f.Subject == "" {
				t.Errorf("%+v does not say what to do", f)
			}
		case f.Status == doctor.Fault:
			t.Errorf("besides: %+v", f)
		}
	}
	if !found {
		t.Errorf("no %s of %s among %+v", status, check, findings)
	}
}

func clean(t *testing.T, findings []doctor.Finding) {
	t.Helper()
	if len(findings) == 0 {
		t.Error("nothing was looked at")
	}
	for _, f := range findings {
		if f.Status != doctor.OK {
			t.Errorf("%+v", f)
		}
	}
}

func TestKeyTypes(t *testing.T) {
	clean(t, doctor.KeyTypes(keytype.All()))
	for what, spoil := range map[string]func(*keytype.Type){
		"no owner":   func(k *keytype.Type) { k.Owner = "" },
		"no TTL":     func(k *keytype.Type) { k.TTL = "" },
		"no posture": func(k *keytype.Type) { k.OnStoreFailure = "" },
	} {
		t.Run(what, func(t *testing.T) {
			planted := *keytype.Lease
			spoil(&planted)
			expect(t, doctor.KeyTypes([]*keytype.Type{keytype.Session, &planted}), "key type", doctor.Fault)
		})
	}
}

func TestPolicies(t *testing.T) {
	good := ratelimit.DefaultPolicy()
	good.Owner = "search-team"
	clean(t, doctor.Policies([]ratelimit.Policy{good}))
	planted := good
	planted.Posture = ""
	expect(t, doctor.Policies([]ratelimit.Policy{planted}), "policy", doctor.Fault)
	planted = good
	planted.Owner = ""
	expect(t, doctor.Policies([]ratelimit.Policy{planted}), "policy owner", doctor.Warning)
}

// ask examines a Redis whose settings are well but for the planted ones.
func ask(t *testing.T, server *engine.RedisServer, user string, planted ...string) []doctor.Finding {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: time.Second, Username: user, Password: user})
	defer client.Close()
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	for _, setting := range append([]string{"maxmemory 100mb", "maxmemory-policy volatile-lru"}, planted...) {
		name, value, _ := strings.Cut(setting, " ")
		if err := admin.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return doctor.Redis(t.Context(), client, time.Now)
}

// replicated is a primary with a replica that follows it.
func replicated(t *testing.T) (primary, replica *engine.RedisServer) {
	t.Helper()
	primary = engine.StartRedis(t)
	host, port, _ := strings.Cut(primary.Addr, ":")
	replica = engine.StartRedis(t)
	c := redis.NewClient(&redis.Options{Addr: replica.Addr})
	defer c.Close()
	if err := c.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	p := redis.NewClient(&redis.Options{Addr: primary.Addr})
	defer p.Close()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if info, err := p.Info(t.Context(), "replication").Result(); err == nil && strings.Contains(info, "state=online") {
			return primary, replica
		}
	}
	t.Fatal("the replica does not follow")
	return nil, nil
}

func TestRedisGood(t *testing.T) {
	t.Parallel()
	primary, replica := replicated(t)
	clean(t, ask(t, primary, ""))
	t.Run("asked at the replica", func(t *testing.T) { expect(t, ask(t, replica, ""), "redis role", doctor.Fault) })
}

func TestRedisPlanted(t *testing.T) {
	t.Parallel()
	server := engine.StartRedis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	if err := admin.Do(t.Context(), "acl", "setuser", "unscripted", "on", ">unscripted", "~*", "+@all", "-eval", "-evalsha").Err(); err != nil {
		t.Fatal(err)
	}
	t.Run("no replica", func(t *testing.T) { expect(t, ask(t, server, ""), "redis replicas", doctor.Warning) })
	t.Run("refuses writes when full", func(t *testing.T) {
		expect(t, ask(t, server, "", "maxmemory-policy noeviction"), "redis eviction", doctor.Fault)
	})
	t.Run("memory without a bound", func(t *testing.T) {
		expect(t, ask(t, server, "", "maxmemory 0"), "redis memory", doctor.Warning)
	})
	t.Run("every write waits for the disk", func(t *testing.T) {
		expect(t, ask(t, server, "", "appendonly yes", "appendfsync always"), "redis append-only file", doctor.Warning)
	})
	t.Run("no scripts", func(t *testing.T) { expect(t, ask(t, server, "unscripted"), "redis scripts", doctor.Fault) })
	t.Run("a clock that is off", func(t *testing.T) {
		off := func() time.Time { return time.Now().Add(-time.Minute) }
		expect(t, doctor.Redis(t.Context(), admin, off), "redis clock", doctor.Fault)
	})
	t.Run("nobody there", func(t *testing.T) {
		server.Kill()
		expect(t, doctor.Redis(t.Context(), admin, time.Now), "redis answers", doctor.Fault)
	})
}
