package rls

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

const day = 24 * time.Hour

// sent is the answer as a proxy reads it.
func sent(t interface{ Fatal(...any) }, a *answer, f ratelimithttp.Fields) (*rlspb.RateLimitResponse, string) {
	reply := a.reply(f)
	data, err := newCodec().Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	resp := &rlspb.RateLimitResponse{}
	if err := proto.Unmarshal(data.Materialize(), resp); err != nil {
		t.Fatal(err)
	}
	return resp, reply.code
}

func newAnswer(d ratelimit.Decision, states ...*ratelimit.PartState) *answer {
	a := &calls.New().(*call).answer
	a.Decision, a.states = d, states
	return a
}

// headers are names and values in turn.
func headers(words ...string) (all []*corepb.HeaderValue) {
	for i := 0; i < len(words); i += 2 {
		all = append(all, &corepb.HeaderValue{Key: words[i], Value: words[i+1]})
	}
	return all
}

func dynamic(t *testing.T, fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every kind of answer is the message that it should be.
func TestAnswersAreTheProtocols(t *testing.T) {
	const ok, over = rlspb.RateLimitResponse_OK, rlspb.RateLimitResponse_OVER_LIMIT
	user := ratelimit.LimitState{Name: "user", Algorithm: ratelimit.TokenBucket, Limit: 4, Remaining: 0, Reset: 1500 * time.Millisecond, Window: 120 * day}
	slots := ratelimit.LimitState{Name: "upload", Algorithm: ratelimit.Concurrency, Limit: 1 << 40, Remaining: 1 << 40, Window: 90 * time.Second}
	userLimit := &rlspb.RateLimitResponse_RateLimit{Name: "user", RequestsPerUnit: 4, Unit: rlspb.RateLimitResponse_RateLimit_DAY, UnitMultiplier: wrapperspb.UInt32(120)}
	userReset := &durationpb.Duration{Seconds: 1, Nanos: 500_000_000}
	for _, c := range []struct {
		why    string
		answer *answer
		err    error // of the decision
		fields ratelimithttp.Fields
		want   *rlspb.RateLimitResponse
	}{
		{
			"it passes, and one descriptor was not looked at",
			newAnswer(ratelimit.Decision{
				Allowed: true, Policy: "edge", Stage: ratelimit.Enforce, Source: "redis", SlotID: "slt_1", Delay: 2 * time.Second, MaxOvershoot: 50,
				Limits: []ratelimit.LimitState{slots, user},
			}, &ratelimit.PartState{Allowed: true, Limits: []ratelimit.LimitState{slots, user}}, nil, &ratelimit.PartState{Allowed: true, Limits: []ratelimit.LimitState{slots}}, &ratelimit.PartState{Allowed: true}),
			nil,
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode: ok,
				Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{
					{Code: ok, CurrentLimit: userLimit, DurationUntilReset: userReset},
					{},
					{
						Code: ok, LimitRemaining: math.MaxUint32, DurationUntilReset: &durationpb.Duration{},
						CurrentLimit: &rlspb.RateLimitResponse_RateLimit{Name: "upload", RequestsPerUnit: math.MaxUint32, Unit: rlspb.RateLimitResponse_RateLimit_SECOND, UnitMultiplier: wrapperspb.UInt32(90)},
					},
					{Code: ok},
				},
				ResponseHeadersToAdd: headers(
					"ratelimit", `"upload";r=1099511627776;t=0, "user";r=0;t=2`,
					"ratelimit-policy", `"upload";q=1099511627776;qu="concurrent-requests";w=90, "user";q=4;w=10368000`,
				),
				DynamicMetadata: dynamic(t, map[string]any{"allowed": true, "policy": "edge", "stage": "enforce", "source": "redis", "slot_id": "slt_1", "delay_ms": 2000, "max_overshoot": 50}),
			},
		},
		{
			"it is refused, and all fields are asked for",
			newAnswer(ratelimit.Decision{
				Policy: "edge", Stage: ratelimit.Enforce, Source: "redis", Limiting: "user", RetryAfter: 1500 * time.Millisecond, Limits: []ratelimit.LimitState{user},
			}, &ratelimit.PartState{Limits: []ratelimit.LimitState{user}}, &ratelimit.PartState{Allowed: true}),
			nil,
			ratelimithttp.Fields{Older: ratelimithttp.Delta},
			&rlspb.RateLimitResponse{
				OverallCode: over,
				Statuses:    []*rlspb.RateLimitResponse_DescriptorStatus{{Code: over, CurrentLimit: userLimit, DurationUntilReset: userReset}, {Code: ok}},
				ResponseHeadersToAdd: headers(
					"ratelimit", `"user";r=0;t=2`, "ratelimit-policy", `"user";q=4;w=10368000`, "retry-after", "2",
					"x-ratelimit-limit", "4", "x-ratelimit-remaining", "0", "x-ratelimit-reset", "2",
				),
				DynamicMetadata: dynamic(t, map[string]any{"allowed": false, "policy": "edge", "stage": "enforce", "source": "redis", "limiting": "user", "retry_after_ms": 1500}),
			},
		},
		{
			"a limit refuses, and the stage does not, which warns",
			newAnswer(ratelimit.Decision{
				Allowed: true, Policy: "warned", Stage: ratelimit.Warn, Source: "redis", Limiting: "user", OverBy: 25, Limits: []ratelimit.LimitState{user},
			}, &ratelimit.PartState{Limits: []ratelimit.LimitState{user}}),
			nil,
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode:          ok,
				Statuses:             []*rlspb.RateLimitResponse_DescriptorStatus{{Code: ok, CurrentLimit: userLimit, DurationUntilReset: userReset}},
				ResponseHeadersToAdd: headers("ratelimit", `"user";r=0;t=2`, "ratelimit-policy", `"user";q=4;w=10368000`, "ratelimit-warning", "25% over"),
				DynamicMetadata:      dynamic(t, map[string]any{"allowed": true, "policy": "warned", "stage": "warn", "source": "redis", "limiting": "user"}),
			},
		},
		{
			"a posture lets it pass",
			newAnswer(ratelimit.Decision{
				Allowed: true, Policy: "open", Stage: ratelimit.Enforce, Source: ratelimit.SourceFailOpen, Degraded: true, DegradedReason: "timeout",
			}, &ratelimit.PartState{Allowed: true}),
			nil,
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode: ok, Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{Code: ok}}, ResponseHeadersToAdd: headers("x-ratelimit-degraded", "true"),
				DynamicMetadata: dynamic(t, map[string]any{"allowed": true, "policy": "open", "stage": "enforce", "source": "fail_open", "degraded": true, "degraded_reason": "timeout"}),
			},
		},
		{
			"a policy is closed, after one descriptor was answered",
			newAnswer(ratelimit.Decision{Allowed: true, Policy: "edge"}, &ratelimit.PartState{Allowed: true, Limits: []ratelimit.LimitState{user}}, nil),
			&ratelimit.ClosedError{Policy: "edge", Stage: ratelimit.Enforce, Reason: "readonly"},
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode:          over,
				Statuses:             []*rlspb.RateLimitResponse_DescriptorStatus{{Code: ok, CurrentLimit: userLimit, DurationUntilReset: userReset}, {Code: over}},
				ResponseHeadersToAdd: headers("retry-after", "1", "x-ratelimit-degraded", "true"),
				DynamicMetadata: dynamic(t, map[string]any{
					"allowed": false, "policy": "edge", "stage": "enforce", "source": "fail_closed", "retry_after_ms": 1000, "degraded": true, "degraded_reason": "readonly",
				}),
			},
		},
		{
			"it can never pass",
			newAnswer(ratelimit.Decision{Allowed: true, Policy: "edge"}, nil),
			&ratelimit.CostError{LimitName: "user", Capacity: 4},
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode: over, Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{}},
				DynamicMetadata: dynamic(t, map[string]any{"allowed": false, "policy": "edge", "limiting": "user", "cost_exceeds_capacity": 4}),
			},
		},
		{
			"it could never pass, and the stage refuses nobody",
			newAnswer(ratelimit.Decision{Allowed: true, Policy: "edge"}, nil),
			&ratelimit.CostError{LimitName: "user", Uncounted: true},
			ratelimithttp.Fields{},
			&rlspb.RateLimitResponse{
				OverallCode: ok, Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{}},
				DynamicMetadata: dynamic(t, map[string]any{"allowed": true, "policy": "edge", "limiting": "user", "cost_exceeds_capacity": 0}),
			},
		},
	} {
		if err := c.answer.refused("edge", c.err); err != nil {
			t.Fatal(err)
		}
		got, code := sent(t, c.answer, c.fields)
		if !proto.Equal(got, c.want) || code != c.want.GetOverallCode().String() {
			t.Errorf("%s, counted as %s:\ngot  %v\nwant %v", c.why, code, got, c.want)
		}
	}
}

