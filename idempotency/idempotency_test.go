package idempotency_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newManager's clock stands at start, and a little.
func newManager(now *time.Time) *idempotency.Manager {
	*now = start.Add(999 * time.Microsecond)
	return idempotency.New(idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{})), idempotency.Options{Guard: 500 * time.Millisecond, Now: func() time.Time { return *now }})
}

func TestClaimsAndRefusals(t *testing.T) {
	var now time.Time
	m := newManager(&now)
	req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second + time.Microsecond, TTL: time.Minute}
	first, err := m.Claim(t.Context(), "t", "k", req)
	if err != nil || first.Attempt != 1 || first.ValidFor != time.Second || first.Completed || !strings.HasPrefix(first.ID, "clm_") {
		t.Fatalf("got %+v, %v", first, err)
	}
	now = now.Add(400 * time.Millisecond)
	_, err = m.Claim(t.Context(), "t", "k", req)
	if inFlight, ok := errors.AsType[*idempotency.InFlightError](err); !ok || inFlight.RetryAfter != 1101*time.Millisecond {
		t.Errorf("in flight: %v", err)
	}
	if extended, err := m.Extend(t.Context(), "t", "k", first.ID, 2*time.Second); err != nil || extended.ValidFor != 2*time.Second || extended.Attempt != 1 || extended.ID != first.ID {
		t.Errorf("extended: %+v, %v", extended, err)
	}
	now = now.Add(2501 * time.Millisecond)
	second, err := m.Claim(t.Context(), "t", "k", req)
	if err != nil || second.Attempt != 2 || second.ID == first.ID {
		t.Fatalf("got %+v, %v", second, err)
	}
	if err := m.Complete(t.Context(), "t", "k", first.ID, "1"); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("a superseded executor: %v", err)
	}
	if err := m.Complete(t.Context(), "t", "k", second.ID, ` { "a" : 1 } `); err != nil {
		t.Error(err)
	}
	if done, err := m.Claim(t.Context(), "t", "k", req); err != nil || !done.Completed || done.Response != `{"a":1}` || done.ID != "" {
		t.Errorf("completed: %+v, %v", done, err)
	}
	req.Fingerprint = "g"
	if _, err := m.Claim(t.Context(), "t", "k", req); !errors.Is(err, idempotency.ErrMismatch) {
		t.Errorf("another request: %v", err)
	}
}

// A node that knows of its wrong clock follows neither a lock nor a record.
func TestL23ASkewedNodeFollowsNobody(t *testing.T) {
	now, skewed := start, false
	m := idempotency.New(idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{})), idempotency.Options{Now: func() time.Time { return now }, Skewed: func() bool { return skewed }})
	req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Minute}
	if _, err := m.Claim(t.Context(), "t", "k", req); err != nil {
		t.Fatal(err)
	}
	skewed = true
	for _, later := range []time.Duration{2 * time.Second, 2 * time.Minute} {
		now = start.Add(later)
		if c, err := m.Claim(t.Context(), "t", "k", req); !errors.Is(err, idempotency.ErrClockSkew) {
			t.Errorf("after %v: %+v, %v", later, c, err)
		}
	}
	skewed = false
	if c, err := m.Claim(t.Context(), "t", "k", req); err != nil || c.Attempt != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A repetition on a node whose clock is behind is not told more time than it asked for.
func TestL23ARepetitionIsValidForWhatItAsked(t *testing.T) {
	var now time.Time
	m := newManager(&now)
	req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Minute, RequestID: "q"}
	var c idempotency.Claimed
	for range 2 {
		var err error
		if c, err = m.Claim(t.Context(), "t", "k", req); err != nil || c.ValidFor != time.Second || c.Attempt != 1 {
			t.Errorf("%+v, %v", c, err)
		}
		now = now.Add(-time.Hour)
	}
	if c, err := m.Extend(t.Context(), "t", "k", c.ID, 2*time.Second); err != nil || c.ValidFor != 2*time.Second {
		t.Errorf("extended: %+v, %v", c, err)
	}
}

// A manager with another space has other keys, over the same items.
func TestSpacesAreApart(t *testing.T) {
	store := idempotency.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	for _, space := range []string{"", "a", "b"} {
		m := idempotency.New(store, idempotency.Options{Space: space})
		c, err := m.Claim(t.Context(), "t", "k", idempotency.ClaimRequest{Fingerprint: "f" + space, LockTTL: time.Minute, TTL: time.Minute})
		if err != nil || c.Attempt != 1 {
			t.Errorf("space %q: %+v, %v", space, c, err)
		}
	}
}

