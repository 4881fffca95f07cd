package rls

import (
	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one is over
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A lenient codec also reads rate limit requests with strings that are not UTF-8.
// The protocol forbids them, but Envoy passes the bytes of a header on as they are:
// refused, every client could send a byte 0xff and pass where Envoy lets requests
// pass at an error.
type lenient struct{ encoding.CodecV2 }

func newLenient() lenient { return lenient{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c lenient) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	req, ours := v.(*rlspb.RateLimitRequest)
	if err == nil || !ours {
		return err
	}
	proto.Reset(req)
	if readRequest(data.Materialize(), req) != nil {
		return err
	}
	return nil
}

// readRequest reads what this package knows of a request.
func readRequest(raw []byte, req *rlspb.RateLimitRequest) error {
	return eachField(raw, func(n int, value []byte) error {
		switch n {
		case 1:
			req.Domain = string(value)
		case 2:
			d := &commonpb.RateLimitDescriptor{}
			req.Descriptors = append(req.Descriptors, d)
			return readDescriptor(value, d)
		}
		return nil
	}, func(n int, value uint64) {
		if n == 3 {
			req.HitsAddend = uint32(value) //nolint:gosec // as the protocol reads it
		}
	})
}

func readDescriptor(raw []byte, d *commonpb.RateLimitDescriptor) error {
	further := proto.UnmarshalOptions{Merge: true} // a field that comes again adds to the first
	return eachField(raw, func(n int, value []byte) error {
		switch n {
		case 1:
			e := &commonpb.RateLimitDescriptor_Entry{}
			d.Entries = append(d.Entries, e)
			return readEntry(value, e)
		case 2:
			if d.Limit == nil {
				d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{}
			}
			return further.Unmarshal(value, d.GetLimit())
		case 3:
			if d.HitsAddend == nil {
				d.HitsAddend = &wrapperspb.UInt64Value{}
			}
			return further.Unmarshal(value, d.GetHitsAddend())
		}
		return nil
	}, func(n int, value uint64) {
		if n == 4 {
			d.IsNegativeHits = value != 0
		}
	})
}

func readEntry(raw []byte, e *commonpb.RateLimitDescriptor_Entry) error {
	return eachField(raw, func(n int, value []byte) error {
		switch n {
		case 1:
			e.Key = string(value)
		case 2:
			e.Value = string(value)
		}
		return nil
	}, func(int, uint64) {})
}

// eachField hands out the fields of a message that are bytes, and those that are numbers.
func eachField(raw []byte, bytes func(n int, value []byte) error, varint func(n int, value uint64)) error {
	for len(raw) > 0 {
		number, kind, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		value := raw[size:]
		if size = protowire.ConsumeFieldValue(number, kind, value); size < 0 {
			return protowire.ParseError(size)
		}
		value, raw = value[:size], value[size:]
		switch kind { //nolint:exhaustive // the protocol's other kinds are of no field that is known here
		case protowire.BytesType:
			content, _ := protowire.ConsumeBytes(value)
			if err := bytes(int(number), content); err != nil {
				return err
			}
		case protowire.VarintType:
			content, _ := protowire.ConsumeVarint(value)
			varint(int(number), content)
		}
	}
	return nil
}
