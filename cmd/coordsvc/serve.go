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
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// addresses are where serve listens.
type addresses struct{ http, ops, grpc string } // grpc is "" where it does not

const (
	drainTime     = 20 * time.Second // requests in flight may finish within it: 8 s with the stores, then caches and events
	sweepInterval = time.Minute
	quotaInterval = time.Second // between looks for expired reservations
	retryInterval = time.Second // between looks for an unreachable DynamoDB
)

// readiness is why requests are not answered, nil while they are. It begins once and ends for good.
type readiness struct {
	mu     sync.Mutex
	reason error // guarded by mu
	ended  bool  // guarded by mu
}

func (r *readiness) get() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// set gives the reason, nil for ready, and reports whether the service has not begun to end.
func (r *readiness) set(reason error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.reason = reason
	}
	return !r.ended
}

func (r *readiness) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reason, r.ended = errors.New("draining"), true
}

func serve(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, ready func(addresses)) error {
	flags := flag.NewFlagSet("coordsvc serve", flag.ContinueOnError)
	c, err := loadConfig(flags, args, getenv, stderr, needsKeysFile, takesFlagsOnly(flags), rightTraces(getenv))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	redis.SetLogger(redisLog{log})
	if err := ensureKeys(c); err != nil {
		return err
	}
	metrics := telemetry.New()
	tracer, err := startTraces(ctx, getenv, metrics, log)
	if err != nil {
		return err
	}
	s, err := openStores(ctx, c, metered(c, metrics), watched(c, metrics), dynamoTraced(c, tracer))
	if errors.Is(err, kv.ErrLocked) {
		return fmt.Errorf("another process serves the data folder %s: end it, or set COORD_DATA_DIR to a folder of its own", c.dataDir)
	}
	if err != nil {
		return err
	}
	s.watch(c, metrics, tracer)
	bounded, unbound := context.WithCancel(ctx)
	defer unbound()
	go boundGarbage(bounded, getenv)
	err = serveStores(ctx, c, s, metrics, tracer, log, stdout, ready)
	err = errors.Join(err, s.close())
	if lost := tracer.Close(context.WithoutCancel(ctx)); lost != nil {
		log.Warn("the last spans were not sent", "error", notSent(lost))
	}
	return err
}

