package rls_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/policy"
	"github.com/coordsvc/coordsvc/ratelimit/rls"
)

// policies give nothing back within a test.
const policies = `version: 1
policies:
  - name: edge
    on_store_failure: fail_closed
    slot: [tenant]
    limits:
      - {name: tenant, key: [tenant], algorithm: token_bucket, rate: 1/30d, burst: 10}
      - name: user
        key: [tenant, user]
        algorithm: token_bucket
        rate: 1/30d
        burst: 4
        overrides: [{match: {user: vip}, burst: 8}]
      - {name: path, key: [tenant, path], algorithm: fixed_window, rate: 5/366d}
      - {name: upload, key: [tenant, upload], algorithm: concurrency, slots: 2, slot_ttl: 1h}
      - {name: paced, key: [tenant, paced], algorithm: leaky_bucket, rate: 1/m, queue: 3}
  - name: apart
    on_store_failure: fail_closed
    limits:
      - {name: first, key: [a], algorithm: token_bucket, rate: 1/30d, burst: 10}
      - {name: second, key: [b], algorithm: token_bucket, rate: 1/30d, burst: 2}
  - name: quiet
    on_store_failure: fail_closed
    stage: shadow
    limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 1}]
  - name: warned
    on_store_failure: fail_open
    stage: warn
    enforce_from: 2030-01-15
    limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 1}]
  - name: open
    on_store_failure: fail_open
    limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 1}]
  - name: leased
    on_store_failure: fail_open
    mode: leased
    max_overshoot: 50
    limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 200}]
  - name: local
    on_store_failure: local
    local: {rate: 1/30d, burst: 2}
    limits: [{name: user, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 9}]
`

// A rig is a server and a client of it with a key of the tenant "one".
type rig struct {
	t      *testing.T
	limits *ratelimit.Limiter
	auth   *auth.Manager
	server *rls.Server
	served chan error
	addr   string
	conn   *grpc.ClientConn
	client rlspb.RateLimitServiceClient
	key    string
	log    *lines
	seen   *lines // what Observe was told
}

type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func serve(t *testing.T, store ratelimit.Store, limiter ratelimit.Options, opts rls.Options) *rig {
	t.Helper()
	set, err := policy.Parse("policies.yaml", []byte(policies))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, auth: auth.New(auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), auth.Options{}), served: make(chan error, 1), log: &lines{}, seen: &lines{}}
	if r.limits, err = ratelimit.New(store, set.Policies, limiter); err != nil {
		t.Fatal(err)
	}
	r.key = r.newKey("one", auth.RatelimitCheck)
	opts.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts.Observe = func(method, code string, _ time.Duration) { fmt.Fprintln(r.seen, method, code) }
	r.server = rls.New(r.limits, r.auth, opts)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	go func() { r.served <- r.server.Serve(l) }()
	r.conn = dial(t, r.addr)
	r.client = rlspb.NewRateLimitServiceClient(r.conn)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.server.Shutdown(ctx) // at once
	})
	return r
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func memory() ratelimit.Store { return ratelimit.NewLocal(kv.NewMemory(kv.MemoryOptions{})) }

func (r *rig) newKey(tenant string, scopes ...auth.Scope) string {
	r.t.Helper()
	secret, _, err := r.auth.Create(r.t.Context(), tenant, nil, auth.NewKey{Name: "proxy", Scopes: scopes})
	if err != nil {
		r.t.Fatal(err)
	}
	return secret.Reveal()
}

func withKey(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
}

func (r *rig) ask(req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return r.client.ShouldRateLimit(withKey(r.t.Context(), r.key), req)
}

// must asks and demands an answer.
func (r *rig) must(req *rlspb.RateLimitRequest) *rlspb.RateLimitResponse {
	r.t.Helper()
	resp, err := r.ask(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// A descriptor is written "tenant=a user=b", and behind it +3 (hits), -3 (negative
// hits) or 5/minute (a limit of its own).
func descriptor(text string) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{}
	for word := range strings.FieldsSeq(text) {
		var n uint64
		var unit string
		name, value, entry := strings.Cut(word, "=")
		switch {
		case entry:
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: name, Value: value})
		case scan(word, "+%d", &n), scan(word, "-%d", &n):
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), word[0] == '-'
		case scan(word, "%d/%s", &n, &unit):
			d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(n), Unit: typepb.RateLimitUnit(typepb.RateLimitUnit_value[strings.ToUpper(unit)]),
			}
		default:
			panic(word)
		}
	}
	return d
}

func scan(text, format string, to ...any) bool {
	n, err := fmt.Sscanf(text, format, to...)
	return err == nil && n == len(to)
}

func request(domain string, hits uint32, descriptors ...string) *rlspb.RateLimitRequest {
	req := &rlspb.RateLimitRequest{Domain: domain, HitsAddend: hits}
	for _, text := range descriptors {
		req.Descriptors = append(req.Descriptors, descriptor(text))
	}
	return req
}

// say writes an answer as "OVER_LIMIT: OK user 3 of 4/…, OVER_LIMIT path 0 of 5/…".
func say(resp *rlspb.RateLimitResponse) string {
	var parts []string
	for _, s := range resp.GetStatuses() {
		part := s.GetCode().String()
		if l := s.GetCurrentLimit(); l != nil {
			part += fmt.Sprintf(" %s %d of %d", l.GetName(), s.GetLimitRemaining(), l.GetRequestsPerUnit())
		}
		parts = append(parts, part)
	}
	return resp.GetOverallCode().String() + ": " + strings.Join(parts, ", ")
}

func header(resp *rlspb.RateLimitResponse, name string) string {
	for _, h := range resp.GetResponseHeadersToAdd() {
		if h.GetKey() == strings.ToLower(name) {
			return h.GetValue()
		}
	}
	return ""
}

// field is one of the dynamic metadata, nil where it is not there.
func field(resp *rlspb.RateLimitResponse, name string) any {
	return resp.GetDynamicMetadata().AsMap()[name]
}
