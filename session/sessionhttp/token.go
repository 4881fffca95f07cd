package sessionhttp

import (
	"net/http"
	"strings"
)

// A Source is where a request's token may come from.
type Source uint8

// The sources. What comes from one that a guard does not take is not looked at: it
// may be meant for somebody else.
const (
	Cookie Source = 1 << iota // the cookie CookieName
	Bearer                    // the header "Authorization: Bearer …"
)

// headers names what an answer depends on.
func (s Source) headers() string {
	switch s {
	case Cookie:
		return "Cookie"
	case Bearer:
		return "Authorization"
	default:
		return "Cookie, Authorization"
	}
}

// presented is what a request shows of tokens.
type presented struct {
	token          string // the first
	cookie, bearer bool   // where there is one, also an empty one
	conflict       bool   // there is another one
}

// usable reports whether there is a token, and only one: to choose among several
// would let whoever can add one decide whose session counts.
func (p presented) usable() bool { return (p.cookie || p.bearer) && !p.conflict }

// read collects the tokens from the sources, however many there are in each.
func (s Source) read(r *http.Request) presented {
	var p presented
	var tokens []string
	if s&Cookie != 0 {
		for _, c := range r.CookiesNamed(CookieName) {
			p.cookie, tokens = true, append(tokens, c.Value)
		}
	}
	if s&Bearer != 0 {
		for _, header := range r.Header.Values("Authorization") {
			token, ok := bearer(header)
			p.bearer = p.bearer || ok
			if token != "" && ok || ok && !p.cookie { // an empty one beside a cookie names nobody
				tokens = append(tokens, token)
			}
		}
	}
	for _, token := range tokens {
		p.token = tokens[0]
		p.conflict = p.conflict || token != tokens[0]
	}
	return p
}

// bearer reads the header's token; false means that it is of another scheme.
func bearer(header string) (string, bool) {
	scheme, token, _ := strings.Cut(header, " ")
	return strings.Trim(token, " "), strings.EqualFold(scheme, "Bearer")
}
