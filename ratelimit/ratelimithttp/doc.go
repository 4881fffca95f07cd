// Package ratelimithttp decides whether a request may go on to its handler, by a
// policy of package ratelimit, and answers it where it may not.
//
// A [Guard] describes each request in the descriptors of its policy, asks a
// [ratelimit.Limiter], and lets it through, or answers 429 with Retry-After. [Fields]
// writes what the limits say into every answer, as the service does on its own. What
// the handler began with is over with it: a slot of a concurrency limit is released,
// and of a leaky bucket the request waits for its turn first.
//
// # Whose request it is
//
// A limit is as good as the identity that it counts for. [Waterfall] names the best
// that a request has: its user, its API key, a fingerprint that a proxy of ours has
// set, at last its network. Only what was verified is one: whoever may choose their
// name gets a new bucket with each request, and whoever may choose somebody else's
// uses that one up. [Addresses] therefore believes X-Forwarded-For or Forwarded only
// as far as the proxies named to it wrote them. A single host of IPv6 has a whole /64
// to choose its addresses from, so that the network counts, not the address.
//
// # Where middleware is the wrong place
//
//   - Against a flood. The connection, TLS, and the headers have been paid for when a
//     request gets here: a load balancer or the network has to keep that off.
//   - Behind expensive work. Whatever stands before the guard is not protected by it:
//     put it before the body is read, and behind the authentication only for limits of
//     users. A login has no user yet: give it a limit by network, before the password is
//     looked at, and one by account name behind that.
//   - Where the cost is known only afterwards (rows read, tokens generated): charge an
//     estimate here and give back the rest with [ratelimit.Limiter.Refund], or call
//     [ratelimit.Limiter.Check] in the handler.
//   - For what is not a request: messages of a WebSocket, frames of a stream, jobs of a
//     queue. Call Check where they are read.
//   - For what is sold or must survive a restart: that is a quota (package quota), which
//     is durable; a bucket may be lost, and begins anew.
//   - Twice. Behind a gateway that asks the same policy each request counts double, and
//     where one service of a chain calls another each hop does. Mark such requests with
//     [Skip].
//   - For retries that must count once. A request that is sent again is a new one here;
//     Check with a request id tells them apart.
package ratelimithttp
