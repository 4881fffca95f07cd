package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The programs, in the order of the tables.
const (
	echoOnly   = "echo, decides nothing"
	floor      = "floor"
	coordsvc   = "coordsvc"
	envoy      = "envoyproxy/ratelimit"
	gubernator = "gubernator"

	leased = "coordsvc, leased" // the program as coordsvc, with another policy
)

// home is the program in whose process the case is decided.
func (c limitCase) home() string {
	switch c.program {
	case echoOnly:
		return floor
	case leased:
		return coordsvc
	default:
		return c.program
	}
}

// A shape is what is asked.
type shape struct {
	name    string
	keys    func(n int) []int // whose turn it is
	limits  int               // of one call
	refuse  bool              // every second call, whose limit is used up
	streams int               // how many callers share a connection, 0 = none; of gRPC
}

var (
	plain    = shape{keys: uniform, limits: 1}
	times4   = shape{name: " × 4 limits", keys: uniform, limits: 4}
	zipfKeys = shape{name: ", Zipf", keys: zipf, limits: 1}
	hotKey   = shape{name: ", one hot key", keys: hot, limits: 1}
	half     = shape{name: ", half refused", keys: uniform, limits: 1, refuse: true}

	// Of a proxy few connections have many requests in flight.
	shared       = shape{name: ", 16 on a connection", keys: uniform, limits: 1, streams: 16}
	sharedTimes4 = shape{name: ", 16 on a connection × 4 limits", keys: uniform, limits: 4, streams: 16}
)

// keyCount is how many keys there are.
const keyCount = 4096

func uniform(n int) []int {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // reproducible, nothing secret
	return fill(n, func() int { return random.IntN(keyCount) })
}

func zipf(n int) []int {
	keys := rand.NewZipf(rand.New(rand.NewPCG(5, 6)), 1.1, 1, keyCount-1) //nolint:gosec // as above
	return fill(n, func() int { return int(keys.Uint64()) })              //nolint:gosec // below keyCount
}

func hot(n int) []int { return fill(n, func() int { return 0 }) }

func fill(n int, next func() int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = next()
	}
	return all
}

// A limitCase is a line of the tables.
type limitCase struct {
	protocol, program string
	shape
	full bool // in every round; others in every third
}

func (c limitCase) String() string { return c.protocol + c.name + ": " + c.program }

// beside is the same with another program.
func (c limitCase) beside(program string) string {
	c.program = program
	return c.String()
}

// leasedCase is the one that leases are for.
var leasedCase = limitCase{"HTTP", leased, hotKey, true}

func limitCases() []limitCase {
	all := []limitCase{{"HTTP", echoOnly, plain, true}}
	for _, protocol := range []string{"HTTP", "gRPC"} {
		for _, shape := range []shape{plain, times4, zipfKeys, hotKey, half} {
			for _, program := range []string{floor, coordsvc, envoy, gubernator} {
				full := shape.name == plain.name || (protocol == "gRPC" && shape.limits == 4 && (program == coordsvc || program == envoy))
				all = append(all, limitCase{protocol, program, shape, full})
			}
		}
	}
	for _, shape := range []shape{shared, sharedTimes4} {
		for _, program := range []string{floor, coordsvc, envoy} {
			all = append(all, limitCase{"gRPC", program, shape, true})
		}
	}
	return append(all, leasedCase, limitCase{"HTTP", leased, zipfKeys, false}, limitCase{"HTTP", leased, plain, false})
}

// dial opens one connection to the program.
func (c limitCase) dial(ctx context.Context, s *subject) (caller, error) {
	const rls = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	switch {
	case c.protocol == "HTTP" && c.program == gubernator:
		return dialHTTP(ctx, s.http, gubernatorJSON)
	case c.protocol == "HTTP":
		return dialHTTP(ctx, s.http, byStatus)
	case c.program == gubernator:
		return dialGRPC(ctx, s.grpc, "/pb.gubernator.V1/GetRateLimits", "", gubernatorMessage)
	case c.program == coordsvc:
		return dialGRPC(ctx, s.grpc, rls, bootstrapKey, rlsMessage)
	default:
		return dialGRPC(ctx, s.grpc, rls, "", rlsMessage)
	}
}

