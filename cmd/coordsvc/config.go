package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// config is every setting, checked.
type config struct {
	httpAddr         string
	opsAddr          string
	grpcAddr         string // "" = none
	dataDir          string
	dynamoDB         string // "" = embedded, "aws", or an endpoint URL
	tablePrefix      string
	keysFile         string
	bootstrapKeyFile string
	leaseGuard       time.Duration
	clockOffset      time.Duration // in tests
	unmeasured       bool          // in tests: nothing is counted
	policyPath       string
	redisURL         string // "" = none
	redisPrefix      string
	redisBudget      time.Duration
	staleGrace       time.Duration // of sessions
	xRateLimit       ratelimithttp.Older
}

func (c config) embedded() bool { return c.dynamoDB == "" }

// A setting is one environment variable and its flag.
type setting struct {
	env   string
	usage string
	// set checks the value, "" where it is unset, and keeps it. Its error says how to mend the value.
	// Settings are set in the order of the list, so that a default can follow the mode.
	set func(c *config, value string) error
}

func (s setting) flag() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.env, "COORD_")), "_", "-")
}

var settings = []setting{
	{"COORD_DYNAMODB", `"aws" or an endpoint URL; unset: embedded, everything durable in one file`, setDynamoDB},
	{"COORD_HTTP_ADDR", "address of the API (127.0.0.1:8080 embedded, :8080 with DynamoDB)", func(c *config, v string) error {
		def := ":8080"
		if c.embedded() {
			def = "127.0.0.1:8080"
		}
		return setAddr(&c.httpAddr, v, def)
	}},
	{"COORD_OPS_ADDR", "address of health and metrics (" + defaultOpsAddr + ")", func(c *config, v string) error {
		return setAddr(&c.opsAddr, v, defaultOpsAddr)
	}},
	{"COORD_DATA_DIR", "folder of the embedded store (./coordsvc-data)", func(c *config, v string) error {
		c.dataDir = orDefault(v, "./coordsvc-data")
		return nil
	}},
	{"COORD_TABLE_PREFIX", "prefix of the DynamoDB tables (coord_)", setTablePrefix},
	{"COORD_KEYS_FILE", "file with the routing and sealing keys (embedded: keys in the data folder, made when missing)", func(c *config, v string) error {
		c.keysFile = v
		return nil
	}},
	{"COORD_BOOTSTRAP_KEY_FILE", "file with one csk_ line: a key with every scope of tenant default", func(c *config, v string) error {
		c.bootstrapKeyFile = v
		return nil
	}},
	{"COORD_LEASE_GUARD_MS", "how long after its expiry a lease is not yet taken over, in ms (2000 with DynamoDB, 0 embedded)", setLeaseGuard},
	{"COORD_REDIS_URL", "address of a Redis: " + redisForms + "; unset: none", setRedisURL},
	{"COORD_REDIS_PREFIX", "before every key in Redis; belongs to one set of tables, or one data folder", setRedisPrefix},
	{"COORD_REDIS_BUDGET_MS", "how long a request waits for Redis, in ms (5)", setRedisBudget},
	{"COORD_SESSION_STALE_GRACE_MS", "for how long beyond 10 s sessions are verified from Redis while DynamoDB does not answer, in ms (0); a revocation may show that much later; the same on every node", setStaleGrace},
	{"COORD_POLICY_PATH", "file or folder with the rate-limit policies; unset: one policy, default", func(c *config, v string) error {
		c.policyPath = v
		return nil
	}},
	{"COORD_X_RATELIMIT", "sets X-RateLimit-Limit, -Remaining and -Reset on checks, the last in seconds since 1970 (epoch) or from now (delta); unset: none", setXRateLimit},
	{"COORD_TEST_CLOCK_OFFSET_MS", "how far the clock is off, in ms; for binaries that were linked for tests", setClockOffset},
	{"COORD_TEST_METRICS", "off: nothing is counted; for binaries that were linked for tests", setMetrics},
	{"COORD_GRPC_ADDR", "address of Envoy's rate limit service over gRPC; unset: none", func(c *config, v string) error {
		if v == "" {
			return nil
		}
		return setAddr(&c.grpcAddr, v, "127.0.0.1:9091")
	}},
}

