package ratelimithttp

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A Draft is a version of draft-ietf-httpapi-ratelimit-headers. Each has a form of
// its own, which may change until one of them is an RFC.
type Draft int

// Draft10 has one item a limit in each of its fields,
//
//	RateLimit: "name";r=<units left>;t=<seconds until it is full>
//	RateLimit-Policy: "name";q=<capacity>;w=<seconds in which that comes back>
const Draft10 Draft = 10

// drafts write the two fields. A limit's reset is at most latest.
var drafts = map[Draft]func(h http.Header, limits []ratelimit.LimitState, latest time.Duration){
	Draft10: setDraft10,
}

// Older says how X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset are
// set, which many clients read and no document describes. They tell of one limit: of
// the one that refuses, else of the one with the least left.
type Older string

// What X-RateLimit-Reset counts.
const (
	Off   Older = ""      // the three are not set
	Epoch Older = "epoch" // seconds since 1970
	Delta Older = "delta" // seconds from now
)

// Known reports whether it is one of the above.
func (o Older) Known() bool { return o == Off || o == Epoch || o == Delta }

// Fields write what a decision says into the header of an answer; the zero value
// does so in the form of the latest draft alone.
type Fields struct {
	Draft Draft // 0 = Draft10
	Older Older
	Now   func() time.Time // for Epoch; time.Now where nil
}

// check panics where there is no such form.
func (f Fields) check() {
	if _, known := drafts[cmp.Or(f.Draft, Draft10)]; !known {
		panic(fmt.Sprintf("ratelimithttp: no form is known of draft %d", f.Draft))
	}
	if !f.Older.Known() {
		panic(fmt.Sprintf("ratelimithttp: %q is neither %s nor %s", f.Older, Epoch, Delta))
	}
}

// Set writes the fields of the draft; the older ones where they are asked for;
// Retry-After, at least 1, where the decision is a refusal; RateLimit-Warning where
// one would have been but for the stage; and X-RateLimit-Degraded where a posture
// decided. A posture that asked nobody knows no limits, and sets none of them. What
// is counted in seconds is rounded up.
func (f Fields) Set(h http.Header, d ratelimit.Decision) {
	f.check()
	if d.Degraded {
		SetDegraded(h)
	}
	latest := time.Duration(math.MaxInt64)
	if !d.Allowed {
		// No reset lies behind Retry-After (section 6 of draft 10).
		latest = max(time.Second, d.RetryAfter)
		h.Set("Retry-After", seconds(latest))
	}
	if len(d.Limits) == 0 {
		return
	}
	drafts[cmp.Or(f.Draft, Draft10)](h, d.Limits, latest)
	f.setOlder(h, d, latest)
	if d.OverBy > 0 {
		h.Set("RateLimit-Warning", warning(d))
	}
}

// SetDegraded marks an answer that a posture gave, also one without a decision.
func SetDegraded(h http.Header) { h.Set("X-RateLimit-Degraded", "true") }

// The two fields as net/http spells them.
var fieldNow, fieldPolicy = http.CanonicalHeaderKey("RateLimit"), http.CanonicalHeaderKey("RateLimit-Policy")

// setDraft10 writes names as they are: a limit's has nothing that needs an escape.
func setDraft10(h http.Header, limits []ratelimit.LimitState, latest time.Duration) {
	var room [2][256]byte // what is longer gets its own
	now, policies := room[0][:0], room[1][:0]
	for i, l := range limits {
		if i > 0 {
			now, policies = append(now, ", "...), append(policies, ", "...)
		}
		now = strconv.AppendInt(append(strconv.AppendQuote(now, l.Name), ";r="...), l.Remaining, 10)
		now = strconv.AppendInt(append(now, ";t="...), ceilSeconds(min(l.Reset, latest)), 10)
		policies = strconv.AppendInt(append(strconv.AppendQuote(policies, l.Name), ";q="...), l.Limit, 10)
		if l.Algorithm == ratelimit.Concurrency {
			policies = append(policies, `;qu="concurrent-requests"`...)
		}
		policies = strconv.AppendInt(append(policies, ";w="...), ceilSeconds(l.Window), 10)
	}
	values := []string{string(now), string(policies)}
	h[fieldNow], h[fieldPolicy] = values[:1:1], values[1:]
}

func (f Fields) setOlder(h http.Header, d ratelimit.Decision, latest time.Duration) {
	if f.Older == Off {
		return
	}
	l := binding(d)
	wait := min(l.Reset, latest)
	reset := seconds(wait)
	if f.Older == Epoch {
		now := time.Now
		if f.Now != nil {
			now = f.Now
		}
		reset = strconv.FormatInt(now().Add(wait+time.Second-1).Unix(), 10)
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(l.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(l.Remaining, 10))
	h.Set("X-RateLimit-Reset", reset)
}

// binding is the limit that a client should know of if it can know of one only.
func binding(d ratelimit.Decision) ratelimit.LimitState {
	if i := slices.IndexFunc(d.Limits, func(l ratelimit.LimitState) bool { return l.Name == d.Limiting }); i >= 0 {
		return d.Limits[i]
	}
	return slices.MinFunc(d.Limits, func(a, b ratelimit.LimitState) int { return cmp.Compare(a.Remaining, b.Remaining) })
}

func warning(d ratelimit.Decision) string {
	if d.EnforceFrom.IsZero() {
		return fmt.Sprintf("%d%% over", d.OverBy)
	}
	return fmt.Sprintf("%d%% over; enforcement begins %s", d.OverBy, d.EnforceFrom.Format(time.DateOnly))
}

func seconds(d time.Duration) string { return strconv.FormatInt(ceilSeconds(d), 10) }

func ceilSeconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
