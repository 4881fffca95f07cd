package keytype_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strconv"
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
	if beside := keytype.RateBucket.Beside(same[:len("one:{")+13], key); beside != stored {
		t.Errorf("beside %q: got %q, want %q", same, beside, stored)
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

// A key behind a veil tells its type and nothing else, keeps its slot's company, and is the
// same wherever the secret is.
func TestVeil(t *testing.T) {
	const secret = "32 bytes, the same on all nodes."
	veil, again, other := keytype.NewVeil([]byte(secret)), keytype.NewVeil([]byte(secret)), keytype.NewVeil([]byte("another"))
	name := func(v *keytype.Veil, kind *keytype.Type, tag, user string) string {
		return v.Tagged(kind, "one:", tag, kind.Key(append([]string{"acme", "p", "l"}, user)...))
	}
	slot := keytype.ConcurrencySlot
	ann := name(veil, slot, "tag", "ann")
	if ann != name(again, slot, "tag", "ann") || len(ann) != len("one:{123456}c:1234567890123456") {
		t.Errorf("%q is of another form, or another elsewhere", ann)
	}
	kind, parts, ok := keytype.SplitTagged("one:", ann)
	if !ok || kind != slot || parts != nil {
		t.Errorf("got %v %q, %t", kind, parts, ok)
	}
	if bob := name(veil, slot, "tag", strings.Repeat("bob", 1000)); len(bob) != len(ann) || bob == ann || bob[:14] != ann[:14] {
		t.Errorf("%q and %q", ann, bob)
	}
	if beside := veil.Beside(slot, ann[:12], slot.Key("acme", "p", "l", "bob")); beside != name(veil, slot, "tag", "bob") {
		t.Errorf("beside %q: got %q", ann, beside)
	}
	if moved := name(veil, slot, "tug", "ann"); moved[:11] == ann[:11] || moved[11:] != ann[11:] {
		t.Errorf("another tag: %q and %q", ann, moved)
	}
	if foreign := name(other, slot, "tag", "ann"); foreign[:11] == ann[:11] || foreign[14:] == ann[14:] {
		t.Errorf("another secret: %q and %q", ann, foreign)
	}
	if plain := slot.Tagged("one:", "tag", "k"); plain[:11] == ann[:11] {
		t.Errorf("the tag of %q is no secret", ann)
	}
	marks := map[string]bool{}
	for _, kind := range keytype.All() {
		if marks[kind.Mark] {
			t.Errorf("another type than %s has its mark", kind.Name)
		}
		if marks[kind.Mark] = kind.Mark != ""; !marks[kind.Mark] {
			continue
		}
		if got, _, ok := keytype.SplitTagged("", veil.Tagged(kind, "", "tag", "key")); !ok || got != kind {
			t.Errorf("a hidden %s is taken for a %v", kind.Name, got)
		}
	}
	if _, _, ok := keytype.SplitTagged("one:", ann[:len(ann)-1]); ok {
		t.Error("a key that is cut short is taken for ours")
	}
	if hidden := veil.Hide("ann"); len(hidden) != 22 || hidden != again.Hide("ann") || hidden == veil.Hide("bob") || hidden == other.Hide("ann") || strings.HasSuffix(veil.Tagged(slot, "", "", "ann"), hidden[:16]) {
		t.Errorf("a hidden value is %q", hidden)
	}
	for _, size := range []int{1, 16, 32, 64, 65, 200} {
		secret, text := bytes.Repeat([]byte("k"), size), strings.Repeat("x", 10*size)
		mac := hmac.New(sha256.New, secret)
		_, _ = mac.Write([]byte("val" + text))
		if got, want := keytype.NewVeil(secret).Hide(text), base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16]); got != want {
			t.Errorf("a secret of %d bytes: %s, by crypto/hmac %s", size, got, want)
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

// A veil that remembers names gives each its own, also where others have pushed it out.
func TestVeilRemembersNames(t *testing.T) {
	veil := keytype.NewVeil([]byte("secret"))
	name := func(v *keytype.Veil, i int) string {
		bits := i ^ i/2 // of one name to the next one thing changes
		kind := []*keytype.Type{keytype.RateBucket, keytype.ConcurrencySlot}[bits%2]
		first, second, key := strconv.Itoa(bits/4%2), strconv.Itoa(bits/8%2), strconv.Itoa(bits/16)
		if bits/2%2 == 1 {
			return v.Beside(kind, first+"{"+second+"}", key)
		}
		return v.Tagged(kind, first, second, key)
	}
	names := map[string]bool{}
	for i := range 20_000 {
		names[name(veil, i)] = true
	}
	if len(names) != 20_000 {
		t.Errorf("%d names", len(names))
	}
	for i := range 20_000 {
		if fresh := name(veil, i); !names[fresh] {
			t.Fatalf("%d is called %q now", i, fresh)
		}
	}
	other := keytype.NewVeil([]byte("secret"))
	for i := range 20_000 {
		if a, b := name(veil, 19_999-i), name(other, 19_999-i); a != b {
			t.Fatalf("%q and %q", a, b)
		}
	}
}