// Lengths and numbers of any size are what a proxy reads.
func TestAnswersOfAnySize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.Map(rapid.IntRange(1, 20_000), func(n int) string { return strings.Repeat("n", n) })
		number := rapid.Int64Range(0, math.MaxInt64)
		l := ratelimit.LimitState{
			Name: word.Draw(t, "name"), Limit: number.Draw(t, "limit"), Remaining: number.Draw(t, "remaining"),
			Reset: time.Duration(number.Draw(t, "reset")), Window: time.Duration(rapid.Int64Range(1, 366*86_400).Draw(t, "window")) * time.Second,
		}
		d := ratelimit.Decision{Allowed: true, Policy: word.Draw(t, "policy"), Delay: time.Duration(number.Draw(t, "delay")), Limits: []ratelimit.LimitState{l}}
		got, _ := sent(t, newAnswer(d, nil, &ratelimit.PartState{Allowed: true, Limits: d.Limits}), ratelimithttp.Fields{})
		if len(got.GetStatuses()) != 2 || len(got.GetResponseHeadersToAdd()) != 2 {
			t.Fatalf("got %v", got)
		}
		s := got.GetStatuses()[1]
		current := s.GetCurrentLimit()
		units := map[rlspb.RateLimitResponse_RateLimit_Unit]time.Duration{
			rlspb.RateLimitResponse_RateLimit_DAY: day, rlspb.RateLimitResponse_RateLimit_HOUR: time.Hour,
			rlspb.RateLimitResponse_RateLimit_MINUTE: time.Minute, rlspb.RateLimitResponse_RateLimit_SECOND: time.Second,
		}
		window := units[current.GetUnit()]
		if m := current.GetUnitMultiplier(); m != nil {
			window *= time.Duration(m.GetValue())
		}
		fields := got.GetDynamicMetadata().AsMap()
		delay, _ := fields["delay_ms"].(float64)
		if current.GetName() != l.Name || int64(current.GetRequestsPerUnit()) != min(l.Limit, math.MaxUint32) || window != l.Window ||
			int64(s.GetLimitRemaining()) != min(l.Remaining, math.MaxUint32) || s.GetDurationUntilReset().AsDuration() != l.Reset ||
			fields["policy"] != d.Policy || delay != float64(d.Delay.Milliseconds()) || !strings.HasPrefix(got.GetResponseHeadersToAdd()[0].GetValue(), `"`+l.Name+`";r=`) {
			t.Fatalf("got %v", got)
		}
	})
}