// loadConfig reads the settings from flags and environment and returns what
// is left of args. Its error lists every mistake, each with its fix. Flags
// that a command adds to fs are parsed with the rest, and its own checks of the settings run with the others.
func loadConfig(fs *flag.FlagSet, args []string, getenv func(string) string, stderr io.Writer, checks ...func(config) error) (config, error) {
	fs.SetOutput(stderr)
	values := make([]string, len(settings))
	for i, s := range settings {
		// Not the flag's default: --help would print it, and it may hold a password.
		values[i] = getenv(s.env)
		fs.Func(s.flag(), s.usage+"; "+s.env, func(v string) error { values[i] = v; return nil })
	}
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	var c config
	var mistakes []error
	for i, s := range settings {
		if err := s.set(&c, values[i]); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s (--%s) %w", s.env, s.flag(), err))
		}
	}
	for _, check := range checks {
		mistakes = append(mistakes, check(c))
	}
	return c, errors.Join(mistakes...)
}

// needsKeysFile is the check of a command that decides over sessions.
func needsKeysFile(c config) error {
	if c.keysFile == "" && !c.embedded() {
		return errors.New(`COORD_KEYS_FILE (--keys-file) is required with DynamoDB: name a file with the lines "route <base64 of 32 bytes>" and "seal <base64 of 32 bytes>", the same on every node`)
	}
	return nil
}

// needsStore is the check of a command that works on what serve keeps: in a wrong
// folder it would make a new store and seem to have worked.
func needsStore(c config) error {
	if c.embedded() && !exists(filepath.Join(c.dataDir, storeFile)) {
		return fmt.Errorf("COORD_DATA_DIR (--data-dir): there is no store in %s: name the folder of the service, which makes it at its first start", c.dataDir)
	}
	return nil
}

// takesFlagsOnly is the check of a command without other arguments.
func takesFlagsOnly(fs *flag.FlagSet) func(config) error {
	return func(config) error {
		if fs.NArg() > 0 {
			return fmt.Errorf("%s takes flags only, not %q", fs.Name(), fs.Args())
		}
		return nil
	}
}

// needsDynamoDB is the check of a command that works on tables.
func needsDynamoDB(c config) error {
	if c.embedded() {
		return errors.New("COORD_DYNAMODB (--dynamodb) is unset: the embedded store has no tables")
	}
	return nil
}

func setDynamoDB(c *config, v string) error {
	c.dynamoDB = v
	if v == "" || v == "aws" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf(`is %q: write "aws", or an endpoint such as http://127.0.0.1:8000, or leave it unset`, v)
	}
	return nil
}

// defaultOpsAddr is where health and metrics are asked for, from this machine alone.
const defaultOpsAddr = "127.0.0.1:9090"

func setAddr(to *string, v, def string) error {
	*to = orDefault(v, def)
	_, port, err := net.SplitHostPort(*to)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("is %q: write host:port, for example %s", *to, def)
	}
	return nil
}

// tablePrefix is what DynamoDB allows in a table name, with room for the longest of our names.
var tablePrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,200}$`)

func setTablePrefix(c *config, v string) error {
	c.tablePrefix = orDefault(v, "coord_")
	if !tablePrefix.MatchString(c.tablePrefix) {
		return fmt.Errorf("is %q: use 1 to 200 of the characters A-Z a-z 0-9 _ . -", v)
	}
	return nil
}

func setLeaseGuard(c *config, v string) error {
	low, def := int64(500), "2000"
	if c.embedded() {
		low, def = 0, "0" // one process, one clock
	}
	ms, err := strconv.ParseInt(orDefault(v, def), 10, 64)
	if err != nil || ms < low || ms > 60_000 {
		return fmt.Errorf("is %q: write a number of milliseconds from %d to 60000, or leave it unset for %s", v, low, def)
	}
	c.leaseGuard = time.Duration(ms) * time.Millisecond
	return nil
}

// maxStaleGrace leaves API keys known for as long: they are read again when they are
// 5 s old, and count for 30 s.
const maxStaleGrace = 15_000 // ms

func setStaleGrace(c *config, v string) error {
	ms, err := strconv.ParseInt(orDefault(v, "0"), 10, 64)
	if err != nil || ms < 0 || ms > maxStaleGrace {
		return fmt.Errorf("is %q: write a number of milliseconds from 0 to %d, or leave it unset for 0", v, maxStaleGrace)
	}
	if ms > 0 && (c.embedded() || c.redisURL == "") {
		return errors.New("needs COORD_DYNAMODB and COORD_REDIS_URL, without which no session is cached: leave it unset")
	}
	c.staleGrace = time.Duration(ms) * time.Millisecond
	return nil
}

func setXRateLimit(c *config, v string) error {
	c.xRateLimit = ratelimithttp.Older(v)
	if !c.xRateLimit.Known() {
		return fmt.Errorf("is %q: write %s or %s, or leave it unset for none", v, ratelimithttp.Epoch, ratelimithttp.Delta)
	}
	return nil
}

func orDefault(v, def string) string {
	if v == "" {
		return def
	}
	return v
}
