package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/idempotency/dynamoidempotency"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/dynamoaudit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/auth/dynamoauth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/lock"
	"github.com/coordsvc/coordsvc/lock/redislock"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
	"github.com/coordsvc/coordsvc/session/redissession"
)

// storeFile is the embedded store's file in the data folder.
const storeFile = "coordsvc.db"

// maxItems bounds what is kept in memory of a kind, which may be lost.
const maxItems = 1_000_000

// stores are the domains' stores in one mode. A nil store means that the mode has none.
type stores struct {
	auth      auth.Store
	leases    lease.Store
	floor     *dynamolease.Store // the same, with DynamoDB only
	clock     *dynamo.Clock      // of DynamoDB, only there
	look      *lastLook          // at that clock
	fences    fencing.Store
	events    audit.Store
	quotas    quota.Store
	locks     lock.Store // nil with DynamoDB and no Redis
	held      *kv.Memory // the locks of this process: embedded without Redis only
	records   idempotency.Store
	sessions  session.Store
	tenants   *session.Tenants // of the sessions
	sharing   *sharing         // of their cache, with DynamoDB only
	limits    *kv.Memory       // the buckets of this process
	limitsNow func() time.Time // their clock, by which they are counted and swept
	file      *kv.Bolt         // embedded only
	tables    *dynamodb.Client
	redis     redis.UniversalClient // nil without COORD_REDIS_URL

	tablesBar, redisBar *bar // nil without them
}

// openStores opens the embedded file, or makes a client that dials at its first use.
func openStores(ctx context.Context, c config, options ...func(*dynamodb.Options)) (stores, error) {
	s := stores{limitsNow: ratelimit.Clock()}
	s.limits = newLimitsMemory(maxItems, s.limitsNow)
	if c.redisURL != "" {
		client, err := redisClient(c)
		if err != nil {
			return stores{}, err
		}
		s.redis, s.redisBar = client, &bar{store: "redis"}
		client.AddHook(s.redisBar)
		s.locks = redislock.New(client, c.redisPrefix)
	}
	if !c.embedded() {
		s.clock, s.look, s.tablesBar = dynamo.NewClock(c.now), &lastLook{}, &bar{store: "dynamodb"}
		client, err := dynamoClient(ctx, c, append(options, s.clock.Listen, dynamo.Bar(s.tablesBar.check))...)
		if err != nil {
			return stores{}, err
		}
		s.tables = client
		s.auth = dynamoauth.New(client, c.tablePrefix)
		leases := dynamolease.New(client, c.tablePrefix)
		s.leases, s.floor = leases, leases
		s.fences = dynamofence.New(client, c.tablePrefix)
		s.events = dynamoaudit.New(client, c.tablePrefix)
		s.quotas = dynamoquota.New(client, c.tablePrefix)
		s.records = dynamoidempotency.New(client, c.tablePrefix)
		s.sharing = newSharing(client, c)
		s.sessions = cachedSessions(dynamosession.New(client, c.tablePrefix), s.redis, c, s.sharing)
		return s, nil
	}
	if err := os.MkdirAll(c.dataDir, 0o700); err != nil {
		return stores{}, fmt.Errorf("make the data folder: %w", err)
	}
	file, err := kv.Open(filepath.Join(c.dataDir, storeFile), kv.BoltOptions{})
	if err != nil {
		return stores{}, err
	}
	s.file = file
	s.embed(file)
	if s.locks == nil {
		s.held = kv.NewMemory(kv.MemoryOptions{MaxItems: maxItems})
		s.locks = lock.NewLocal(s.held)
	}
	return s, nil
}

// newLimitsMemory keeps the ids of requests apart, refused ones among them: whoever sends
// many makes nobody's limit full.
func newLimitsMemory(items int, now func() time.Time) *kv.Memory {
	return kv.NewMemory(kv.MemoryOptions{MaxItems: items, Apart: []string{keytype.ChargeRequest.Bucket()}, Now: now})
}

// embed puts the durable kinds into the embedded store.
func (s *stores) embed(file kv.Store) {
	s.auth = auth.NewLocal(file)
	s.leases = lease.NewLocal(file)
	s.fences = fencing.NewLocal(file)
	s.events = audit.NewLocal(file)
	s.quotas = quota.NewLocal(file)
	s.records = idempotency.NewLocal(file)
	s.sessions = session.NewLocal(file)
}

// cachedSessions puts Redis, where there is one, before the durable sessions.
func cachedSessions(durable session.Durable, client redis.UniversalClient, c config, shared *sharing) session.Store {
	if client == nil {
		return session.NewDirect(durable, shared.elsewhere, c.now)
	}
	cache := redissession.New(client, redissession.Options{Prefix: c.redisPrefix, Budget: c.redisBudget})
	through := session.NewReadThrough(durable, cache, session.ReadThroughOptions{StaleGrace: c.staleGrace, Elsewhere: shared.elsewhere})
	shared.bound = through.Bound()
	return through
}

