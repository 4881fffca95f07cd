// Package client decides, for a program that calls the service over HTTP, when a
// call is tried again, for how long its answer may be believed, and what a check
// is answered while the service does not answer at all.
//
// Bodies and answers are the types that package api generates from the contract.
// A call is repeated only where that cannot do the same thing twice: where it
// changes nothing, where its body makes a repetition exact (a request id, a lease
// id, a position), under an Idempotency-Key of its own, or where the service says, or
// the connection shows, that it had no effect. A request id that is left out is made, but
// for that of a check, which the service would have to store for each check. An
// Idempotency-Key is always made, for the tries of one call: to call again is another
// request. A refusal is never repeated.
//
// Lists are sequences, of which each page is read, with a call of its own, when it is
// ranged over.
//
// Errors are a [*ProblemError], which is the service's answer, a [*NoAnswerError], or a
// [*keytype.ValueError] for an id that was not sent; a body that cannot be written, with
// text that is not valid UTF-8, is another one. With errors.Is the first two are
// also keytype.ErrUnavailable (nothing has happened, in no try) and keytype.ErrOutcomeUnknown,
// and the sentinels of package lease.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// Defaults of [Options].
const (
	DefaultTimeout      = 20 * time.Second
	DefaultTryTimeout   = 9 * time.Second // the service takes at most 8 s
	DefaultCheckTimeout = 250 * time.Millisecond
)

// Options of a client. Only APIKey is required, and OnNoAnswer before the first Check.
type Options struct {
	APIKey string // csk_…
	// HTTP sends the requests; nil = a client of its own. No redirect is followed, which
	// would take tokens elsewhere, unless it has a CheckRedirect.
	HTTP *http.Client

	// A call with all its tries takes at most Timeout, one try at most TryTimeout, and a
	// Check or Peek at most CheckTimeout; 0 = the defaults. Where the caller's context has
	// a deadline, a call ends when nine tenths of the time until then have passed, so
	// that its caller has the rest to act on the outcome. What a request asks the
	// service to wait comes on top of the first two.
	Timeout, TryTimeout, CheckTimeout time.Duration

	// OnNoAnswer is what a check is answered while the service does not answer: pass
	// (fail_open), refuse (fail_closed), or count in this process alone by Local. There
	// is no default: a Check without one is refused with ErrNoPosture. Where the
	// service answers, the posture of the policy in question counts, not this one.
	OnNoAnswer api.Posture
	// Local is, with posture local, the rate of each policy and set of descriptors; its
	// burst is by default the rate's count.
	Local ratelimit.LocalRate
}

// ErrNoPosture is returned by Check where Options.OnNoAnswer was not set.
var ErrNoPosture = errors.New("client: Options.OnNoAnswer must say what a check is answered while the service does not answer")

// A Client calls the service as one API key, whose tenant is that of everything it
// names. It may be used by many goroutines at once.
type Client struct {
	base  string
	opts  Options
	own   bool               // opts.HTTP has this client's own connections
	local *ratelimit.Limiter // with posture local
}

// New makes a client of the service at the URL, such as http://127.0.0.1:8080. It
// sends nothing yet.
func New(baseURL string, opts Options) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsAny(baseURL, "?#") || u.User != nil {
		return nil, errors.New("client: that is no URL of a service: want http:// or https:// and a host, without user, query or fragment") // which may be secret
	}
	if opts.APIKey == "" {
		return nil, errors.New("client: Options.APIKey is required")
	}
	if strings.ContainsFunc(opts.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("client: Options.APIKey holds a space, a line's end or another character that no key has")
	}
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	opts.TryTimeout = cmp.Or(opts.TryTimeout, DefaultTryTimeout)
	opts.CheckTimeout = cmp.Or(opts.CheckTimeout, DefaultCheckTimeout)
	own := opts.HTTP == nil
	if own {
		opts.HTTP = ownHTTP()
	}
	if opts.HTTP.CheckRedirect == nil {
		staying := *opts.HTTP
		staying.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		opts.HTTP = &staying
	}
	c := &Client{base: strings.TrimRight(baseURL, "/"), opts: opts, own: own}
	switch opts.OnNoAnswer {
	case "", api.PostureFailOpen, api.PostureFailClosed:
	case api.PostureLocal:
		c.opts.Local.Burst = cmp.Or(opts.Local.Burst, opts.Local.Rate.Count)
		c.local, err = newLocal(c.opts.Local)
	default:
		err = fmt.Errorf("client: Options.OnNoAnswer is %q: want fail_open, fail_closed or local", opts.OnNoAnswer)
	}
	return c, err
}

// ownHTTP keeps as many connections as there are calls at a time, within reason.
func ownHTTP() *http.Client {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 128, MaxIdleConnsPerHost: 128, IdleConnTimeout: 90 * time.Second,
		// HTTP/2 has all calls share a connection, which a network may drop without a word. It is given up within 5 s.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 2 * time.Second},
	}
	return &http.Client{Transport: transport}
}

// Close closes the connections that no call uses. Those of Options.HTTP stay: they are its
// owner's. A call after Close opens a new one. The error is always nil.
func (c *Client) Close() error {
	if c.own {
		c.opts.HTTP.CloseIdleConnections()
	}
	return nil
}

const redacted = "client.Options(redacted)"

// String holds no key, which a log would keep.
func (Options) String() string { return redacted }

// GoString is String, for %#v.
func (Options) GoString() string { return redacted }

// LogValue is String, for log/slog.
func (Options) LogValue() slog.Value { return slog.StringValue(redacted) }

// String names the service, and holds no key.
func (c *Client) String() string { return "client of " + c.base }

// GoString is String, for %#v.
func (c *Client) GoString() string { return c.String() }

// within bounds a call by d, and by nine tenths of what the caller's context leaves.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		d = min(d, left-left/10)
	}
	return context.WithTimeout(ctx, d)
}

// ms is a duration of so many milliseconds, which the API counts in.
func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