// request is what is sent for the key, whose limit is used up or not.
func (c limitCase) request(key int, used bool) ([]byte, error) {
	switch {
	case used:
		return c.requestOf(tight, key)
	case c.limits == 4:
		return c.requestOf(four, key)
	case c.program == leased:
		return c.requestOf(byLease, key)
	default:
		return c.requestOf(one, key)
	}
}

func (c limitCase) requestOf(policy string, key int) ([]byte, error) {
	names := []entry{{"user", fmt.Sprintf("user-%07d", key)}}
	if c.limits == 4 {
		names = append([]entry{{"tenant", fmt.Sprintf("tenant-%03d", key%128)}}, names[0],
			entry{"route", "GET /v1/items/" + strconv.Itoa(key%32)}, entry{"address", fmt.Sprintf("203.0.%d.%d", key/256, key%256)})
	}
	switch {
	case c.program == gubernator:
		return gubernatorRequest(c.protocol, policy, names)
	case c.protocol == "gRPC":
		return proto.Marshal(rlsRequest(policy, names))
	case c.program == envoy:
		body, err := protojson.Marshal(rlsRequest(policy, names))
		return post("/json", "", string(body)), err
	}
	descriptors := make([]string, len(names))
	for i, e := range names {
		descriptors[i] = fmt.Sprintf("%q:%q", e.key, e.value)
	}
	body := fmt.Sprintf(`{"policy":%q,"descriptors":{%s}}`, policy, strings.Join(descriptors, ","))
	switch c.program {
	case echoOnly:
		return post("/answer", "", body), nil
	case floor:
		return post("/check", "", body), nil
	default:
		return post("/v1/ratelimit/check", bootstrapKey, body), nil
	}
}

type entry struct{ key, value string }

func post(path, key, body string) []byte {
	authorization := ""
	if key != "" {
		authorization = "Authorization: Bearer " + key + "\r\n"
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", path, authorization, len(body), body)
}

// rlsRequest has one descriptor for each limit: the first entry, and it with each of the others.
func rlsRequest(domain string, names []entry) *rlspb.RateLimitRequest {
	req := &rlspb.RateLimitRequest{Domain: domain}
	for i, e := range names {
		d := &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: names[0].key, Value: names[0].value}}}
		if i > 0 {
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: e.key, Value: e.value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// gubernatorRequest carries the limits with it, as that protocol wants. Its messages are
// written by hand, for its module would bring all its dependencies here.
func gubernatorRequest(protocol, policy string, names []entry) ([]byte, error) {
	const day = 86_400_000 // ms
	limit := uint64(roomy)
	if policy == tight {
		limit = 1
	}
	var message []byte
	asked := make([]string, len(names))
	for i, e := range names {
		name, key := policy+"-"+e.key, names[0].value+"/"+e.value
		asked[i] = fmt.Sprintf(`{"name":%q,"uniqueKey":%q,"hits":"1","limit":"%d","duration":"%d"}`, name, key, limit, day)
		var one []byte
		one = protowire.AppendString(protowire.AppendTag(one, 1, protowire.BytesType), name)
		one = protowire.AppendString(protowire.AppendTag(one, 2, protowire.BytesType), key)
		for field, value := range []uint64{1, limit, day} {
			one = protowire.AppendVarint(protowire.AppendTag(one, protowire.Number(3+field), protowire.VarintType), value)
		}
		message = protowire.AppendBytes(protowire.AppendTag(message, 1, protowire.BytesType), one)
	}
	if protocol == "HTTP" {
		return post("/v1/GetRateLimits", "", `{"requests":[`+strings.Join(asked, ",")+`]}`), nil
	}
	return message, nil
}
