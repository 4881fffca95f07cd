package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A group is the descriptors of a request with which the same is to be done.
type group struct {
	parts  []ratelimit.Part
	places []int // of each part: that of its descriptor
}

func (g *group) add(part ratelimit.Part, place int) {
	g.parts, g.places = append(g.parts, part), append(g.places, place)
}

// A call is a request by what is to be done with its descriptors.
type call struct {
	take group // hits to charge
	look group // no hits: whether one would pass, of which none is taken
	back group // negative hits, which go back
}

// read sorts the descriptors. Hits are those of the descriptor, else those of the
// request, else 1.
func read(req *rlspb.RateLimitRequest) (call, error) {
	var c call
	if len(req.GetDescriptors()) == 0 {
		return call{}, &keytype.ValueError{Field: "descriptors", Reason: "are required"}
	}
	for place, d := range req.GetDescriptors() {
		part, err := partOf(d)
		if err != nil {
			return call{}, err
		}
		hits := uint64(max(1, req.GetHitsAddend()))
		if d.GetHitsAddend() != nil {
			hits = d.GetHitsAddend().GetValue()
		}
		part.Cost = int64(min(max(1, hits), math.MaxInt64))
		switch {
		case hits == 0:
			c.look.add(part, place)
		case d.GetIsNegativeHits():
			c.back.add(part, place)
		default:
			c.take.add(part, place)
		}
	}
	return c, nil
}

func partOf(d *commonpb.RateLimitDescriptor) (ratelimit.Part, error) {
	part := ratelimit.Part{Descriptors: make(map[string]string, len(d.GetEntries()))}
	for _, e := range d.GetEntries() {
		if _, twice := part.Descriptors[e.GetKey()]; twice {
			return ratelimit.Part{}, &keytype.ValueError{Field: "descriptors", Reason: "have two entries of one key: give each a key of its own"}
		}
		part.Descriptors[e.GetKey()] = idOf(e.GetValue())
	}
	if limit := d.GetLimit(); limit != nil {
		rate, err := rateOf(limit)
		if err != nil {
			return ratelimit.Part{}, err
		}
		part.Rate = &rate
	}
	return part, nil
}

// idOf is a value that can be in a key. A proxy passes on what its clients send, and
// often lets a request pass whose limit it could not learn: so nothing that a client
// sends may be an error. What is no id is told apart by its hash.
func idOf(value string) string {
	if keytype.CheckID("value", value) == nil {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// units are the times of the protocol; a month has 30 days and a year 365.
var units = map[typepb.RateLimitUnit]time.Duration{
	typepb.RateLimitUnit_SECOND: time.Second,
	typepb.RateLimitUnit_MINUTE: time.Minute,
	typepb.RateLimitUnit_HOUR:   time.Hour,
	typepb.RateLimitUnit_DAY:    24 * time.Hour,
	typepb.RateLimitUnit_MONTH:  30 * 24 * time.Hour,
	typepb.RateLimitUnit_YEAR:   365 * 24 * time.Hour,
}

func rateOf(limit *commonpb.RateLimitDescriptor_RateLimitOverride) (ratelimit.Rate, error) {
	unit, times := units[limit.GetUnit()], int64(1)
	if m := limit.GetUnitMultiplier(); m != nil {
		times = int64(m.GetValue())
	}
	if unit == 0 || times == 0 || times > int64(units[typepb.RateLimitUnit_YEAR]/unit) {
		return ratelimit.Rate{}, &keytype.ValueError{Field: "limit", Reason: "must have a known unit, and be for at most a year"}
	}
	return ratelimit.Rate{Count: int64(limit.GetRequestsPerUnit()), Per: time.Duration(times) * unit}, nil
}
