package rls

import (
	"bytes"
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

// What is not UTF-8 is read all the same, and all else as it is.
func TestARequestThatIsNotUTF8IsRead(t *testing.T) {
	var want, got rlspb.RateLimitRequest
	if err := proto.Unmarshal(everyField(t), &want); err != nil {
		t.Fatal(err)
	}
	mended := bytes.Replace(everyField(t), []byte("ZZ"), []byte("\xff\xfe"), 1)
	if err := newLenient().Unmarshal(mem.BufferSlice{mem.SliceBuffer(mended)}, &got); err != nil {
		t.Fatal(err)
	}
	if value := got.GetDescriptors()[0].GetEntries()[0].GetValue(); value != "\xff\xfe" {
		t.Errorf("the value is %q", value)
	}
	got.GetDescriptors()[0].GetEntries()[0].Value = "ZZ"
	if !proto.Equal(&got, &want) {
		t.Errorf("got  %v\nwant %v", &got, &want)
	}
}

func TestAMessageOfAnotherKindIsReadStrictly(t *testing.T) {
	raw := []byte("\x0a\x02\xff\xfe") // field 1, two bytes
	if err := newLenient().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &commonpb.RateLimitDescriptor_Entry{}); err == nil {
		t.Error("taken")
	}
	if err := newLenient().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw[:3])}, &rlspb.RateLimitRequest{}); err == nil {
		t.Error("a request that is cut off is taken")
	}
}

// What the protocol's own reader takes, the lenient one takes as the same.
func FuzzReadRequest(f *testing.F) {
	f.Add(everyField(f))
	f.Add([]byte("\x12\x04\x1a\x02\x08\x05\x12\x02\x20\x01"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want, got rlspb.RateLimitRequest
		if proto.Unmarshal(raw, &want) != nil {
			_ = readRequest(raw, &got) // must not panic
			return
		}
		if err := readRequest(raw, &got); err != nil {
			t.Fatal(err)
		}
		withoutUnknown(&want)
		withoutUnknown(&got)
		if !proto.Equal(&got, &want) {
			t.Fatalf("got  %v\nwant %v", &got, &want)
		}
	})
}

func withoutUnknown(req *rlspb.RateLimitRequest) {
	req.ProtoReflect().SetUnknown(nil)
	for _, d := range req.GetDescriptors() {
		d.ProtoReflect().SetUnknown(nil)
		for _, e := range d.GetEntries() {
			e.ProtoReflect().SetUnknown(nil)
		}
	}
}