// A call leaves nothing of its request for the next one.
func TestACallThatIsReleasedIsEmpty(t *testing.T) {
	c := calls.New().(*call)
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(everyField(t))}, &c.request); err != nil {
		t.Fatal(err)
	}
	if err := c.sort(); err != nil {
		t.Fatal(err)
	}
	c.answer.add(c.take, make([]ratelimit.PartState, len(c.take.places)))
	_ = c.answer.refused("edge", &ratelimit.ClosedError{Policy: "edge"})
	sent(t, &c.answer, ratelimithttp.Fields{})
	c.empty()
	for _, room := range []any{c.descriptors, c.entries, c.take.places, c.look.places, c.back.places, c.answer.states} {
		all := reflect.ValueOf(room)
		if all.Len() != 0 {
			t.Errorf("%T has %d", room, all.Len())
		}
		for i := range all.Cap() {
			if kept := all.Slice(0, all.Cap()).Index(i); kept.Kind() != reflect.Int && !kept.IsZero() {
				t.Errorf("%T keeps %v", room, kept)
			}
		}
	}
	if len(c.answer.header) != 0 {
		t.Errorf("it keeps %v", c.answer.header)
	}
	c.descriptors, c.entries, c.take.places, c.look.places, c.back.places, c.answer.states, c.answer.header = nil, nil, nil, nil, nil, nil, nil
	if !reflect.ValueOf(*c).IsZero() {
		t.Errorf("it keeps %+v", *c)
	}
}
