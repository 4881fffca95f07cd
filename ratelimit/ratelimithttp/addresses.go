package ratelimithttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// A Header is one in which proxies say for whom they ask.
type Header string

// The headers. A proxy appends to one of them and hands the other one on as a client
// sent it, so only one can be believed.
const (
	XForwardedFor Header = "X-Forwarded-For"
	Forwarded     Header = "Forwarded" // RFC 7239
)

// AddressOptions say whom Addresses believes; the zero value believes nobody.
type AddressOptions struct {
	// Trusted are the networks of our own proxies: each appends the address of its
	// peer to Header, or sets it. One that hands a client's header on as it came makes
	// every client a liar.
	Trusted []netip.Prefix
	Header  Header // "" = XForwardedFor
	IPv4    int    // bits of the network that counts as one client, 1 to 32, 0 = 24
	IPv6    int    // 1 to 128, 0 = 64
}

// Addresses find out where requests come from.
type Addresses struct{ opts AddressOptions }

// ErrNoAddress is returned for a request whose connection has no IP address, as on a
// Unix socket, or in a test.
var ErrNoAddress = errors.New("ratelimithttp: the connection has no IP address")

// NewAddresses panics where an option is out of its range.
func NewAddresses(opts AddressOptions) *Addresses {
	if opts.Header == "" {
		opts.Header = XForwardedFor
	}
	if opts.IPv4 == 0 {
		opts.IPv4 = 24
	}
	if opts.IPv6 == 0 {
		opts.IPv6 = 64
	}
	switch {
	case opts.Header != XForwardedFor && opts.Header != Forwarded:
		panic(fmt.Sprintf("ratelimithttp: the header %q is not understood", opts.Header))
	case opts.IPv4 < 1 || opts.IPv4 > 32 || opts.IPv6 < 1 || opts.IPv6 > 128:
		panic(fmt.Sprintf("ratelimithttp: a network has 1 to 32 bits of IPv4 and 1 to 128 of IPv6, not %d and %d", opts.IPv4, opts.IPv6))
	}
	trusted := make([]netip.Prefix, len(opts.Trusted))
	for i, p := range opts.Trusted {
		if !p.IsValid() {
			panic("ratelimithttp: a trusted network is not valid")
		}
		if p.Addr().Is4In6() { // addresses are compared as IPv4, so it would never match
			panic(fmt.Sprintf("ratelimithttp: write the trusted network %v as one of IPv4", p))
		}
		trusted[i] = p.Masked()
	}
	opts.Trusted = trusted
	return &Addresses{opts}
}

// maxHops is how many proxies are followed.
const maxHops = 32

// Client is the address of the request's client: of its connection, unless that is
// one of the trusted proxies; then the one that this proxy names, and so on. What a
// client has written itself stands to the left of that, and is not looked at. Where a
// proxy names none ("unknown", or what cannot be read) the proxy itself is the answer:
// one bucket for all whom it hides, and not a new one for each. Error: ErrNoAddress.
func (a *Addresses) Client(r *http.Request) (netip.Addr, error) {
	client, ok := parseNode(r.RemoteAddr)
	if !ok {
		return netip.Addr{}, ErrNoAddress
	}
	lines := r.Header.Values(string(a.opts.Header))
	var nodes []string // what is left of the line in hand; lines further right are used up
	for range maxHops {
		if !a.trusts(client) {
			return client, nil
		}
		for len(nodes) == 0 && len(lines) > 0 {
			nodes, lines = a.nodes(lines[len(lines)-1]), lines[:len(lines)-1]
		}
		if len(nodes) == 0 {
			return client, nil
		}
		named, ok := parseNode(nodes[len(nodes)-1])
		if !ok {
			return client, nil
		}
		client, nodes = named, nodes[:len(nodes)-1]
	}
	return client, nil
}

// Network is the network of the request's client, for example 192.0.2.0/24 or
// 2001:db8::/64. Error: ErrNoAddress.
func (a *Addresses) Network(r *http.Request) (netip.Prefix, error) {
	client, err := a.Client(r)
	if err != nil {
		return netip.Prefix{}, err
	}
	bits := a.opts.IPv6
	if client.Is4() {
		bits = a.opts.IPv4
	}
	return client.Prefix(bits)
}

// Direct reports whether the request comes straight from a trusted proxy, so that a
// header which such proxies set, and take away from clients, can be believed.
func (a *Addresses) Direct(r *http.Request) bool {
	peer, ok := parseNode(r.RemoteAddr)
	return ok && a.trusts(peer)
}

func (a *Addresses) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(a.opts.Trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// nodes are those of one line of the header, from the left; one that cannot be read
// stands for a line that cannot.
func (a *Addresses) nodes(line string) []string {
	if a.opts.Header == Forwarded {
		return forwardedNodes(line)
	}
	return strings.Split(line, ",")
}

// parseNode reads an address with or without a port. One of IPv4 is that also where it
// is written as one of IPv6, and the zone of a link is left out: it is this host's own word.
func parseNode(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if whole, err := netip.ParseAddrPort(s); err == nil {
		return whole.Addr().Unmap().WithZone(""), true
	}
	if inner, found := strings.CutPrefix(s, "["); found {
		s, found = strings.CutSuffix(inner, "]")
		if !found || !strings.Contains(s, ":") {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(s)
	return addr.Unmap().WithZone(""), err == nil
}
