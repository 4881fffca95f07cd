package ratelimit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what is watched for hot keys.
const (
	hotWindow  = 10 * time.Second
	hotSample  = 8   // one check of so many is counted
	hotTracked = 64  // buckets of a policy
	hotEnough  = 100 // counted checks without which a share says nothing
)

// HotKeys finds the bucket of each policy that a limiter's checks ask its store for most
// often. It counts a sample of them by the space-saving algorithm (Metwally, Agrawal and
// El Abbadi, Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005):
// 64 counters a policy, of which one that is needed for a new bucket goes on from the
// smallest. A share is what the bucket has at least.
type HotKeys struct {
	mu        sync.Mutex
	begun     int64              // of the window, in microseconds; guarded by mu
	now, last map[string]*stream // by policy, of the window and of the one before; guarded by mu
}

// A HotKey is the bucket that a policy's checks met most often within 10 seconds.
type HotKey struct {
	Policy string
	Limit  string
	Bucket Bucket
	Share  float64 // of the policy's checks that asked the store; 0 where there were too few
	Checks int64   // those, estimated
}

// A stream is what was counted of one policy.
type stream struct {
	checks  int64
	tracked []tracked
}

type tracked struct {
	limit        string
	bucket       Bucket
	count, error int64 // how often it was met, by at most error too much
}

// met counts the buckets of a check, or not: it samples.
func (h *HotKeys) met(m match, t Take) {
	if h == nil || t.Peek || rand.Uint32N(hotSample) != 0 { //nolint:gosec // a sample
		return
	}
	h.count(m, t)
}

func (h *HotKeys) count(m match, t Take) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(t.Now)
	s := h.now[m.Name]
	if s == nil {
		s = &stream{}
		h.now[m.Name] = s
	}
	s.checks++
	for i, b := range t.Buckets {
		s.add(m.Limits[i].Name, b)
	}
}

// turn begins another window where this one is over.
func (h *HotKeys) turn(now int64) {
	window := hotWindow.Microseconds()
	switch passed := now - h.begun; {
	case h.now != nil && passed < window:
		return
	case h.now != nil && passed < 2*window:
		h.last = h.now
	default:
		h.last = nil
	}
	h.now, h.begun = map[string]*stream{}, now
}

func (s *stream) add(limit string, b Bucket) {
	i := slices.IndexFunc(s.tracked, func(t tracked) bool { return t.bucket.Key == b.Key })
	switch {
	case i >= 0:
		s.tracked[i].count++
	case len(s.tracked) < hotTracked:
		s.tracked = append(s.tracked, tracked{limit, b, 1, 0})
	default:
		i = s.extreme(-1, func(t tracked) int64 { return t.count })
		least := s.tracked[i].count
		s.tracked[i] = tracked{limit, b, least + 1, least}
	}
}

// extreme is the place of the largest, or with -1 of the smallest.
func (s *stream) extreme(sign int64, of func(tracked) int64) (at int) {
	for i, t := range s.tracked {
		if sign*of(t) > sign*of(s.tracked[at]) {
			at = i
		}
	}
	return at
}

// Hottest is one bucket for each policy that was checked in the last whole window of 10 s, by policy.
func (h *HotKeys) Hottest(now time.Time) []HotKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(max(h.begun, now.UnixMicro()))
	all := make([]HotKey, 0, len(h.last))
	for policy, s := range h.last {
		sure := func(t tracked) int64 { return t.count - t.error }
		first := s.tracked[s.extreme(1, sure)]
		hot := HotKey{Policy: policy, Limit: first.limit, Bucket: first.bucket, Checks: hotSample * s.checks}
		if s.checks >= hotEnough {
			hot.Share = float64(sure(first)) / float64(s.checks)
		}
		all = append(all, hot)
	}
	slices.SortFunc(all, func(a, b HotKey) int { return strings.Compare(a.Policy, b.Policy) })
	return all
}
