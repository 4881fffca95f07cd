package keytype_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

func TestCacheKeys(t *testing.T) {
	for _, step := range []struct {
		cached *keytype.Type
		parts  []string
		want   string
	}{
		{keytype.UserEpoch, []string{"Tag"}, "p:cs:{Tag}:e"},
		{keytype.Session, []string{"Tag", "%sId"}, "p:cs:{Tag}:s:%sId"},
		{keytype.StoreMarker, nil, "p:store_marker"},
	} {
		if got := step.cached.CacheKey("p:", step.parts...); got != step.want {
			t.Errorf("%s: %s, want %s", step.cached.Name, got, step.want)
		}
	}
	for what, call := range map[string]func(){
		"a type that is not cached": func() { keytype.Lease.CacheKey("", "a", "b") },
		"too few parts":             func() { keytype.Session.CacheKey("", "a") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			call()
		}()
	}
}

// What is in force names Redis exactly where there is one.
func TestInForceWithRedis(t *testing.T) {
	for _, step := range []struct {
		of    *keytype.Type
		mode  keytype.Mode
		redis bool
	}{
		{keytype.Session, keytype.Mode{DynamoDB: true, Redis: true}, true},
		{keytype.Session, keytype.Mode{DynamoDB: true}, false},
		{keytype.Session, keytype.Mode{Redis: true}, false}, // an embedded node caches no sessions
		{keytype.StoreMarker, keytype.Mode{Redis: true}, true},
		{keytype.StoreMarker, keytype.Mode{DynamoDB: true}, false},
		{keytype.DenyCache, keytype.Mode{Redis: true}, false}, // it is memory
		{keytype.AdvisoryLock, keytype.Mode{DynamoDB: true, Redis: true}, true},
		{keytype.AdvisoryLock, keytype.Mode{Redis: true}, true},
		{keytype.AdvisoryLock, keytype.Mode{}, false},
		{keytype.AdvisoryLock, keytype.Mode{DynamoDB: true}, false},
	} {
		if got := step.mode.InForce(step.of); strings.Contains(got.Store, "redis") != step.redis {
			t.Errorf("%s with %+v: %+v", step.of.Name, step.mode, got)
		}
	}
	if m := (keytype.Mode{}); m.Available(keytype.StoreMarker) || !m.Available(keytype.AdvisoryLock) {
		t.Error("a marker without a Redis, or no advisory lock in one process")
	}
	if m := (keytype.Mode{}); m.Available(keytype.DenyCache) || m.InForce(keytype.DenyCache).Store != "none" {
		t.Error("refusals are remembered of a store that is this process itself")
	}
	if m := (keytype.Mode{DynamoDB: true}); m.Available(keytype.AdvisoryLock) {
		t.Error("an advisory lock that each node grants for itself")
	}
}

func TestStaleGraceIsInForce(t *testing.T) {
	for _, step := range []struct {
		of    *keytype.Type
		grace time.Duration
		want  string // in the note
		not   string
	}{
		{keytype.Session, 0, "within 12 s,", "degraded"},
		{keytype.Session, 15 * time.Second, "within 27 s,", "12 s"},
		{keytype.UserEpoch, 15 * time.Second, "verify goes on for 25 s, marked degraded after 10 s", "12 s"},
		{keytype.TenantEpoch, 15 * time.Second, "a known value counts for verify for 25 s", "12 s"},
		{keytype.TenantEpoch, 0, "shared by all nodes", "25 s"},
		{keytype.SessionData, 15 * time.Second, "shared by all nodes", "25 s"},
	} {
		note := keytype.Mode{DynamoDB: true, Redis: true, StaleGrace: step.grace}.InForce(step.of).Note
		if !strings.Contains(note, step.want) || strings.Contains(note, step.not) {
			t.Errorf("%s with a grace of %s: %s", step.of.Name, step.grace, note)
		}
	}
}