func (s stores) close() error {
	var errs []error
	if through, ok := s.sessions.(*session.ReadThrough); ok {
		through.Flush()
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Close())
	}
	if s.file != nil {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// fault says why the embedded file does not answer, for example after a write that the disk refused half way.
func (s stores) fault(ctx context.Context) error {
	if s.file == nil {
		return nil
	}
	return s.file.View(ctx, func(kv.Tx) error { return nil })
}

// dynamoClient takes region and credentials from the SDK's chain. One attempt
// ends after 2 s, so that three of them fit into a request's time.
func dynamoClient(ctx context.Context, c config, options ...func(*dynamodb.Options)) (*dynamodb.Client, error) {
	client := awshttp.NewBuildableClient(). // which the chain can give the roots of AWS_CA_BUNDLE
						WithTimeout(2 * time.Second).
						WithDialerOptions(func(d *net.Dialer) { d.Timeout = time.Second }).
						WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 128 })
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithHTTPClient(client))
	if err != nil {
		return nil, fmt.Errorf("load the AWS settings: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("AWS_REGION is unset: name the region of the tables (any name, for an engine of your own)")
	}
	return dynamodb.NewFromConfig(cfg, append(options, func(o *dynamodb.Options) {
		if c.dynamoDB != "aws" {
			o.BaseEndpoint = aws.String(c.dynamoDB)
		}
	})...), nil
}

// metered counts the capacity that the stores consume.
func metered(c config, metrics *telemetry.Metrics) func(*dynamodb.Options) {
	if c.unmeasured {
		return func(*dynamodb.Options) {}
	}
	return dynamo.Meter(func(table, operation string, units float64) {
		if t, known := keytype.ByTable(c.tablePrefix, table); known {
			metrics.CapacityConsumed(t.Name, operation, units)
		}
	})
}

// watched counts the requests to DynamoDB.
func watched(c config, metrics *telemetry.Metrics) func(*dynamodb.Options) {
	if c.unmeasured {
		return func(*dynamodb.Options) {}
	}
	return dynamo.Watch(func(t dynamo.Try) {
		metrics.StoreTried("dynamodb", itemType(c, t), t.Operation, string(t.Outcome), t.Took)
	})
}

// watch counts the requests to the other stores, and makes spans of them where there
// is a tracer.
func (s *stores) watch(c config, metrics *telemetry.Metrics, tracer *telemetry.Tracer) {
	if s.redis != nil && !c.unmeasured {
		s.redis.AddHook(metrics.RedisHook(c.redisPrefix))
	}
	if s.redis != nil && tracer != nil {
		s.redis.AddHook(tracer.RedisHook(c.redisPrefix))
	}
	if s.file != nil && !c.unmeasured {
		s.embed(metrics.WatchFile(s.file, tracer))
	}
}

// newQuotas makes the manager of quotas. It keeps nothing: the API and the sweeper have one each.
func newQuotas(s stores, c config) *quota.Manager {
	return quota.New(s.quotas, quota.Options{Guard: c.leaseGuard, Now: c.now, Skewed: func() bool { return s.skewed(c) }})
}

// newRecords makes the manager of idempotency keys of one origin.
func newRecords(s stores, c config, space string) *idempotency.Manager {
	return idempotency.New(s.records, idempotency.Options{Space: space, Guard: c.leaseGuard, Now: c.now, Skewed: func() bool { return s.skewed(c) }})
}

// newTenants makes what is known of the epochs of tenants.
func newTenants(s stores, c config) *session.Tenants {
	opts := session.TenantsOptions{StaleGrace: c.staleGrace}
	if s.sharing != nil {
		opts.Elsewhere = s.sharing.elsewhere
	}
	return session.NewTenants(s.sessions, opts)
}

// newAPI puts the managers over the stores and the HTTP surface over the managers.
func newAPI(s stores, keys *auth.Manager, limits *ratelimit.Limiter, c config, secrets fileKeys, log *slog.Logger, metrics *telemetry.Metrics, tracer *telemetry.Tracer, ending <-chan struct{}) (http.Handler, error) {
	sealer, err := seal.New(secrets.seal)
	if err != nil {
		return nil, err
	}
	deps := httpapi.Deps{
		Auth:            keys,
		Leases:          lease.New(s.leases, lease.Options{Guard: c.leaseGuard, Done: ending, Now: c.now, Cursors: sealer, Skewed: func() bool { return s.skewed(c) }}),
		Fences:          fencing.New(s.fences),
		Audit:           audit.New(s.events, sealer, audit.Options{}),
		Quotas:          newQuotas(s, c),
		Limits:          limits,
		Sessions:        session.New(s.sessions, session.Options{Now: c.now, RouteKey: secrets.route, Tenants: s.tenants, Cursors: sealer}),
		RateLimitFields: ratelimithttp.Fields{Older: c.xRateLimit, Now: c.now},

		Mode:     keytype.Mode{DynamoDB: !c.embedded(), Redis: s.redis != nil, StaleGrace: c.staleGrace},
		Log:      log,
		TraceIDs: telemetry.TraceIDs,

		Idempotency: newRecords(s, c, "claims"),
		Receipts:    newRecords(s, c, "receipts"),
		Sealer:      sealer,
	}
	if !c.unmeasured {
		deps.Observe, deps.Meter = metrics.Observe, metrics
	}
	if tracer != nil {
		deps.Trace = tracer
	}
	if s.locks != nil {
		deps.Locks = lock.New(s.locks, lock.Options{})
	}
	return httpapi.New(deps), nil
}
