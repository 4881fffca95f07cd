package ratelimithttp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

var hashKey = []byte("32 bytes that nobody else knows.")

// header reads one, as the test's way to say who is logged in.
func header(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.Header.Get(name) }
}

func TestR61R62Waterfall(t *testing.T) {
	hash := ratelimithttp.NewHasher(hashKey)
	w := ratelimithttp.NewWaterfall(
		ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: ours}), hash,
		ratelimithttp.WaterfallOptions{User: header("Test-User"), APIKey: header("Test-Key"), Fingerprint: "X-Print"},
	)
	long := strings.Repeat("u", 65)
	for _, c := range []struct {
		why, remote string
		headers     []string // name, value, …
		want        string
	}{
		{"a user", "192.0.2.7:1", []string{"Test-User", "ann", "Test-Key", "k"}, "user:ann"},
		{"a long user", "192.0.2.7:1", []string{"Test-User", long}, "userhash:" + hash.Sum("user", long)},
		{"a user that is no id", "192.0.2.7:1", []string{"Test-User", "a\x00b"}, "userhash:" + hash.Sum("user", "a\x00b")},
		{"a user that looks like a network stays one", "192.0.2.7:1", []string{"Test-User", "net:10.0.0.0/24"}, "user:net:10.0.0.0/24"},
		{"a key", "192.0.2.7:1", []string{"Test-Key", "secret"}, "key:" + hash.Sum("key", "secret")},
		{"a fingerprint from our proxy", "10.0.0.1:1", []string{"X-Print", "f", "X-Forwarded-For", "192.0.2.7"}, "print:" + hash.Sum("print", "f")},
		{"a fingerprint from anybody", "192.0.2.7:1", []string{"X-Print", "f"}, "net:192.0.2.0/24"},
		{"two fingerprints: the proxy did not take the client's away", "10.0.0.1:1", []string{"X-Print", "f", "X-Print", "g", "X-Forwarded-For", "192.0.2.7"}, "net:192.0.2.0/24"},
		{"an empty one", "10.0.0.1:1", []string{"X-Print", "", "X-Forwarded-For", "192.0.2.7"}, "net:192.0.2.0/24"},
		{"nothing", "192.0.2.7:1", nil, "net:192.0.2.0/24"},
		{"nothing, IPv6", "[2001:db8::7]:1", nil, "net:2001:db8::/64"},
	} {
		r := from(c.remote, xff)
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Add(c.headers[i], c.headers[i+1])
		}
		got, err := w.Identify(r)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.why, got, err, c.want)
		}
		if err := keytype.CheckID("user", got); err != nil || len(got) > 80 {
			t.Errorf("%s: %q is no descriptor value: %v", c.why, got, err)
		}
	}
	if _, err := w.Identify(from("@", xff)); !errors.Is(err, ratelimithttp.ErrNoAddress) {
		t.Errorf("R61: a request without any identity: %v", err)
	}
	bare := ratelimithttp.NewWaterfall(ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{}), hash, ratelimithttp.WaterfallOptions{})
	if got, err := bare.Identify(from("192.0.2.7:1", xff)); err != nil || got != "net:192.0.2.0/24" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestHasher(t *testing.T) {
	key := []byte("16 bytes of key.")
	hash := ratelimithttp.NewHasher(key)
	seen := map[string]string{}
	for why, sum := range map[string]string{
		"a and b, c": hash.Sum("a", "b", "c"), "ab, c": hash.Sum("ab", "c"), "a, bc": hash.Sum("a", "bc"), "abc": hash.Sum("abc"), "none": hash.Sum(), "an empty one": hash.Sum(""),
		"another key": ratelimithttp.NewHasher([]byte("16 bytes of Key.")).Sum("abc"), "2 MB": hash.Sum(strings.Repeat("x", 2<<20)),
	} {
		if other, met := seen[sum]; met {
			t.Errorf("%s has the hash of %s", why, other)
		}
		if seen[sum] = why; len(sum) != 22 || keytype.CheckID("user", sum) != nil {
			t.Errorf("%s: %q", why, sum)
		}
	}
	// Computed with: printf '\0\0\0\0\0\0\0\x03abc' | openssl dgst -sha256 -mac HMAC -macopt key:'16 bytes of key.' -binary | head -c 16 | base64
	if got, want := hash.Sum("abc"), "Ce905jY0F0bHK2coevxhmg"; got != want {
		t.Errorf("got %s, other nodes have %s", got, want)
	}
	key[0] = 'x'
	if seen[hash.Sum("abc")] != "abc" {
		t.Error("the key is not its own copy")
	}
}

func TestIdentityNeedsItsParts(t *testing.T) {
	addresses, hash := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{}), ratelimithttp.NewHasher(hashKey)
	for why, wrong := range map[string]func(){
		"a short key":  func() { ratelimithttp.NewHasher(make([]byte, 15)) },
		"no addresses": func() { ratelimithttp.NewWaterfall(nil, hash, ratelimithttp.WaterfallOptions{}) },
		"no hash":      func() { ratelimithttp.NewWaterfall(addresses, nil, ratelimithttp.WaterfallOptions{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", why)
				}
			}()
			wrong()
		}()
	}
}
