package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func load(env map[string]string, args ...string) (config, error) {
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	return loadConfig(fs, args, func(name string) string { return env[name] }, io.Discard, needsKeysFile)
}

func TestSettingsWithoutAnyAreEmbedded(t *testing.T) {
	c, err := load(nil)
	want := config{httpAddr: "127.0.0.1:8080", opsAddr: "127.0.0.1:9090", dataDir: "./coordsvc-data", tablePrefix: "coord_", redisBudget: 5 * time.Millisecond}
	if err != nil || c != want || !c.embedded() {
		t.Errorf("got %+v, %v, want %+v", c, err, want)
	}
}

func TestAFlagWinsOverItsVariable(t *testing.T) {
	c, err := load(map[string]string{"COORD_HTTP_ADDR": "127.0.0.1:1", "COORD_LEASE_GUARD_MS": "700"}, "--http-addr", "127.0.0.1:2")
	if err != nil || c.httpAddr != "127.0.0.1:2" || c.leaseGuard != 700*time.Millisecond {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestDefaultsFollowTheMode(t *testing.T) {
	c, err := load(map[string]string{"COORD_DYNAMODB": "http://127.0.0.1:8000", "COORD_KEYS_FILE": "k"})
	if err != nil || c.httpAddr != ":8080" || c.leaseGuard != 2*time.Second {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestAllMistakesAreToldAtOnceEachWithItsFix(t *testing.T) {
	_, err := load(map[string]string{
		"COORD_HTTP_ADDR":       "8080",
		"COORD_OPS_ADDR":        "127.0.0.1:99999",
		"COORD_GRPC_ADDR":       "9091",
		"COORD_DYNAMODB":        "dynamo:8000",
		"COORD_TABLE_PREFIX":    "a b",
		"COORD_LEASE_GUARD_MS":  "2s",
		"COORD_REDIS_URL":       "http://user:hunter2@h:1",
		"COORD_REDIS_PREFIX":    "{a}",
		"COORD_REDIS_BUDGET_MS": "0",
		"COORD_X_RATELIMIT":     "unix",
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"COORD_HTTP_ADDR (--http-addr)", "write host:port", "COORD_OPS_ADDR", "COORD_GRPC_ADDR (--grpc-addr)", "127.0.0.1:9091", "COORD_DYNAMODB", "http://127.0.0.1:8000",
		"COORD_TABLE_PREFIX", "COORD_LEASE_GUARD_MS", "from 500 to 60000", "COORD_REDIS_URL", "redis://host:port", "COORD_REDIS_PREFIX", "COORD_REDIS_BUDGET_MS", "from 1 to 1000", "COORD_X_RATELIMIT", "epoch or delta", "COORD_KEYS_FILE",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message lacks %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("the message tells a password")
	}
}

func TestRedisAddresses(t *testing.T) {
	for _, step := range []struct {
		url, kind string
	}{
		{"redis://h:6379/1", "*redis.Client"},
		{"rediss://:secret@h:6379", "*redis.Client"},
		{"redis://h:1?addr=h:2&addr=h:3", "*redis.ClusterClient"},
		{"redis://h:1?master_name=m&addr=h:2", "*redis.Client"},
	} {
		if _, err := load(map[string]string{"COORD_REDIS_URL": step.url}); err != nil {
			t.Errorf("%s: %v", step.url, err)
		}
		c, err := redisClient(config{redisURL: step.url})
		if err != nil || fmt.Sprintf("%T", c) != step.kind {
			t.Errorf("%s: %T, %v; want %s", step.url, c, err, step.kind)
		}
	}
}

// A cluster's client has connections for many calls at a time, and follows what has moved at
// once, or as its address says.
func TestClusterConnections(t *testing.T) {
	for url, want := range map[string]struct {
		connections int
		backoff     time.Duration
	}{
		"redis://h:1?addr=h:2":                       {clusterPool, 0},
		"redis://h:1?addr=h:2&pool_size=7":           {7, 0},
		"redis://h:1?addr=h:2&min_retry_backoff=3ms": {clusterPool, 3 * time.Millisecond},
		"redis://h:1?addr=h:2&min_retry_backoff=0":   {clusterPool, 0},
	} {
		c, err := redisClient(config{redisURL: url})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.(*redis.ClusterClient).Options(); got.PoolSize != want.connections || got.MinRetryBackoff != want.backoff {
			t.Errorf("%s: %d connections, a backoff of %v, want %+v", url, got.PoolSize, got.MinRetryBackoff, want)
		}
	}
}

func TestTheGuardHasBounds(t *testing.T) {
	dynamo := map[string]string{"COORD_DYNAMODB": "aws", "COORD_KEYS_FILE": "k"}
	for _, step := range []struct {
		why   string
		env   map[string]string
		value string
		ok    bool
	}{
		{"the least with DynamoDB", dynamo, "500", true},
		{"below it", dynamo, "499", false},
		{"the most", dynamo, "60000", true},
		{"above it", dynamo, "60001", false},
		{"one clock needs none", nil, "0", true},
		{"not a number", nil, "1.5", false},
	} {
		env := map[string]string{"COORD_LEASE_GUARD_MS": step.value}
		for k, v := range step.env {
			env[k] = v
		}
		if _, err := load(env); (err == nil) != step.ok {
			t.Errorf("%s: %q: %v", step.why, step.value, err)
		}
	}
}

func TestTheStaleGraceHasBounds(t *testing.T) {
	cached := map[string]string{"COORD_DYNAMODB": "aws", "COORD_KEYS_FILE": "k", "COORD_REDIS_URL": "redis://h:1"}
	for _, step := range []struct {
		why   string
		env   map[string]string
		value string
		says  string // "" = allowed
	}{
		{"unset", nil, "", ""},
		{"none, embedded", nil, "0", ""},
		{"the most", cached, "15000", ""},
		{"above it", cached, "15001", "from 0 to 15000"},
		{"below none", cached, "-1", "from 0 to 15000"},
		{"no session is cached, embedded", map[string]string{"COORD_REDIS_URL": "redis://h:1"}, "1", "needs COORD_DYNAMODB and COORD_REDIS_URL"},
		{"no session is cached, without Redis", map[string]string{"COORD_DYNAMODB": "aws", "COORD_KEYS_FILE": "k"}, "1", "needs COORD_DYNAMODB and COORD_REDIS_URL"},
	} {
		env := map[string]string{"COORD_SESSION_STALE_GRACE_MS": step.value}
		maps.Copy(env, step.env)
		c, err := load(env)
		if (err == nil) != (step.says == "") || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%s: %v", step.why, err)
		}
		if step.why == "the most" && c.staleGrace != 15*time.Second {
			t.Errorf("%s is %s", step.value, c.staleGrace)
		}
	}
}

func TestKeysFile(t *testing.T) {
	key := strings.Repeat("A", 43) + "="
	for _, step := range []struct {
		why, text, mistake string
	}{
		{"as documented", "# ours\n\nroute " + key + "\nseal " + key + "\nseal " + key + "\n", ""},
		{"no route key", "seal " + key, "route key is missing"},
		{"no seal key", "route " + key, "seal key is missing"},
		{"two route keys", "route " + key + "\nroute " + key + "\nseal " + key, "line 2: there is one route key only"},
		{"a short key", "route QUJD\nseal " + key, "line 1"},
		{"another name", "root " + key, "line 1: a key is named route or seal"},
		{"not base64", "route " + key + "\nseal ****", "line 2"},
	} {
		keys, err := parseKeys([]byte(step.text))
		if step.mistake == "" {
			if err != nil || len(keys.route) != 32 || len(keys.seal) != 2 {
				t.Errorf("%s: %v", step.why, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), step.mistake) {
			t.Errorf("%s: %v, want %q", step.why, err, step.mistake)
		}
		if err != nil && strings.Contains(err.Error(), "QUJD") {
			t.Errorf("%s: the message shows the key: %v", step.why, err)
		}
	}
}

func TestShellQuoteAndDialable(t *testing.T) {
	for in, want := range map[string]string{"./coordsvc-data/first-key": "./coordsvc-data/first-key", "a b": "'a b'", "it's": `'it'\''s'`} {
		if got := shellQuote(in); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "10.0.0.1:1": "10.0.0.1:1"} {
		if got := dialable(in); got != want {
			t.Errorf("dialable(%q) = %s, want %s", in, got, want)
		}
	}
}

// A password in the environment must not reach a log by way of --help or a mistyped flag.
func TestHelpShowsNoValue(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"--no-such-flag"}} {
		var out strings.Builder
		fs := flag.NewFlagSet("test", flag.ContinueOnError)
		_, err := loadConfig(fs, args, func(string) string { return "redis://:hunter2@127.0.0.1:1" }, &out)
		if err == nil || strings.Contains(out.String()+err.Error(), "hunter2") || !strings.Contains(out.String(), "redis-url") {
			t.Errorf("%v: %v\n%s", args, err, out.String())
		}
	}
}

// Under a fresh routing key a store's users would not be found, nor who of them is disabled.
func TestKeysAreNotMadeBesideAStore(t *testing.T) {
	c := config{dataDir: filepath.Join(t.TempDir(), "data")}
	if err := ensureKeys(c); err != nil {
		t.Fatal(err)
	}
	if _, err := loadKeys(keysPath(c)); err != nil {
		t.Errorf("keys of a new folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(c.dataDir, storeFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ensureKeys(c); err != nil {
		t.Errorf("store and keys: %v", err)
	}
	if err := os.Remove(keysPath(c)); err != nil {
		t.Fatal(err)
	}
	if err := ensureKeys(c); err == nil || exists(keysPath(c)) {
		t.Errorf("a store without keys: %v", err)
	}
}

func TestCommandsRefuseAWrongFolderAndStrayArguments(t *testing.T) {
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"keys", "create", "--tenant", "t", "--data-dir", t.TempDir()}, "there is no store"},
		{[]string{"tables", "raise-floor", "--data-dir", t.TempDir()}, "there is no store"},
		{[]string{"keys", "create", "--tenant", "t", "leases:use"}, "takes flags only"},
		{[]string{"tables", "create", "now"}, "takes flags only"},
		{[]string{"serve", "now"}, "takes flags only"},
	} {
		err := run(t.Context(), step.args, func(string) string { return "" }, io.Discard, io.Discard, func(addresses) {})
		if err == nil || !strings.Contains(err.Error(), step.want) {
			t.Errorf("%v: %v, want %q", step.args, err, step.want)
		}
	}
}
