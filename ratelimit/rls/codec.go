package rls

import (
	"errors"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one is over
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A codec reads rate limit requests and writes their answers by itself, and leaves all
// else to the generated messages.
//
// It also reads strings that are not UTF-8. The protocol forbids them, but Envoy passes
// the bytes of a header on as they are: refused, every client could send a byte 0xff
// and pass where Envoy lets requests pass at an error.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

var errUnreadable = errors.New("rls: cannot parse invalid wire-format data")

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	req, ours := v.(*request)
	if !ours {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if raw := buf.ReadOnlyData(); !req.read(fields{raw, string(raw)}) {
		return errUnreadable
	}
	return nil
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ours := v.(*reply); ours {
		return r.message(), nil
	}
	return c.CodecV2.Marshal(v)
}

// A request is what is read of a RateLimitRequest.
type request struct {
	domain      string
	hits        uint32
	descriptors []descriptor
	entries     []entry // of all descriptors
}

// A descriptor has hits of its own or not.
type descriptor struct {
	entries  []entry
	limit    *commonpb.RateLimitDescriptor_RateLimitOverride // nil where it has none
	ownHits  bool
	hits     uint64
	negative bool
}

type entry struct{ key, value string }

// read reports false where it is no message. As in all messages the last of several
// numbers or strings counts, and a message that comes again adds to the first.
func (r *request) read(f fields) bool {
	for f.more() {
		tag, number, content, ok := f.next()
		switch tag {
		case 1<<3 | lengthed:
			r.domain = content.text
		case 2<<3 | lengthed:
			ok = ok && r.readDescriptor(content)
		case 3<<3 | varint:
			r.hits = uint32(number) //nolint:gosec // as the protocol reads it
		}
		if !ok {
			return false
		}
	}
	return true
}

// How many descriptors, and entries of one, can be answered. Of more than that one more is
// kept and the rest is not: a message has room for a million, and its sender has shown no key yet.
const (
	mostDescriptors = 3 * ratelimit.MaxParts // to charge, to look at and to give back
	mostEntries     = ratelimit.MaxDescriptors
)

func (r *request) readDescriptor(f fields) bool {
	var d descriptor
	first, kept := len(r.entries), len(r.descriptors) <= mostDescriptors
	for f.more() {
		tag, number, content, ok := f.next()
		switch tag {
		case 1<<3 | lengthed:
			var e entry
			ok = ok && e.read(content)
			if kept && len(r.entries)-first <= mostEntries {
				r.entries = append(r.entries, e)
			}
		case 2<<3 | lengthed:
			ok = ok && d.readLimit(content)
		case 3<<3 | lengthed:
			ok = ok && d.readHits(content)
		case 4<<3 | varint:
			d.negative = number != 0
		}
		if !ok {
			return false
		}
	}
	if kept {
		d.entries = r.entries[first:]
		r.descriptors = append(r.descriptors, d)
	}
	return true
}

func (e *entry) read(f fields) bool {
	for f.more() {
		tag, _, content, ok := f.next()
		switch tag {
		case 1<<3 | lengthed:
			e.key = content.text
		case 2<<3 | lengthed:
			e.value = content.text
		}
		if !ok {
			return false
		}
	}
	return true
}

// readLimit leaves what few requests have to the generated message.
func (d *descriptor) readLimit(f fields) bool {
	if d.limit == nil {
		d.limit = &commonpb.RateLimitDescriptor_RateLimitOverride{}
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(f.raw, d.limit) == nil
}

// readHits reads a UInt64Value.
func (d *descriptor) readHits(f fields) bool {
	d.ownHits = true
	for f.more() {
		tag, number, _, ok := f.next()
		if !ok {
			return false
		}
		if tag == 1<<3|varint {
			d.hits = number
		}
	}
	return true
}

// The kinds of a field, which a tag has below the field's number.
const (
	varint   = uint64(protowire.VarintType)
	lengthed = uint64(protowire.BytesType) // strings and messages
)

// fields are those of a message that are still to be read, as bytes and as text: its
// strings are all parts of one.
type fields struct {
	raw  []byte
	text string
}

func (f *fields) more() bool { return len(f.raw) > 0 }

// next takes one field, of which it reads a number or what has a length. It reports
// false where there is none; the tag is then 0.
func (f *fields) next() (tag, number uint64, content fields, ok bool) {
	field, kind, size := protowire.ConsumeTag(f.raw)
	if size < 0 || field > protowire.MaxValidNumber {
		return 0, 0, fields{}, false
	}
	f.skip(size)
	switch kind { //nolint:exhaustive // the protocol's other kinds are of no field that is known here
	case protowire.VarintType:
		number, size = protowire.ConsumeVarint(f.raw)
	case protowire.BytesType:
		if content.raw, size = protowire.ConsumeBytes(f.raw); size >= 0 {
			content.text = f.text[size-len(content.raw) : size]
		}
	default:
		size = protowire.ConsumeFieldValue(field, kind, f.raw)
	}
	if size < 0 {
		return 0, 0, fields{}, false
	}
	f.skip(size)
	return protowire.EncodeTag(field, kind), number, content, true
}

func (f *fields) skip(n int) { f.raw, f.text = f.raw[n:], f.text[n:] }
