package ratelimithttp_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// from is a request of a connection, with lines of one header.
func from(remote string, header ratelimithttp.Header, lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	for _, line := range lines {
		r.Header.Add(string(header), line)
	}
	return r
}

// ours are two layers of proxies.
var ours = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}

const (
	xff = ratelimithttp.XForwardedFor
	fwd = ratelimithttp.Forwarded
)

func TestR62OnlyTrustedHopsAreBelieved(t *testing.T) {
	for _, c := range []struct {
		why, remote string
		header      ratelimithttp.Header
		lines       []string
		want        string
	}{
		{"no proxy", "192.0.2.7:4711", xff, nil, "192.0.2.7"},
		{"a spoofed header from nowhere", "192.0.2.7:4711", xff, []string{"198.51.100.1"}, "192.0.2.7"},
		{"one proxy", "10.0.0.1:80", xff, []string{"192.0.2.7"}, "192.0.2.7"},
		{"the proxy sent nothing", "10.0.0.1:80", xff, nil, "10.0.0.1"},
		{"two proxies", "10.0.0.1:80", xff, []string{"192.0.2.7, 10.0.0.2"}, "192.0.2.7"},
		{"in two lines", "10.0.0.1:80", xff, []string{"192.0.2.7", "10.0.0.2"}, "192.0.2.7"},
		{"spoofed before the proxy appended", "10.0.0.1:80", xff, []string{"198.51.100.1, 192.0.2.7"}, "192.0.2.7"},
		{"spoofed in a line of its own", "10.0.0.1:80", xff, []string{"198.51.100.1", "192.0.2.7"}, "192.0.2.7"},
		{"a client that claims to be a proxy", "10.0.0.1:80", xff, []string{"198.51.100.1, 10.0.0.9, 192.0.2.7"}, "192.0.2.7"},
		{"all are ours: the furthest", "10.0.0.1:80", xff, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"with a port", "10.0.0.1:80", xff, []string{"192.0.2.7:4711"}, "192.0.2.7"},
		{"IPv6", "10.0.0.1:80", xff, []string{"2001:db8::7"}, "2001:db8::7"},
		{"IPv6 in brackets", "10.0.0.1:80", xff, []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"IPv6 with a port", "[2001:db8:ffff::1]:80", xff, []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		{"IPv4 as IPv6 is ours, too", "[::ffff:10.0.0.1]:80", xff, []string{"::ffff:192.0.2.7"}, "192.0.2.7"},
		{"a zone", "[fe80::1%eth0]:80", xff, nil, "fe80::1"},
		{"the proxy knows nobody: its own bucket", "10.0.0.1:80", xff, []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"nothing after the comma", "10.0.0.1:80", xff, []string{"198.51.100.1, "}, "10.0.0.1"},
		{"no address", "10.0.0.1:80", xff, []string{"192.0.2.07"}, "10.0.0.1"},
		{"brackets around IPv4", "10.0.0.1:80", xff, []string{"[192.0.2.7]"}, "10.0.0.1"},
		{"a hop that cannot be read hides what is left of it", "10.0.0.1:80", xff, []string{"198.51.100.1, x, 10.0.0.2"}, "10.0.0.2"},
		{"the other header counts nothing", "10.0.0.1:80", fwd, nil, "10.0.0.1"},

		{"Forwarded", "10.0.0.1:80", fwd, []string{"for=192.0.2.7;proto=https;by=10.0.0.1"}, "192.0.2.7"},
		{"in capitals, after others", "10.0.0.1:80", fwd, []string{`Proto=https; For="192.0.2.7:4711"`}, "192.0.2.7"},
		{"IPv6 in quotes", "10.0.0.1:80", fwd, []string{`for="[2001:db8::7]:4711"`}, "2001:db8::7"},
		{"without the quotes", "10.0.0.1:80", fwd, []string{`for=[2001:db8::7]`}, "2001:db8::7"},
		{"two elements", "10.0.0.1:80", fwd, []string{"for=192.0.2.7, for=10.0.0.2"}, "192.0.2.7"},
		{"two lines", "10.0.0.1:80", fwd, []string{"for=192.0.2.7", "for=10.0.0.2"}, "192.0.2.7"},
		{"spoofed before the proxy appended", "10.0.0.1:80", fwd, []string{"for=198.51.100.1, for=192.0.2.7"}, "192.0.2.7"},
		{"unknown", "10.0.0.1:80", fwd, []string{"for=198.51.100.1, for=unknown"}, "10.0.0.1"},
		{"hidden", "10.0.0.1:80", fwd, []string{"for=_a7"}, "10.0.0.1"},
		{"no for", "10.0.0.1:80", fwd, []string{"for=198.51.100.1, proto=http"}, "10.0.0.1"},
		{"a host that holds an element", "10.0.0.1:80", fwd, []string{`for=192.0.2.7;host="a, for=198.51.100.1;x="`}, "192.0.2.7"},
		{"a host that holds a pair", "10.0.0.1:80", fwd, []string{`host="a;for=198.51.100.1";for=192.0.2.7`}, "192.0.2.7"},
		{"a string that the client left open", "10.0.0.1:80", fwd, []string{`for="198.51.100.1, for=192.0.2.7;host="a"`}, "10.0.0.1"},
		{"and closed in the host", "10.0.0.1:80", fwd, []string{`for="x, for=192.0.2.7;host=";for=198.51.100.1;y="`}, "10.0.0.1"},
		{"for twice", "10.0.0.1:80", fwd, []string{`for=198.51.100.1;for=192.0.2.7`}, "10.0.0.1"},
		{"a line of the client's that cannot be read", "10.0.0.1:80", fwd, []string{`"`, "for=192.0.2.7"}, "192.0.2.7"},
		{"an escape", "10.0.0.1:80", fwd, []string{`for="192.0.2\.7"`}, "192.0.2.7"},
		{"nothing after the semicolon", "10.0.0.1:80", fwd, []string{`for=192.0.2.7;`}, "10.0.0.1"},
	} {
		a := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: ours, Header: c.header})
		r := from(c.remote, c.header, c.lines...)
		if c.header == xff {
			r.Header.Set("Forwarded", "for=203.0.113.9")
		} else {
			r.Header.Set("X-Forwarded-For", "203.0.113.9")
		}
		got, err := a.Client(r)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: got %v, %v; want %s", c.why, got, err, c.want)
		}
	}
}