// serveStores runs the service over open stores until ctx ends.
func serveStores(ctx context.Context, c config, s stores, metrics *telemetry.Metrics, tracer *telemetry.Tracer, log *slog.Logger, stdout io.Writer, ready func(addresses)) error {
	secrets, err := loadKeys(keysPath(c))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	opened := make(chan struct{})
	keys := auth.New(closed{s.auth, opened}, auth.Options{})
	counted, options, end := limitStore(s, c, secrets, metrics, log)
	defer end() //nolint:errcheck // ends a probe and the last charges, and cannot fail
	policies, err := startPolicies(c)
	if err != nil {
		return err
	}
	limits, err := ratelimit.New(counted, policies, options)
	if err != nil {
		return err
	}
	s.tenants = newTenants(s, c)
	api, err := newAPI(s, keys, limits, c, secrets, log, metrics, tracer, ctx.Done()) //nolint:contextcheck // its handlers have each request's own context
	if err != nil {
		return err
	}
	state := &readiness{reason: errors.New("starting")}
	apiListener, err := listen(ctx, "COORD_HTTP_ADDR", c.httpAddr)
	if err != nil {
		return err
	}
	opsListener, err := listen(ctx, "COORD_OPS_ADDR", c.opsAddr)
	if err != nil {
		return errors.Join(err, apiListener.Close())
	}
	unready := func() error { return cmp.Or(state.get(), s.fault(ctx), s.tablesBar.reason(), s.clockFault(c)) }
	watchLeases(limits, metrics)
	metrics.WatchReady(func() bool { return unready() == nil })
	proxies, err := listenGRPC(ctx, c, limits, keys, unready, metrics, tracer, log)
	if err != nil {
		return errors.Join(err, apiListener.Close(), opsListener.Close())
	}
	servers := []*http.Server{httpapi.NewServer(api), httpapi.NewServer(httpapi.Ops(unready, metrics.Handler()))}
	if s.file != nil {
		admin, err := serveAdmin(c.dataDir, keys, s.file, log)
		if err != nil {
			log.Warn("no admin socket: coordsvc keys and backup need the service stopped", "error", err)
		} else {
			servers = append(servers, admin)
		}
	}

	group.Go(func() error { return serveHTTP(servers[0], httpapi.Listener(apiListener)) })
	group.Go(func() error { return serveHTTP(servers[1], opsListener) })
	group.Go(func() error { return proxies.run(ctx) })
	group.Go(func() error { s.tenants.Poll(ctx); return nil })
	group.Go(func() error { watchClock(ctx, s, c, log); return nil })
	group.Go(func() error { limits.RunLeases(ctx); return nil })
	group.Go(func() error { watchHotKeys(ctx, options.HotKeys, s, c, secrets, metrics, log); return nil })
	group.Go(func() error { watchPolicies(ctx, c, limits, metrics, log); return nil })
	group.Go(func() error { return sweep(ctx, s, newQuotas(s, c), log) })
	group.Go(func() error {
		data, err := prepare(ctx, c, s, keys, secrets, state, log)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if s.sharing != nil {
			s.sharing.id = data.ID
		}
		mark := newMarker(s.redis, c, secrets.route, data)
		if _, err := s.pair(ctx, mark, c, log); err != nil { // no earlier: whatever else can be wrong has been looked at
			return err
		}
		close(opened)
		group.Go(func() error { s.keepPaired(ctx, mark, c, log); return nil })
		awaitClock(ctx, s, c, log)
		at := addresses{http: apiListener.Addr().String(), ops: opsListener.Addr().String(), grpc: proxies.addr()}
		if !state.set(nil) {
			return nil // the service ends already
		}
		printReady(ctx, c, keys, at, stdout)
		ready(at)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		state.end()
		return drain(context.WithoutCancel(ctx), servers)
	})
	err = group.Wait()
	endLeases(context.WithoutCancel(ctx), limits, log)
	return err
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
	var group errgroup.Group
	group.Go(func() error { quota.RunSweeper(ctx, quotas, quotaInterval, sweepLog(log, "quotas")); return nil })
	group.Go(func() error {
		kv.RunSweeper(ctx, s.limits, sweepInterval, s.limitsNow, sweepLog(log, "limits"))
		return nil
	})
	if s.held != nil {
		group.Go(func() error { kv.RunSweeper(ctx, s.held, sweepInterval, time.Now, sweepLog(log, "held")); return nil })
	}
	if s.file != nil {
		group.Go(func() error { kv.RunSweeper(ctx, s.file, sweepInterval, time.Now, sweepLog(log, "file")); return nil })
	}
	return group.Wait()
}

// sweepLog reports the sweeps of one kind: the first that fails, and the first that does not any more.
func sweepLog(log *slog.Logger, of string) func(int, error) {
	failing := false
	return func(_ int, err error) {
		switch {
		case err != nil && !failing:
			log.Error("sweeps fail", "of", of, "error", err)
		case err == nil && failing:
			log.Info("sweeps work again", "of", of)
		}
		failing = err != nil
	}
}

// prepare does what must hold before the first request: the tables stand, the data
// belongs to the route key, and the first keys are there. While DynamoDB cannot be reached it keeps trying; a
// missing table is an error.
func prepare(ctx context.Context, c config, s stores, keys *auth.Manager, secrets fileKeys, state *readiness, log *slog.Logger) (deployment, error) {
	for told := false; ; told = true {
		data, err := prepareOnce(ctx, c, s, keys, secrets)
		if !errors.Is(err, keytype.ErrUnavailable) && !errors.Is(err, keytype.ErrOutcomeUnknown) {
			return data, err
		}
		if !told {
			log.Warn("not ready: the store does not answer", "error", err)
		}
		state.set(errors.New("the store does not answer"))
		select {
		case <-ctx.Done():
			return deployment{}, nil
		case <-time.After(retryInterval):
		}
	}
}

func prepareOnce(ctx context.Context, c config, s stores, keys *auth.Manager, secrets fileKeys) (deployment, error) {
	if err := s.tablesStand(ctx, c); err != nil {
		return deployment{}, err
	}
	data, err := s.deployment(ctx, c, secrets.route)
	if err != nil {
		return deployment{}, err
	}
	return data, firstKeys(ctx, c, keys)
}

// firstKeys adds the keys that there are before anybody can make one.
func firstKeys(ctx context.Context, c config, keys *auth.Manager) error {
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
	fmt.Fprintf(stdout, "ready http=%s ops=%s", at.http, at.ops)
	if at.grpc != "" {
		fmt.Fprintf(stdout, " grpc=%s", at.grpc)
	}
	fmt.Fprintln(stdout)
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
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
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
