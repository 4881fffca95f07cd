package rls

import (
	"math"
	"net/http"
	"slices"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// A reply is a RateLimitResponse as it is sent.
type reply struct {
	code string // as it is counted
	raw  *[]byte
	sent [1]mem.Buffer // room for message
}

// message is for one caller, who frees it.
func (r *reply) message() mem.BufferSlice {
	r.sent[0] = mem.NewBuffer(r.raw, mem.DefaultBufferPool())
	return r.sent[:]
}

// replySize is more than most answers take, in bytes, and enough for gRPC to keep the room for the next.
const replySize = 2 << 10

// reply writes the answer. Fields that are 0 or empty are left out, as everywhere in
// the protocol, but for those of which it matters whether they are there.
func (a *answer) reply(f ratelimithttp.Fields) *reply {
	code, told := rlspb.RateLimitResponse_OK, okCode
	if !a.passes() {
		code, told = rlspb.RateLimitResponse_OVER_LIMIT, overCode
	}
	raw := mem.DefaultBufferPool().Get(replySize)
	b := appendNumber((*raw)[:0], 1, uint64(code))
	for _, state := range a.states {
		start := len(b)
		b = end(a.appendStatus(begin(b, 2), state), start)
	}
	f.Set(a.header, a.Decision)
	b = appendHeader(b, a.header)
	start := len(b)
	*raw = end(a.appendMetadata(begin(b, 6)), start)
	return &reply{code: told, raw: raw}
}

// passes reports whether the proxy lets the request pass.
func (a *answer) passes() bool { return a.Allowed && (a.cost == nil || a.cost.Uncounted) }

// appendStatus tells of a descriptor by the limit that has the least left: of those that
// were asked for the same cost one that refuses has less than one that allows. Of what
// was not asked for it says UNKNOWN: another descriptor ended the decision.
func (a *answer) appendStatus(b []byte, state *ratelimit.PartState) []byte {
	if state == nil {
		return b
	}
	code := rlspb.RateLimitResponse_OK
	if !state.Allowed && !a.Allowed {
		code = rlspb.RateLimitResponse_OVER_LIMIT
	}
	b = appendNumber(b, 1, uint64(code))
	if len(state.Limits) == 0 {
		return b
	}
	l := &state.Limits[0]
	for i := range state.Limits {
		if state.Limits[i].Remaining < l.Remaining {
			l = &state.Limits[i]
		}
	}
	start := len(b)
	b = end(appendLimit(begin(b, 2), l), start)
	b = appendNumber(b, 3, uint64(uint32(min(l.Remaining, math.MaxUint32)))) //nolint:gosec // bounded
	start = len(b)
	b = appendNumber(begin(b, 4), 1, uint64(l.Reset/time.Second))      //nolint:gosec // it is never below 0
	return end(appendNumber(b, 2, uint64(l.Reset%time.Second)), start) //nolint:gosec // as above
}

// A span is a unit of the protocol.
type span struct {
	unit rlspb.RateLimitResponse_RateLimit_Unit
	long int64 // seconds
}

// spans are the units in which a window can be told, the longest first.
var spans = []span{
	{rlspb.RateLimitResponse_RateLimit_DAY, 86_400},
	{rlspb.RateLimitResponse_RateLimit_HOUR, 3600},
	{rlspb.RateLimitResponse_RateLimit_MINUTE, 60},
	{rlspb.RateLimitResponse_RateLimit_SECOND, 1},
}

// appendLimit tells the capacity and the time in which it comes back, as in RateLimit-Policy.
func appendLimit(b []byte, l *ratelimit.LimitState) []byte {
	seconds := max(1, int64((l.Window+time.Second-1)/time.Second))
	span := spans[slices.IndexFunc(spans, func(s span) bool { return seconds%s.long == 0 })]
	b = appendNumber(b, 1, uint64(uint32(min(l.Limit, math.MaxUint32)))) //nolint:gosec // bounded
	b = appendNumber(b, 2, uint64(span.unit))                            //nolint:gosec // 1 to 4
	b = appendText(b, 3, l.Name)
	if n := seconds / span.long; n > 1 {
		start := len(b)
		b = end(appendNumber(begin(b, 4), 1, uint64(min(n, math.MaxUint32))), start)
	}
	return b
}

// appendHeader writes the fields in the order of their names, which are written as in HTTP/2.
func appendHeader(b []byte, h http.Header) []byte {
	var most [8]string
	names := most[:0]
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		start := len(b)
		b = appendText(begin(b, 3), 1, name)
		lower(b[len(b)-len(name):])
		b = end(appendText(b, 2, h[name][0]), start)
	}
	return b
}

func lower(name []byte) {
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
}

// appendMetadata writes the fields of the HTTP answer that the headers do not have.
func (a *answer) appendMetadata(b []byte) []byte {
	b = appendTruth(b, "allowed", a.passes())
	b = appendWord(b, "policy", a.Policy)
	b = appendWord(b, "stage", string(a.Stage))
	b = appendWord(b, "source", string(a.Source))
	b = appendWord(b, "limiting", a.Limiting)
	b = appendWord(b, "slot_id", a.SlotID)
	if a.RetryAfter > 0 {
		b = appendNumeral(b, "retry_after_ms", a.RetryAfter.Milliseconds())
	}
	if a.Delay > 0 {
		b = appendNumeral(b, "delay_ms", a.Delay.Milliseconds())
	}
	if a.MaxOvershoot > 0 {
		b = appendNumeral(b, "max_overshoot", a.MaxOvershoot)
	}
	if a.Degraded {
		b = appendTruth(b, "degraded", true)
		b = appendWord(b, "degraded_reason", a.DegradedReason)
	}
	if a.cost != nil {
		b = appendNumeral(b, "cost_exceeds_capacity", a.cost.Capacity)
	}
	return b
}

// appendTruth writes a field of a Struct, and so do the next two. A word that is empty is left out.
func appendTruth(b []byte, name string, is bool) []byte {
	b, places := beginValue(b, name)
	b = protowire.AppendTag(b, 4, protowire.VarintType)
	return endValue(protowire.AppendVarint(b, protowire.EncodeBool(is)), places)
}

func appendNumeral(b []byte, name string, n int64) []byte {
	b, places := beginValue(b, name)
	b = protowire.AppendTag(b, 2, protowire.Fixed64Type)
	return endValue(protowire.AppendFixed64(b, math.Float64bits(float64(n))), places)
}

func appendWord(b []byte, name, word string) []byte {
	if word == "" {
		return b
	}
	b, places := beginValue(b, name)
	return endValue(appendText(b, 3, word), places)
}

// beginValue begins a field of a Struct, of which the value is to be written.
func beginValue(b []byte, name string) (_ []byte, places [2]int) {
	places[0] = len(b)
	b = appendText(begin(b, 1), 1, name)
	places[1] = len(b)
	return begin(b, 2), places
}

func endValue(b []byte, places [2]int) []byte { return end(end(b, places[1]), places[0]) }

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// begin writes the tag of a message, of a field below 16, and leaves room for a short length.
func begin(b []byte, field protowire.Number) []byte {
	return append(protowire.AppendTag(b, field, protowire.BytesType), 0)
}

// end writes the length of the message that begins at start and ends here.
func end(b []byte, start int) []byte {
	at := start + 1 // behind the tag
	length := len(b) - at - 1
	if length < 0x80 {
		b[at] = byte(length) //nolint:gosec // bounded
		return b
	}
	var varint [10]byte
	return slices.Replace(b, at, at+1, protowire.AppendVarint(varint[:0], uint64(length))...)
}
