package keytype_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
)

// A key in Redis tells its type and parts, whatever is in them, and its tag has no
// braces of its own.
func TestTagged(t *testing.T) {
	parts := []string{"a}b{c", "", "ключ", "4:x", "{}"}
	key := keytype.RateBucket.Key(parts...)
	stored := keytype.RateBucket.Tagged("one:", "}{ any text", key)
	if !strings.HasPrefix(stored, "one:{") || strings.IndexByte(stored, '}') != len("one:{")+12 {
		t.Errorf("the tag of %q has another length", stored)
	}
	kind, got, ok := keytype.SplitTagged("one:", stored)
	if !ok || kind != keytype.RateBucket || !slices.Equal(got, parts) {
		t.Errorf("got %v %q, %t", kind, got, ok)
	}
	same := keytype.ConcurrencySlot.Tagged("one:", "}{ any text", "k")
	if tag := func(s string) string { return s[:len("one:{")+12] }; tag(same) != tag(stored) {
		t.Errorf("one tag gives %q and %q", same, stored)
	}
	for _, foreign := range []string{
		"", "two:" + strings.TrimPrefix(stored, "one:"), strings.Replace(stored, "rate_bucket", "rate_buckets", 1),
		strings.Replace(stored, "}", "x}", 1), stored + "x", stored[:len(stored)-1],
	} {
		if _, _, ok := keytype.SplitTagged("one:", foreign); ok {
			t.Errorf("%q is taken for ours", foreign)
		}
	}
}

func TestLimitsInForce(t *testing.T) {
	for _, kind := range []*keytype.Type{keytype.RateBucket, keytype.ConcurrencySlot, keytype.ChargeRequest} {
		for _, mode := range []keytype.Mode{{}, {DynamoDB: true}, {Redis: true}, {DynamoDB: true, Redis: true}} {
			want := map[bool]string{true: "redis", false: "memory"}[mode.Redis]
			if got := mode.InForce(kind); got.Store != want || !mode.Available(kind) {
				t.Errorf("%s with %+v: %+v", kind.Name, mode, got)
			}
		}
	}
}