func TestL34BadRequests(t *testing.T) {
	var now time.Time
	m := newManager(&now)
	claim := func(change func(*idempotency.ClaimRequest)) error {
		req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Minute}
		change(&req)
		_, err := m.Claim(t.Context(), "t", "k", req)
		return err
	}
	extend := func(key, id string, ttl time.Duration) error {
		_, err := m.Extend(t.Context(), "t", key, id, ttl)
		return err
	}
	long := strings.Repeat("x", 257)
	for _, c := range []struct {
		why, field string
		err        error
	}{
		{"no fingerprint", "fingerprint", claim(func(r *idempotency.ClaimRequest) { r.Fingerprint = "" })},
		{"a long one", "fingerprint", claim(func(r *idempotency.ClaimRequest) { r.Fingerprint = long })},
		{"a control character", "request_id", claim(func(r *idempotency.ClaimRequest) { r.RequestID = "a\x00" })},
		{"no lock", "lock_ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.LockTTL = 0 })},
		{"a short lock", "lock_ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.LockTTL = 99 * time.Millisecond })},
		{"a long lock", "lock_ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.LockTTL = 24*time.Hour + time.Millisecond })},
		{"a negative lock", "lock_ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.LockTTL = -1 << 63 })},
		{"no lifetime", "ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.TTL = 0 })},
		{"a long lifetime", "ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.TTL = 30*24*time.Hour + time.Millisecond })},
		{"the longest that wraps", "ttl_ms", claim(func(r *idempotency.ClaimRequest) { r.TTL = 1<<63 - 1 })},
		{"no key", "key", extend("", "clm_x", time.Second)},
		{"no claim", "claim_id", extend("k", "", time.Second)},
		{"no lock to extend to", "lock_ttl_ms", extend("k", "clm_x", 0)},
		{"no response", "response", m.Complete(t.Context(), "t", "k", "clm_x", "")},
		{"no JSON", "response", m.Complete(t.Context(), "t", "k", "clm_x", "{")},
		{"no UTF-8", "response", m.Complete(t.Context(), "t", "k", "clm_x", "\"\xff\"")},
		{"a byte too many", "response", m.Complete(t.Context(), "t", "k", "clm_x", `"`+strings.Repeat("x", 32<<10-1)+`"`)},
		{"no claim to complete", "claim_id", m.Complete(t.Context(), "t", "k", "", "1")},
		{"no claim to abandon", "claim_id", m.Abandon(t.Context(), "t", "k", "")},
		{"no tenant", "tenant", m.Abandon(t.Context(), "", "k", "clm_x")},
	} {
		if e, ok := errors.AsType[*keytype.ValueError](c.err); !ok || e.Field != c.field {
			t.Errorf("%s: %v, want a refusal of %s", c.why, c.err, c.field)
		}
	}
	c, err := m.Claim(t.Context(), "t", "k", idempotency.ClaimRequest{Fingerprint: "f", LockTTL: 24 * time.Hour, TTL: 30 * 24 * time.Hour})
	if err != nil || c.Attempt != 1 {
		t.Fatalf("the refused requests left something: %+v, %v", c, err)
	}
	if err := m.Complete(t.Context(), "t", "k", c.ID, `"`+strings.Repeat("x", 32<<10-2)+`"`); err != nil {
		t.Errorf("the longest response: %v", err)
	}
}

// A record is removed Retention after its end, not before.
func TestRecordsAreRemoved(t *testing.T) {
	store := kv.NewMemory(kv.MemoryOptions{})
	m := idempotency.New(idempotency.NewLocal(store), idempotency.Options{Now: func() time.Time { return start }})
	if _, err := m.Claim(t.Context(), "t", "k", idempotency.ClaimRequest{Fingerprint: "f", LockTTL: 2 * time.Second, TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		why  string
		at   time.Duration
		want int
	}{
		{"its executor may still wake up", 2*time.Second + idempotency.Retention - time.Millisecond, 0},
		{"nobody asks any more", 2*time.Second + idempotency.Retention, 1},
	} {
		if removed, err := store.Sweep(t.Context(), start.Add(c.at), 10); removed != c.want || err != nil {
			t.Errorf("%s: removed %d, %v", c.why, removed, err)
		}
	}
}
