package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A group is the descriptors of a request with which the same is to be done.
type group struct {
	parts  []ratelimit.Part // made for each request: whose they are afterwards nobody says
	places []int            // of each part: that of its descriptor
}

func (g *group) add(part ratelimit.Part, place, most int) {
	if g.parts == nil {
		g.parts = make([]ratelimit.Part, 0, most)
	}
	g.parts, g.places = append(g.parts, part), append(g.places, place)
}

// A call is a request while it is answered, sorted by what is to be done with its descriptors.
type call struct {
	request
	take   group // hits to charge
	look   group // no hits: whether one would pass, of which none is taken
	back   group // negative hits, which go back
	answer answer
}

// calls are those of earlier requests, of which they keep nothing but room.
var calls = sync.Pool{New: func() any { return &call{answer: answer{header: http.Header{}}} }}

// maxRoom is for how many descriptors and entries a call keeps room.
const maxRoom = 256

func (c *call) release() {
	if cap(c.entries)+cap(c.descriptors) <= maxRoom {
		c.empty()
		calls.Put(c)
	}
}

func (c *call) empty() {
	clear(c.descriptors)
	clear(c.entries)
	clear(c.answer.states)
	clear(c.answer.header)
	*c = call{
		request: request{descriptors: c.descriptors[:0], entries: c.entries[:0]},
		take:    group{places: c.take.places[:0]},
		look:    group{places: c.look.places[:0]},
		back:    group{places: c.back.places[:0]},
		answer:  answer{states: c.answer.states[:0], header: c.answer.header},
	}
}

// sort finds what is to be done. Hits are those of the descriptor, else those of the
// request, else 1.
func (c *call) sort() error {
	if len(c.descriptors) == 0 {
		return &keytype.ValueError{Field: "descriptors", Reason: "are required"}
	}
	if len(c.descriptors) > mostDescriptors {
		return &keytype.ValueError{Field: "descriptors", Reason: fmt.Sprintf("are more than %d", mostDescriptors)}
	}
	for place := range c.descriptors {
		d := &c.descriptors[place]
		part, err := d.part()
		if err != nil {
			return err
		}
		hits := uint64(max(1, c.hits))
		if d.ownHits {
			hits = d.hits
		}
		part.Cost = int64(min(max(1, hits), math.MaxInt64))
		g := &c.take
		switch {
		case hits == 0:
			g = &c.look
		case d.negative:
			g = &c.back
		}
		g.add(part, place, len(c.descriptors)-place)
		c.answer.states = append(c.answer.states, nil)
	}
	return nil
}

func (d *descriptor) part() (ratelimit.Part, error) {
	part := ratelimit.Part{Descriptors: make(map[string]string, len(d.entries))}
	for _, e := range d.entries {
		if _, twice := part.Descriptors[e.key]; twice {
			return ratelimit.Part{}, &keytype.ValueError{Field: "descriptors", Reason: "have two entries of one key: give each a key of its own"}
		}
		part.Descriptors[e.key] = idOf(e.value)
	}
	if d.limit != nil {
		rate, err := rateOf(d.limit)
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
