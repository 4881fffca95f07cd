package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// A caller has one connection, and one request at a time on it. It does little by
// itself, for it shares the cores with what is measured: requests are made before,
// and of an answer it reads who was refused.
type caller interface {
	call(ctx context.Context, request []byte) (refused bool, err error)
	close() error
}

// An httpCaller speaks HTTP/1.1.
type httpCaller struct {
	conn    net.Conn
	in      *bufio.Reader
	body    []byte
	verdict func(status int, body []byte) (refused bool, err error)
}

// callTime is more than a run takes.
const callTime = 2 * time.Minute

func dialHTTP(ctx context.Context, addr string, verdict func(int, []byte) (bool, error)) (caller, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &httpCaller{conn: conn, in: bufio.NewReader(conn), verdict: verdict}, conn.SetDeadline(time.Now().Add(callTime))
}

func (c *httpCaller) close() error { return c.conn.Close() }

func (c *httpCaller) call(_ context.Context, request []byte) (refused bool, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return false, err
	}
	status, length, err := c.head()
	if err != nil {
		return false, err
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return false, err
	}
	return c.verdict(status, c.body)
}

// head reads the status and the header fields, of which the length must be one.
func (c *httpCaller) head() (status, length int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 12 {
		return 0, 0, fmt.Errorf("answered %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, err
	}
	for length = -1; ; {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return 0, 0, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		const name = "content-length:"
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return 0, 0, err
			}
		}
	}
	if length < 0 {
		return 0, 0, errors.New("answered without a Content-Length")
	}
	return status, length, nil
}

// byStatus reads the answers of coordsvc, the floor and envoyproxy/ratelimit.
func byStatus(status int, body []byte) (refused bool, err error) {
	switch status {
	case 200, 429:
		return status == 429, nil
	default:
		return false, fmt.Errorf("answered %d: %s", status, body)
	}
}

// gubernatorJSON reads an answer of gubernator, which is 200 also for a refusal.
func gubernatorJSON(status int, body []byte) (refused bool, err error) {
	if status != 200 || !bytes.Contains(body, []byte(`"error":""`)) {
		return false, fmt.Errorf("answered %d: %s", status, body)
	}
	return bytes.Contains(body, []byte(`"OVER_LIMIT"`)), nil
}

// A grpcCaller sends requests that are marshalled already.
type grpcCaller struct {
	conn    *grpc.ClientConn
	method  string
	key     string // "" = none
	verdict func(message []byte) (refused bool, err error)
}

func dialGRPC(ctx context.Context, addr, method, key string, verdict func([]byte) (bool, error)) (caller, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asIs{})))
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return &grpcCaller{conn, method, key, verdict}, ctx.Err()
}

func (c *grpcCaller) close() error { return c.conn.Close() }

func (c *grpcCaller) call(ctx context.Context, request []byte) (refused bool, err error) {
	if c.key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.key)
	}
	var answer []byte
	if err := c.conn.Invoke(ctx, c.method, request, &answer); err != nil {
		return false, err
	}
	return c.verdict(answer)
}

// asIs sends and receives messages as bytes.
type asIs struct{}

var _ encoding.CodecV2 = asIs{}

func (asIs) Name() string { return "proto" }

func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (asIs) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// rlsMessage reads the overall code, which is the first field.
func rlsMessage(message []byte) (refused bool, err error) {
	switch rlspb.RateLimitResponse_Code(varint(message, 1)) { //nolint:gosec // a small enum, and anything else is refused below
	case rlspb.RateLimitResponse_OK:
		return false, nil
	case rlspb.RateLimitResponse_OVER_LIMIT:
		return true, nil
	case rlspb.RateLimitResponse_UNKNOWN:
	}
	return false, fmt.Errorf("answered %q", message)
}

// gubernatorMessage reads the statuses of all answers; what has an error in place of a status is one.
func gubernatorMessage(message []byte) (refused bool, err error) {
	for len(message) > 0 {
		_, _, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false, protowire.ParseError(n)
		}
		answer, m := protowire.ConsumeBytes(message[n:])
		if m < 0 {
			return false, protowire.ParseError(m)
		}
		message = message[n+m:]
		if varint(answer, 2) == 0 { // the limit
			return false, fmt.Errorf("answered %q", answer)
		}
		refused = refused || varint(answer, 1) == 1
	}
	return refused, nil
}

// varint finds a number among the fields of a message, 0 where it is not there.
func varint(message []byte, want protowire.Number) uint64 {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0
		}
		message = message[n:]
		if number == want && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(message)
			return value
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return 0
		}
		message = message[n:]
	}
	return 0
}
