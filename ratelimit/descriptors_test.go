package ratelimit

import (
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
)

// FuzzDescriptors looks for two requests whose descriptors differ and whose buckets
// do not, or whose keys do not come apart again.
func FuzzDescriptors(f *testing.F) {
	for _, s := range [][4]string{
		{"a_b", "c", "a", "b_c"}, {"1:a", "b", "1", "a:b"}, {"}{", "x", "}", "{x"}, {"", "a", "a", ""}, {"\x00", "\xff", "é", "é"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	limit := Limit{Name: "l", Key: []string{"x", "y"}, Algorithm: TokenBucket, Numbers: Numbers{Rate: Rate{Count: 1, Per: minPer}, Burst: 1}}
	limits, err := New(nil, []Policy{{Name: "p", Posture: FailOpen, Stage: Enforce, Limits: []Limit{limit}}}, Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		match := func(x, y string) (Bucket, bool) {
			m, err := limits.match("t", Request{Policy: "p", Descriptors: map[string]string{"x": x, "y": y}, Cost: 1})
			if err != nil {
				return Bucket{}, false
			}
			return m.buckets[0], true
		}
		one, good := match(a, b)
		if want := keytype.CheckID("x", a) == nil && keytype.CheckID("y", b) == nil; good != want {
			t.Fatalf("%q, %q: matched %t", a, b, good)
		}
		if _, ok := keytype.RateBucket.Split(one.Key); good && !ok {
			t.Fatalf("%q does not come apart", one.Key)
		}
		other, also := match(c, d)
		if good && also && (one.Key == other.Key) != (a == c && b == d) {
			t.Fatalf("(%q, %q) and (%q, %q) have the keys %q and %q", a, b, c, d, one.Key, other.Key)
		}
	})
}
