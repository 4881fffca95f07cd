// Package sessionhttp decides whether a request comes with a good session, and
// answers it where it does not.
//
// A [Guard] takes the session's token from the cookie __Host-session or from the
// header "Authorization: Bearer …", and from nowhere else: a token in a URL ends
// up in logs, histories and Referer headers, and one in a form can be put there by
// somebody else. It asks a [session.Manager] and puts the verdict in the request's
// context. The handlers behind it find it with [FromContext].
//
// # The cookie
//
// Browsers take a cookie whose name begins with __Host- only if it is Secure, has
// Path=/ and no Domain, and comes over a secure connection. So no other host of
// the same domain gets the cookie, and neither such a host nor somebody on a plain
// HTTP connection can put one of their own in its place and have the user work in
// a session that they know. HttpOnly keeps it from scripts. The price is that
// each host has a session of its own, and that over plain HTTP it works on
// localhost at most, and not in every browser.
//
// A token that stood in a browser before a login must not stand for the user
// afterwards: create a session at every login, hand out its cookie with
// [Guard.SetCookie], and end the session that the browser had.
//
// # Cross-site request forgery
//
// A browser sends the cookie with every request to the host, whoever made it do
// so. SameSite=Lax keeps it off requests from other sites, but that is not enough:
//
//   - A link, a redirect or window.open from any site is a GET with the cookie. A
//     GET or HEAD must not change anything, nor may a parameter turn it into another method.
//   - A site is a domain with all its hosts. Forms and scripts of sibling.example.com
//     send the cookie of www.example.com with any method: a customer's page, a
//     forgotten host, one that was taken over.
//   - The login itself has no session yet, and can be forged too: the user then
//     works in the attacker's account.
//
// Put [http.CrossOriginProtection] around everything, the login included. It
// refuses methods other than GET, HEAD and OPTIONS where Sec-Fetch-Site, which
// scripts cannot set, names another origin, or else where Origin names another
// host than the request. It lets requests through that have neither header, as
// programs and very old browsers send them. Send Strict-Transport-Security as well:
// without Sec-Fetch-Site it cannot tell the host's own pages over plain HTTP from
// those over HTTPS. A WebSocket begins with a GET, which it lets through: the
// handler has to compare Origin itself.
//
// A bearer header cannot be forged like that, since no browser adds it by itself.
// But the token must then be kept where scripts find it. A guard that takes both
// needs the same protection as one that takes cookies.
//
// # Order
//
// From the outside in: CORS (a preflight request never has a token), cross-origin
// protection, guard, handlers.
package sessionhttp
