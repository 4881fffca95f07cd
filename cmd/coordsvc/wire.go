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
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/auth/dynamoauth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/httpapi"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/session"
)

// storeFile is the embedded store's file in the data folder.
const storeFile = "coordsvc.db"

// stores are the domains' stores in one mode. A nil store means that the mode has none.
type stores struct {
	auth     auth.Store
	leases   lease.Store
	fences   fencing.Store
	sessions session.Store
	limits   *kv.Memory // the buckets of this process
	file     *kv.Bolt   // embedded only
	tables   *dynamodb.Client
}

// openStores opens the embedded file, or makes a client that dials at its first use.
func openStores(ctx context.Context, c config) (stores, error) {
	s := stores{limits: kv.NewMemory(kv.MemoryOptions{MaxItems: 1_000_000})}
	if !c.embedded() {
		client, err := dynamoClient(ctx, c)
		if err != nil {
			return stores{}, err
		}
		s.tables = client
		s.auth = dynamoauth.New(client, c.tablePrefix)
		s.leases = dynamolease.New(client, c.tablePrefix)
		s.fences = dynamofence.New(client, c.tablePrefix)
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
	s.auth = auth.NewLocal(file)
	s.leases = lease.NewLocal(file)
	s.fences = fencing.NewLocal(file)
	s.sessions = session.NewLocal(file)
	return s, nil
}

func (s stores) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// fault says why the embedded file does not answer, for example after a write that the disk refused half way.
func (s stores) fault(ctx context.Context) error {
	if s.file == nil {
		return nil
	}
	return s.file.View(ctx, func(kv.Tx) error { return nil })
}

// dynamoTables are the tables that this version uses.
func dynamoTables(prefix string) []dynamo.Table {
	return []dynamo.Table{dynamolease.Table(prefix), dynamofence.Table(prefix), dynamoauth.Table(prefix)}
}

// dynamoClient takes region and credentials from the SDK's chain. One attempt
// ends after 2 s, so that three of them fit into a request's time.
func dynamoClient(ctx context.Context, c config) (*dynamodb.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // the standard library's own
	transport.DialContext = (&net.Dialer{Timeout: time.Second}).DialContext
	transport.MaxIdleConnsPerHost = 128
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithHTTPClient(&http.Client{Transport: transport, Timeout: 2 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("load the AWS settings: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("AWS_REGION is unset: name the region of the tables (any name, for an engine of your own)")
	}
	return dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if c.dynamoDB != "aws" {
			o.BaseEndpoint = aws.String(c.dynamoDB)
		}
	}), nil
}

// newAPI puts the managers over the stores and the HTTP surface over the managers.
func newAPI(s stores, keys *auth.Manager, c config, route []byte, log *slog.Logger, observe httpapi.Observe) (http.Handler, error) {
	limits, err := ratelimit.New(ratelimit.NewLocal(s.limits), []ratelimit.Policy{ratelimit.DefaultPolicy()}, ratelimit.Options{})
	if err != nil {
		return nil, err
	}
	deps := httpapi.Deps{
		Auth:    keys,
		Leases:  lease.New(s.leases, lease.Options{Guard: c.leaseGuard}),
		Fences:  fencing.New(s.fences),
		Limits:  limits,
		Mode:    keytype.Mode{DynamoDB: !c.embedded()},
		Log:     log,
		Observe: observe,
	}
	if s.sessions != nil {
		deps.Sessions = session.New(s.sessions, session.Options{RouteKey: route})
	}
	return httpapi.New(deps), nil
}
