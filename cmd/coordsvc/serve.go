package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

// addresses are where serve listens.
type addresses struct{ http, ops string }

const (
	drainTime     = 10 * time.Second // requests in flight may finish within it
	sweepInterval = time.Minute
	quotaInterval = time.Second // between looks for expired reservations
	retryInterval = time.Second // between looks for an unreachable DynamoDB
)

// errStarting is what readiness says before the first request can be answered.
var errStarting = errors.New("starting")

// readiness is nil once requests are answered, else the reason why not.
type readiness struct{ reason atomic.Pointer[error] }

func (r *readiness) set(err error) { r.reason.Store(&err) }
func (r *readiness) get() error    { return *r.reason.Load() }

func serve(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, ready func(addresses)) error {
	flags := flag.NewFlagSet("coordsvc serve", flag.ContinueOnError)
	c, err := loadConfig(flags, args, getenv, stderr, needsKeysFile)
	if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("serve takes flags only, not %q", flags.Args())
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	redis.SetLogger(redisLog{log})
	s, err := openStores(ctx, c)
	if errors.Is(err, kv.ErrLocked) {
		return fmt.Errorf("another process serves the data folder %s: end it, or set COORD_DATA_DIR to a folder of its own", c.dataDir)
	}
	if err != nil {
		return err
	}
	err = serveStores(ctx, c, s, log, stdout, ready)
	return errors.Join(err, s.close())
}

// serveStores runs the service over open stores until ctx ends.
func serveStores(ctx context.Context, c config, s stores, log *slog.Logger, stdout io.Writer, ready func(addresses)) error {
	if c.embedded() && c.keysFile == "" {
		if err := ensureKeys(keysPath(c)); err != nil {
			return fmt.Errorf("make the keys file: %w", err)
		}
	}
	secrets, err := loadKeys(keysPath(c))
	if err != nil {
		return err
	}
	mark := newMarker(s.redis, c, secrets.route)
	if err := mark.check(ctx); err != nil {
		return err
	}
	metrics := telemetry.New()
	keys := auth.New(s.auth, auth.Options{})
	counted, options, end := limitStore(s, c, metrics, log)
	defer end() //nolint:errcheck // ends a probe, and cannot fail
	policies, err := startPolicies(c)
	if err != nil {
		return err
	}
	limits, err := ratelimit.New(counted, policies, options)
	if err != nil {
		return err
	}
	s.tenants = session.NewTenants(s.sessions, session.TenantsOptions{})
	api, err := newAPI(s, keys, limits, c, secrets, log, metrics.Observe, ctx.Done()) //nolint:contextcheck // its handlers have each request's own context
	if err != nil {
		return err
	}
	state := &readiness{}
	state.set(errStarting)
	apiListener, err := listen(ctx, "COORD_HTTP_ADDR", c.httpAddr)
	if err != nil {
		return err
	}
	opsListener, err := listen(ctx, "COORD_OPS_ADDR", c.opsAddr)
	if err != nil {
		return errors.Join(err, apiListener.Close())
	}
	servers := []*http.Server{httpapi.NewServer(api), httpapi.NewServer(httpapi.Ops(func() error { return cmp.Or(state.get(), s.fault(ctx), s.clockFault(c)) }, metrics.Handler()))}
	if s.file != nil {
		admin, err := serveAdmin(c.dataDir, keys, s.file, log)
		if err != nil {
			log.Warn("no admin socket: coordsvc keys and backup need the service stopped", "error", err)
		} else {
			servers = append(servers, admin)
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHTTP(servers[0], apiListener) })
	group.Go(func() error { return serveHTTP(servers[1], opsListener) })
	group.Go(func() error { s.tenants.Poll(ctx); return nil })
	group.Go(func() error { watchClock(ctx, s, c, log); return nil })
	group.Go(func() error { return mark.watch(ctx, markerEvery, log) })
	group.Go(func() error { watchPolicies(ctx, c, limits, metrics, log); return nil })
	group.Go(func() error { return sweep(ctx, s, newQuotas(s, c), log) })
	group.Go(func() error {
		err := prepare(ctx, c, s, keys, state, log)
		if err != nil || ctx.Err() != nil {
			return err
		}
		awaitClock(ctx, s, c, log)
		at := addresses{http: apiListener.Addr().String(), ops: opsListener.Addr().String()}
		state.set(nil)
		printReady(ctx, c, keys, at, stdout)
		ready(at)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		state.set(errors.New("draining"))
		return drain(context.WithoutCancel(ctx), servers)
	})
	return group.Wait()
}

func listen(ctx context.Context, setting, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", setting, addr, err)
	}
	return l, nil
}

