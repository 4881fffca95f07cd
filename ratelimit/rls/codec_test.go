package rls

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func everyField(t testing.TB) []byte {
	t.Helper()
	raw, err := proto.Marshal(&rlspb.RateLimitRequest{
		Domain: "edge", HitsAddend: 7,
		Descriptors: []*commonpb.RateLimitDescriptor{
			{
				Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "tenant", Value: "ZZ"}, {Key: "user", Value: "u"}},
				Limit:   &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typepb.RateLimitUnit_DAY, UnitMultiplier: wrapperspb.UInt32(3)},
			},
			{HitsAddend: wrapperspb.UInt64(0), IsNegativeHits: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// wanted is a request as the generated messages have it, as far as it is kept.
func wanted(req *rlspb.RateLimitRequest) *request {
	want := &request{domain: req.GetDomain(), hits: req.GetHitsAddend()}
	for _, d := range first(req.GetDescriptors(), mostDescriptors+1) {
		var entries []entry
		for _, e := range first(d.GetEntries(), mostEntries+1) {
			entries = append(entries, entry{e.GetKey(), e.GetValue()})
		}
		want.descriptors = append(want.descriptors, descriptor{entries, d.GetLimit(), d.GetHitsAddend() != nil, d.GetHitsAddend().GetValue(), d.GetIsNegativeHits()})
	}
	return want
}

func first[T any](all []T, most int) []T { return all[:min(len(all), most)] }

func same(a, b *request) bool {
	return a.domain == b.domain && a.hits == b.hits && slices.EqualFunc(a.descriptors, b.descriptors, func(a, b descriptor) bool {
		return slices.Equal(a.entries, b.entries) && proto.Equal(a.limit, b.limit) && a.ownHits == b.ownHits && a.hits == b.hits && a.negative == b.negative
	})
}

// What is not UTF-8 is read all the same, and all else as it is.
func TestARequestThatIsNotUTF8IsRead(t *testing.T) {
	var want rlspb.RateLimitRequest
	if err := proto.Unmarshal(everyField(t), &want); err != nil {
		t.Fatal(err)
	}
	want.GetDescriptors()[0].GetEntries()[0].Value = "\xff\xfe"
	var got request
	mended := bytes.Replace(everyField(t), []byte("ZZ"), []byte("\xff\xfe"), 1)
	for _, data := range []mem.BufferSlice{
		{mem.SliceBuffer(mended)},
		{mem.SliceBuffer(mended[:5]), mem.SliceBuffer(mended[5:])},
	} {
		got = request{}
		if err := newCodec().Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, wanted(&want)) {
			t.Errorf("got  %v\nwant %v", got, &want)
		}
	}
}

func TestAMessageOfAnotherKindIsReadStrictly(t *testing.T) {
	raw := []byte("\x0a\x02\xff\xfe") // field 1, two bytes
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &commonpb.RateLimitDescriptor_Entry{}); err == nil {
		t.Error("taken")
	}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw[:3])}, &request{}); !errors.Is(err, errUnreadable) {
		t.Errorf("a request that is cut off: %v", err)
	}
}

// Whoever has no key makes the service keep little, however many descriptors fit into a message.
func TestOfTooManyDescriptorsFewAreKept(t *testing.T) {
	for _, raw := range []string{
		strings.Repeat("\x12\x00", 200_000),                      // descriptors
		strings.Repeat("\x12\x02\x0a\x00", 200_000),              // descriptors with an entry
		"\x12\x80\xb5\x18" + strings.Repeat("\x0a\x00", 200_000), // entries of one
	} {
		var got request
		var want rlspb.RateLimitRequest
		if err := proto.Unmarshal([]byte(raw), &want); err != nil {
			t.Fatal(err)
		}
		if !got.read(fields{[]byte(raw), raw}) || !same(&got, wanted(&want)) {
			t.Errorf("%q…: of %d descriptors %d are kept", raw[:8], len(want.GetDescriptors()), len(got.descriptors))
		}
		if room := cap(got.descriptors) + cap(got.entries); room > 1000 {
			t.Errorf("%q…: there is room for %d", raw[:8], room)
		}
	}
}

// What the protocol's own reader takes is read as the same, and what it refuses for
// another reason than its strings is refused.
func FuzzReadRequest(f *testing.F) {
	f.Add(everyField(f))
	for _, raw := range []string{
		"\x12\x04\x1a\x02\x08\x05\x12\x02\x20\x01",                         // hits of a descriptor, and another that is negative
		"\x12\x02\x20\x02",                                                 // a truth of another number than 1
		"\x0a\x01a\x0a\x01b\x18\x01\x18\x02",                               // twice the domain and the hits: the last
		"\x12\x0e\x12\x02\x08\x05\x12\x02\x10\x01\x1a\x02\x08\x05\x1a\x00", // twice the limit and the hits: together
		"\x12\x08\x0a\x06\x0a\x01k\x0a\x01l",                               // twice a key, and no value
		"\x08\x01\x10\x01\x1a\x01x\x12\x02\x08\x01",                        // fields of another kind than they should be
		"\x7a\x01x\x78\x01\x7d\x01\x02\x03\x04\x73\x08\x01\x74",            // unknown ones, of every kind
		"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",                     // more than 32 bits
		// Broken: the message, a descriptor, an entry, a limit, hits.
		"\x74", "\x00\x01", "\x18\xff", "\x12\x02\x0a\x05", "\x12\x03\x0a\x01\x0a", "\x12\x03\x12\x01\x08", "\x12\x03\x1a\x01\x08",
		"\u0080\u0080\x10\x00", // the number of a field is too large
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want rlspb.RateLimitRequest
		var got request
		ok := got.read(fields{raw, string(raw)})
		if err := proto.Unmarshal(raw, &want); err != nil {
			if ok && !strings.Contains(err.Error(), "UTF-8") {
				t.Fatalf("%v, but read as %v", err, got)
			}
			return
		}
		if !ok || !same(&got, wanted(&want)) {
			t.Fatalf("got  %v, %v\nwant %v", ok, got, &want)
		}
	})
}