func TestR62WithoutTrustedProxiesNoHeaderCounts(t *testing.T) {
	a := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{})
	if got, err := a.Client(from("10.0.0.1:80", xff, "192.0.2.7")); err != nil || got.String() != "10.0.0.1" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, remote := range []string{"", "@", "/run/x.sock", "pipe"} {
		if _, err := a.Network(from(remote, xff, "192.0.2.7")); !errors.Is(err, ratelimithttp.ErrNoAddress) {
			t.Errorf("%q: got %v", remote, err)
		}
	}
}

// A client of IPv6 that takes another address for each request stays in one bucket.
func TestR62Networks(t *testing.T) {
	wide := ratelimithttp.AddressOptions{IPv4: 32, IPv6: 56}
	for _, c := range []struct {
		remote string
		opts   ratelimithttp.AddressOptions
		want   string
	}{
		{"192.0.2.7:1", ratelimithttp.AddressOptions{}, "192.0.2.0/24"},
		{"192.0.2.255:1", ratelimithttp.AddressOptions{}, "192.0.2.0/24"},
		{"192.0.3.0:1", ratelimithttp.AddressOptions{}, "192.0.3.0/24"},
		{"[::ffff:192.0.2.7]:1", ratelimithttp.AddressOptions{}, "192.0.2.0/24"},
		{"[2001:db8:1:2::7]:1", ratelimithttp.AddressOptions{}, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:ffff:ffff:ffff:ffff]:1", ratelimithttp.AddressOptions{}, "2001:db8:1:2::/64"},
		{"[2001:db8:1:3::7]:1", ratelimithttp.AddressOptions{}, "2001:db8:1:3::/64"},
		{"192.0.2.7:1", wide, "192.0.2.7/32"},
		{"[2001:db8:1:2ff::7]:1", wide, "2001:db8:1:200::/56"},
	} {
		got, err := ratelimithttp.NewAddresses(c.opts).Network(from(c.remote, xff))
		if err != nil || got.String() != c.want {
			t.Errorf("%s: got %v, %v; want %s", c.remote, got, err, c.want)
		}
	}
}

func TestAFewHopsAreEnough(t *testing.T) {
	a := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: ours})
	long := strings.Repeat("10.0.0.9, ", 100_000) + "10.0.0.2"
	if got, err := a.Client(from("10.0.0.1:80", xff, "192.0.2.7, "+long)); err != nil || got.String() != "10.0.0.9" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestAddressOptionsOutOfRange(t *testing.T) {
	for why, opts := range map[string]ratelimithttp.AddressOptions{
		"a header that is not understood": {Header: "X-Real-IP"},
		"no network":                      {Trusted: make([]netip.Prefix, 1)},
		"IPv4 as IPv6":                    {Trusted: []netip.Prefix{netip.MustParsePrefix("::ffff:172.16.0.0/108")}},
		"33 bits of IPv4":                 {IPv4: 33},
		"129 bits of IPv6":                {IPv6: 129},
		"fewer than none":                 {IPv6: -1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", why)
				}
			}()
			ratelimithttp.NewAddresses(opts)
		}()
	}
}

// Whatever a client sends before the proxy appends its address, that is the one that
// counts, or the proxy's own where the client's text cannot be told from the proxy's;
// in a line of its own the proxy's word always counts.
func FuzzClient(f *testing.F) {
	for _, spoofed := range []string{
		"", "198.51.100.1", "198.51.100.1, 10.0.0.9", ",", "unknown", `for="`, `for="x`, `for=198.51.100.1`, `for="[::1]:1";host="a, b"`, `a\"b`, "for=\"\\",
	} {
		f.Add(spoofed, "a")
		f.Add(spoofed, ";for=198.51.100.1;y=")
	}
	const client, proxy = "192.0.2.7", "10.0.0.1"
	f.Fuzz(func(t *testing.T, spoofed, host string) {
		quotedHost := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(host)
		for _, c := range []struct {
			header ratelimithttp.Header
			ours   string
			may    []string
		}{
			{xff, client, []string{client}},
			{fwd, "for=" + client, []string{client, proxy}},
			{fwd, "for=" + client + `;host="` + quotedHost + `"`, []string{client, proxy}},
			{fwd, `host="` + quotedHost + `";for=` + client, []string{client, proxy}},
		} {
			a := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: ours, Header: c.header})
			for _, lines := range [][]string{{spoofed + ", " + c.ours}, {spoofed + "," + c.ours}, {spoofed, c.ours}} {
				may := c.may
				if len(lines) == 2 {
					may = []string{client}
				}
				got, err := a.Client(from(proxy+":80", c.header, lines...))
				if err != nil || !slices.Contains(may, got.String()) {
					t.Errorf("%q: got %v, %v; want one of %v", lines, got, err, may)
				}
			}
			if got, err := a.Client(from("203.0.113.5:80", c.header, spoofed)); err != nil || got.String() != "203.0.113.5" {
				t.Errorf("%q from a stranger: got %v, %v", spoofed, got, err)
			}
		}
	})
}