func serveHTTP(server *http.Server, l net.Listener) error {
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// drain lets requests in flight finish, and cuts off those that do not.
func drain(ctx context.Context, servers []*http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	var group errgroup.Group
	for _, server := range servers {
		group.Go(func() error {
			if err := server.Shutdown(ctx); err != nil {
				return errors.Join(fmt.Errorf("drain: %w", err), server.Close())
			}
			return nil
		})
	}
	return group.Wait()
}

// sweep removes what has expired, in the file and in memory, and returns the units
// of expired reservations.
func sweep(ctx context.Context, s stores, quotas *quota.Manager, log *slog.Logger) error {
	report := func(_ int, err error) {
		if err != nil {
			log.Error("sweep", "error", err)
		}
	}
	var group errgroup.Group
	group.Go(func() error { quota.RunSweeper(ctx, quotas, quotaInterval, report); return nil })
	group.Go(func() error { kv.RunSweeper(ctx, s.limits, sweepInterval, time.Now, report); return nil })
	if s.held != nil {
		group.Go(func() error { kv.RunSweeper(ctx, s.held, sweepInterval, time.Now, report); return nil })
	}
	if s.file != nil {
		group.Go(func() error { kv.RunSweeper(ctx, s.file, sweepInterval, time.Now, report); return nil })
	}
	return group.Wait()
}

// prepare does what must hold before the first request: the tables stand and
// the first keys are there. While DynamoDB cannot be reached it keeps trying; a
// missing table is an error.
func prepare(ctx context.Context, c config, s stores, keys *auth.Manager, state *readiness, log *slog.Logger) error {
	for {
		err := prepareOnce(ctx, c, s, keys)
		if !errors.Is(err, keytype.ErrUnavailable) && !errors.Is(err, keytype.ErrOutcomeUnknown) {
			return err
		}
		log.Warn("not ready: the store does not answer", "error", err)
		state.set(errors.New("the store does not answer"))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}

func prepareOnce(ctx context.Context, c config, s stores, keys *auth.Manager) error {
	if s.tables != nil {
		if err := dynamo.Check(ctx, s.tables, dynamoTables(c.tablePrefix)...); err != nil {
			return fmt.Errorf("%w: run coordsvc tables create", err)
		}
	}
	if c.bootstrapKeyFile != "" {
		line, err := readKeyLine(c.bootstrapKeyFile)
		if err != nil {
			return fmt.Errorf("COORD_BOOTSTRAP_KEY_FILE: %w", err)
		}
		if _, err := keys.Add(ctx, defaultTenant, "bootstrap", line); err != nil {
			return fmt.Errorf("add the bootstrap key: %w", err)
		}
	}
	if c.embedded() {
		return ensureFirstKey(ctx, c, keys)
	}
	return nil
}

// defaultTenant is the tenant of the first key.
const defaultTenant = "default"

// ensureFirstKey makes the key that a newcomer starts with. The file is
// written first, so that a crash between the two leaves a key to be added.
func ensureFirstKey(ctx context.Context, c config, keys *auth.Manager) error {
	path := firstKeyPath(c)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := writeSecret(path, auth.NewSecret().Reveal()+"\n"); err != nil {
			return fmt.Errorf("write the first key: %w", err)
		}
	}
	line, err := readKeyLine(path)
	if err != nil {
		return fmt.Errorf("read the first key: %w", err)
	}
	if _, err := keys.Add(ctx, defaultTenant, "first key", line); err != nil {
		return fmt.Errorf("add the first key: %w", err)
	}
	return nil
}

func firstKeyPath(c config) string { return filepath.Join(c.dataDir, "first-key") }

func keysPath(c config) string {
	if c.keysFile != "" {
		return c.keysFile
	}
	return filepath.Join(c.dataDir, "keys")
}

// printReady prints what scripts wait for and, embedded, a line that works when it is pasted.
func printReady(ctx context.Context, c config, keys *auth.Manager, at addresses, stdout io.Writer) {
	fmt.Fprintf(stdout, "ready http=%s ops=%s\n", at.http, at.ops)
	if !c.embedded() {
		return
	}
	line, err := readKeyLine(firstKeyPath(c))
	if err == nil {
		_, err = keys.Authenticate(ctx, line)
	}
	if err != nil {
		fmt.Fprintln(stdout, "the first key was revoked; another: coordsvc keys create --tenant default")
		return
	}
	fmt.Fprintf(stdout, "curl -H \"Authorization: Bearer $(cat %s)\" http://%s/v1/key-types\n", shellQuote(firstKeyPath(c)), dialable(at.http))
}

// dialable replaces an address of every interface by the loopback one.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

// shellQuote leaves a plain path alone and quotes any other.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"
	if strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
